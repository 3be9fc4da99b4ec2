"""`capture`: a model of the user's becomes a graph, and what there is to tell of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.frozen import with_weights_as_operands
from doppler_tf.notes import note
from doppler_tf.report.description import describe
from doppler_tf.schedule.bounds import lower_bounds

# What the estimate of work and path counts with, where nothing has been measured.
_ESTIMATED_ON = "cpu:2"


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A graph with the kernels of a model's operations. Attributes: figures: what the command prints with `--json`."""

    figures: Mapping[str, Any]
    graph: DataflowGraph


def capture(source, out: str | Path, example_inputs=None, *, signature: str | None = None, input: Sequence[str] = (),
            batch: int | None = None, pieces: int | None = None, variables: str = "freeze", grouping: bool = True,
            keep_devices: bool = False, allow_unsafe: bool = False, example_keywords: Mapping[str, Any] | None = None) -> CapturedGraph:
    """Captures a model and writes its graph; what the vertices run is written beside it, into the folder `NAME.model`.

    Args:
      source: a tf.function, a Keras 2 model or any callable; or a text: the folder of a SavedModel, or `module.py:function`.
      out: graph file to write.
      example_inputs, example_keywords: of a callable, as of `distribute`.
      signature, input, batch: of a text, as of `data.capture.read_source`: the signature, shapes and types of inputs, the first axis.
      pieces: products, convolutions and what lies between them are cut into so many tiles that run side by side.
      variables: `freeze`: what the model only reads becomes constants, up to 2 GB; `stream`: the same as tensors, which devices can drop
        and load where memory lacks; `keep`: it stays an input of vertices, as it is.
      grouping: small vertices join their neighbours.
      keep_devices: `tf.device` scopes become pins to devices of their kind and number; else they are dropped.
      allow_unsafe: lets operations through that touch files, the network or Python.

    Raises:
      ConfigError: the model cannot be captured; the message names the operation and the user's line.
      FormatError: `out` cannot be written.
    """
    if variables not in ("freeze", "stream", "keep"):
        raise field_error(ConfigError, "", "", "--variables", "freeze, stream or keep", variables)
    room, out = import_quietly("data.capture"), Path(out)
    if isinstance(source, str | Path):
        where, source = source, room.read_source(str(source), signature, input, batch)
    else:
        where = room.title_of(source)
    found = room.capture_counted(source, example_inputs, model_folder=out.with_suffix(".model"), name=out.name.split(".")[0],
                                 grouping=grouping, pieces=pieces, allow={room.EVERYTHING} if allow_unsafe else (),
                                 keep_devices=keep_devices, example_keywords=example_keywords, freeze_variables=variables != "keep")
    if found.scoped and not keep_devices:
        note(f"{where}: {found.dropped_scopes}; --keep-devices makes pins of them")
    graph = with_weights_as_operands(found.graph) if variables == "stream" else found.graph
    described = graph.attributes["captured"]
    write_graph(out, graph)
    return CapturedGraph({
        **describe(graph), "function": described["function"], "operations": found.operations,
        "computing_operations": found.computing, "cut_operations": found.cut,
        "scoped_operations": found.scoped, "pinned_vertices": sum(pin is not None for pin in graph.pin),
        "parameters": sum(math.prod(weight["shape"]) for weight in described["weights"]), "updates": len(described["updates"]),
        "inputs": {x["name"]: {"shape": x["shape"], "dtype": x["dtype"]} for x in described["inputs"]},
        "outputs": [x["name"] for x in described["outputs"]],
        "parallelism": _parallelism(graph), "out": out, "model": out.with_suffix(".model")}, graph)


def _parallelism(graph: DataflowGraph) -> float:
    """Seconds of all work by those of the longest path, both estimated, wherever vertices are pinned to."""
    graph = replace(graph, pin=(None,) * graph.num_vertices)
    costs = build_costs(graph, _ESTIMATED_ON)
    return float(costs.exec_s[graph.work_vertices].min(axis=1).sum() / lower_bounds(graph, costs).path_s)
