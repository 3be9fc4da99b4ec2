"""What devices hold, in any order, and whether a graph can fit in their memory at all: what is proven not to."""

from __future__ import annotations

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph

# What helps where nothing fits.
MORE_MEMORY = "give devices more memory, or cut the graph into smaller vertices"


def never_fits(graph: DataflowGraph, costs: CostModel, host: bool = False) -> str | None:
    """Why no assignment fits, in words; None if nothing proves it. Args: host: whether devices may keep tensors on a host for a while.

    While a vertex runs, its device holds its inputs and its outputs. Inputs of the graph are resident from time 0 on a device of each
    consumer; results and outputs that nobody consumes stay to the end. What only some devices may run counts against these alone.
    """
    if not costs.limited_memory:
        return None
    return _alone(graph, costs) or (None if host else _together(graph, costs))


def needed_bytes(graph: DataflowGraph, costs: CostModel) -> np.ndarray:
    """float64 [N]: what a device holds while it runs a vertex: its inputs and its outputs."""
    return np.bincount(graph.targets, costs.tensor_bytes[graph.edge_tensor], graph.num_vertices) + costs.output_bytes


def held_bytes(graph: DataflowGraph, costs: CostModel, device: np.ndarray) -> np.ndarray:
    """float64 [D]: the bytes of all tensors that are ever on each device: outputs, copies and inputs. Args: device: int [N]."""
    made = np.flatnonzero(~graph.is_input[graph.tensor_producer])
    tensor = np.concatenate([made, graph.edge_tensor])
    there = np.concatenate([device[graph.tensor_producer[made]], device[graph.targets]])
    pairs = np.unique(tensor.astype(np.int64) * costs.num_devices + there)
    return np.bincount(pairs % costs.num_devices, costs.tensor_bytes[pairs // costs.num_devices], costs.num_devices)


def may_run_short(graph: DataflowGraph, costs: CostModel, device: np.ndarray) -> np.ndarray:
    """bool [D]: the devices whose memory does not hold all tensors that are ever there. That of others is enough in any order of execution.

    Args: device: int [N].
    """
    if costs.tensor_bytes.sum() <= costs.memory_bytes.min():
        return np.zeros(costs.num_devices, bool)
    return held_bytes(graph, costs, device) > costs.memory_bytes


def _alone(graph: DataflowGraph, costs: CostModel) -> str | None:
    inputs_bytes = np.bincount(graph.targets, costs.tensor_bytes[graph.edge_tensor], graph.num_vertices)
    most_bytes = np.where(costs.allowed, costs.memory_bytes, 0.0).max(axis=1)
    lacking = graph.work_vertices[(inputs_bytes + costs.output_bytes > most_bytes)[graph.work_vertices]]
    if not lacking.size:
        return None
    v = int(lacking[0])
    which = "no device" if costs.allowed[v].all() else f"no device that may run it ({_names(costs, costs.allowed[v])})"
    own = [size_text(x) for x in (inputs_bytes[v] + costs.output_bytes[v], inputs_bytes[v], costs.output_bytes[v], most_bytes[v])]
    return (f"vertex {graph.vertex_label(v)!r} alone needs {own[0]} (its inputs {own[1]}, its output {own[2]}), {which} has more than "
            f"{own[3]}")


def _together(graph: DataflowGraph, costs: CostModel) -> str | None:
    from_input = np.flatnonzero(graph.is_input[graph.sources])
    consumed = np.bincount(graph.edge_tensor, minlength=graph.num_tensors) > 0
    kept = np.union1d(np.flatnonzero(~consumed & ~graph.is_input[graph.tensor_producer]), graph.results)
    groups = np.unique(np.concatenate([costs.allowed[graph.work_vertices], np.ones((1, costs.num_devices), bool)]), axis=0)
    kinds = ("inputs, which are resident from the start,", "results and outputs that nobody consumes, which stay,")
    for devices in sorted(groups, key=np.sum, reverse=True):  # first what concerns all devices
        within = ~(costs.allowed & ~devices).any(axis=1)
        room = costs.memory_bytes[devices].sum()
        inputs = np.unique(graph.edge_tensor[from_input[within[graph.targets[from_input]]]])
        results = kept[within[graph.tensor_producer[kept]]]
        for what, tensors in zip(kinds, (inputs, results), strict=True):
            needed = costs.tensor_bytes[tensors].sum()
            if needed > room:
                whole = bool(devices.all())
                return (f"the {what} need {size_text(needed)} in all"
                        f"{'' if whole else f', of vertices that only {_names(costs, devices)} may run'}, "
                        f"{'the devices have' if whole else 'where there are'} {size_text(room)} in all")
    return None


def _names(costs: CostModel, devices: np.ndarray) -> str:
    return ", ".join(name for name, chosen in zip(costs.topology.device_names, devices.tolist(), strict=True) if chosen)


def size_text(number: float) -> str:
    """Bytes with a unit, exact below a terabyte: what is one byte too much does not look equal."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.12g} {unit}"
    return f"{number:.12g} bytes"
