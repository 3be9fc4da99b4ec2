"""A trained policy as a SavedModel: a numbered folder, as TensorFlow Serving watches for them, that needs none of our code."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from agents.checkpoints import policy_checkpoint, restore_variables
from agents.config import stored_config
from agents.methods import METHODS
from agents.serving.placing import BATCH_BYTES
from agents.serving.signatures import Server
from doppler_tf import __version__
from doppler_tf.errors import ConfigError, FormatError
from doppler_tf.formats.files import read_json

_LOG = logging.getLogger(__name__)
MODEL_SCHEMA = "doppler-model/1"
EXTRA, METADATA, WARM_UP = "assets.extra", "doppler.json", "tf_serving_warmup_requests"


def export_policy(run: str | Path, out: str | Path, batch_bytes: int = BATCH_BYTES) -> Path:
    """Writes `out`/N, N one more than the largest number there, complete or not at all; returns that folder.

    It holds the signatures `place` (the default) and `score` of `serving.Server`, and beside them, in `assets.extra`, `doppler.json` (what
    it was made of) and a request of each kind with which TensorFlow Serving warms up.

    Args:
      run: a run folder (its last checkpoint is taken) or one checkpoint.
      batch_bytes: as in `load_policy`, of the model when it places.

    Raises:
      CheckpointError: no complete checkpoint is there; ConfigError: of a method that is not served; FormatError: `out` cannot be written.
    """
    checkpoint, out = policy_checkpoint(run), Path(out)
    config = stored_config(checkpoint.parent.parent)
    if config.method != "doppler":
        raise ConfigError(f"{run}: method: expected 'doppler', the one that can be served, got {config.method!r}; use it with `place "
                          f"--policy`")
    network = METHODS[config.method].network(config)
    restore_variables(checkpoint, {"best_network": network}, partial=True)
    if config.rule not in ("order", "fifo"):
        raise ConfigError(f"{run}: dispatch: expected 'auto', 'order' or 'fifo', which can be served, got {config.rule!r}; use it with "
                          f"`place --policy`")
    server = Server(network, config.identity, batch_bytes, config.rule)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _LOG.info("tracing the policies for graphs of any size; this takes some 15 seconds")
        version = 1 + max((int(path.name) for path in out.glob("[0-9]*") if path.name.isdigit()), default=0)
        temporary = out / f".{version}.{os.getpid()}"
        signatures = {name: getattr(server, name).get_concrete_function() for name in ("place", "score")}  # each is traced once
        # What is saved holds functions and variables alone: Keras layers would bring their own records, which nobody needs here.
        model = tf.Module()
        model.weights, model.place, model.score = list(server.variables), *signatures.values()
        try:
            tf.saved_model.save(model, str(temporary), {**signatures, "serving_default": signatures["place"]})
            (temporary / EXTRA).mkdir()
            metadata = _metadata(checkpoint, version)
            (temporary / EXTRA / METADATA).write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
            _write_warm_up(temporary / EXTRA / WARM_UP, signatures)
            os.replace(temporary, out / str(version))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
        raise FormatError(f"{out}: cannot be written: {getattr(error, 'strerror', None) or error}; choose another place") from None
    return out / str(version)


def _metadata(checkpoint: Path, version: int) -> dict[str, Any]:
    """What a model was made of."""
    run, state = checkpoint.parent.parent, read_json(checkpoint / "state.json")
    stored = read_json(run / "config.json")
    return {"schema": MODEL_SCHEMA, "version": version, "doppler_tf": __version__, "git_revision": _git_revision(),
            "graphs": stored["graphs"], "topology": stored["topology_name"], "step": state["step"], "seconds": state["seconds"],
            "config": stored["config"], "signatures": ["place", "score"]}


def _git_revision() -> str | None:
    """Of our source, where it is a checkout."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _write_warm_up(path: Path, signatures: Mapping[str, Callable]) -> None:
    """A small request for each signature, as TFRecords of PredictionLog."""
    link = np.array([[0.0, 1e-5], [1e-5, 0.0]])
    problem = {"exec_s": np.ones((3, 2)), "edges": np.array([[0, 2], [1, 2]], np.int32), "edge_bytes": np.full(2, 1e6),
               "transfer_s": np.full(2, np.nan), "latency_s": link, "bandwidth_bytes_per_s": np.full((2, 2), 1e10),
               "output_bytes": np.full(3, 1e6), "memory_bytes": np.full(2, np.inf)}
    requests = {"place": {**problem, "samples": np.int32(2), "seed": np.int32(0)},
                "score": {**problem, "device": np.array([[0, 1, 0]], np.int32), "order": np.array([[0, 1, 2]], np.int32)}}
    with tf.io.TFRecordWriter(str(path)) as writer:
        for name, tensors in requests.items():
            signatures[name](*map(tf.constant, tensors.values()))  # a request that fails would keep a server from starting
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = name
            for key, value in tensors.items():
                request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())
