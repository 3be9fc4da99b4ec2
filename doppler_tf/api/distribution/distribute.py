"""`distribute`: a function of your own on several devices, in one call: captured, measured, placed, and run as often as you like."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.api.distribution.candidates import Candidate
from doppler_tf.api.distribution.distributed import Distributed
from doppler_tf.api.distribution.fastest import fastest
from doppler_tf.api.inputs import LOCAL, load_topology
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, DeadlockError, field_error
from doppler_tf.graph.topology import cpu
from doppler_tf.notes import note
from doppler_tf.schema import check, check_budget, check_integer

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster


def prepare_devices(count: int | None = None) -> list[str]:
    """Makes as many TensorFlow devices, and returns their names. Call it before TensorFlow's first operation.

    Args:
      count: None: a device for each GPU, or without GPUs for each core that this process may use.

    Raises:
      ConfigError: TensorFlow is initialised with fewer devices.
    """
    room = import_quietly("runtime.devices")
    return room.prepare_devices(room.count_local_devices() if count is None else count)


def distribute(function, example_inputs=None, topology: str = LOCAL, budget_s: float | None = 30.0, in_flight: int = 1,
               pieces: int | None = None, folder: str | Path | None = None, seed: int = 0, cluster: Cluster | None = None,
               keep_devices: bool = False, example_keywords: Mapping[str, Any] | None = None, freeze_variables: bool = True,
               executor: str | None = None, memory_bytes: float | Sequence[float] | None = None) -> Distributed:
    """Makes a function as fast as it gets on the devices of this machine, or of a cluster.

    The function is captured, its kernels are measured, and the best assignments are searched. Then the ways to run it are measured
    against each other: the best assignments on our engine, the best of them on TensorFlow's own executor, and TensorFlow alone (as it is,
    with frozen variables, compiled by XLA). What is fastest is returned, the engine where it is as fast. `report()` shows the figures.

    Args:
      function: a tf.function, a Keras 2 model or any callable; as `data.capture.capture_counted`.
      example_inputs: a tuple of all positional arguments, or the only argument. Of tensors, arrays and floats shapes and types count;
        kernels are measured with their values, and with drawn ones for a TensorSpec. Other Python values, and defaults that are left
        out, become part of the function. None: what it asks for itself.
      topology: `local`, or a topology with as many devices as shall be used here.
      budget_s: seconds of the search; None: no search, constructive heuristics alone.
      in_flight: `map` works on this many batches at once; within `memory_bytes` by a plan for these, so that the next ones wait for all.
      pieces: large operations are cut into so many tiles. None: runs decide between one and a tile for each device; with batches in
        flight nothing is cut.
      folder: for the captured model; None: a temporary one.
      cluster: as `connect` gives it; takes the place of `topology`.
      keep_devices: what stands in a `tf.device` scope runs on that device; else scopes are dropped.
      example_keywords: further arguments, by name.
      freeze_variables: as `data.capture.capture_counted`. Where variables of the original change afterwards, a warning tells.
      executor: `engine`, `TensorFlow's executor` or `TensorFlow alone`: only ways of this kind are considered.
      memory_bytes: what tensors may take on each device, weights included: a number, or one for each. Where no order of execution takes
        more, it runs as without limits. Elsewhere the engine keeps them, and what does not fit is in the memory of this machine for a
        while, so that a model may be larger than its devices. Kernels' scratch memory does not count. Kernels are measured without limits.

    Returns:
      The function, placed: call it as the original. Its variables are copies of the original's.

    Raises:
      TopologyError: bad `memory_bytes`.
      ConfigError: the function cannot be captured, it fails with the example's values, or TensorFlow has too few devices (see
        `prepare_devices`).
      DeadlockError: an operation with its operands and outputs takes more than `memory_bytes`.
    """
    for name, value, least in (("in_flight", in_flight, 1), ("pieces", 1 if pieces is None else pieces, 1), ("seed", seed, 0)):
        check_integer(value, least, "distribute", name)
    check_budget(budget_s, "distribute")
    for name, value in (("keep_devices", keep_devices), ("freeze_variables", freeze_variables)):
        check(value, bool, ConfigError, "distribute", "", name)
    if folder is not None and not (isinstance(folder, str | Path) and str(folder)):
        raise field_error(ConfigError, "distribute", "", "folder", "a path, or None for a temporary one", folder)
    runtime, ways = import_quietly("runtime"), import_quietly("runtime.models.ways")
    if not import_quietly("tensorflow").executing_eagerly():
        raise ConfigError("distribute: expected a call with values, got one while another function is traced; call it outside of a "
                          "tf.function, or distribute the whole")
    kinds = (ways.ENGINE, ways.THEIRS, ways.ALONE)
    if executor is not None and executor not in kinds:
        raise field_error(ConfigError, "distribute", "", "executor", f"None or one of {', '.join(kinds)}", executor)
    if executor == ways.THEIRS and (cluster is not None or in_flight > 1):
        raise ConfigError("distribute: executor: TensorFlow's executor runs one call at a time, on this machine; leave out in_flight and "
                          "cluster, or choose another executor")
    if memory_bytes is not None:
        given = {"cluster": cluster is not None, "executor but engine": executor not in (None, ways.ENGINE)}
        for name in (name for name, is_given in given.items() if is_given):
            raise ConfigError(f"distribute: memory_bytes: expected no {name} beside it, as the engine of this machine keeps "
                              "limits, got both; leave out one")
    if cluster is None:
        target = load_topology(topology)
        devices = runtime.prepare_devices(target.num_devices)
    else:
        devices = cluster.devices
        target = cluster.named(cpu(len(devices)))  # of which only the number counts, as all costs are measured
    if memory_bytes is not None:  # kernels are measured without limits; the host is this machine's memory, whose links are measured
        target = replace(target.with_memory(memory_bytes).with_memory(None), host=target.host or cpu(1).host)
    temporary = tempfile.TemporaryDirectory(prefix="doppler_") if folder is None else None
    name, root = import_quietly("data.capture").title_of(function), Path(temporary.name if folder is None else folder)
    traced = import_quietly("data.capture.calls.concrete").concrete(function, example_inputs, name, example_keywords)
    cuts = [1 if pieces is None else pieces]
    if pieces is None and in_flight == 1 and target.num_devices > 1:
        cuts.append(target.num_devices)
    share_s = None if budget_s is None else budget_s / len(cuts)
    found, too_large = [], None
    for cut, part in zip(cuts, ("model", "cut"), strict=False):
        try:
            found.append(Candidate(traced, name, root / part, target, cut, in_flight, share_s, seed, cluster, keep_devices,
                                   freeze_variables, memory_bytes))
        except DeadlockError as error:  # in smaller pieces it may fit
            too_large = error
    if not found:
        raise DeadlockError(f"{too_large}; distribute: pieces: {2 * cuts[-1]} may make smaller ones") from too_large
    found = [each for each in found if not each.limited] or found
    if found[0].limited:
        executor = ways.ENGINE
    if found[0].captured.scoped and not keep_devices:
        note(f"{name}: {found[0].captured.dropped_scopes}; keep_devices=True keeps them")
    outcome = fastest(found, in_flight, devices, cluster, executor)
    return Distributed(traced, outcome, in_flight, devices, temporary)
