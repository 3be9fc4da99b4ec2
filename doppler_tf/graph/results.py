"""Which tensors of a graph are results: they stay to the end of a run, whoever takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from doppler_tf.errors import GraphError, field_error

if TYPE_CHECKING:
    from doppler_tf.graph.dataflow import DataflowGraph


def result_tensors(graph: DataflowGraph, updates: bool = True) -> list[int]:
    """The tensors that the graph's attribute `results` names, or else the record of its capture or workload; in order, none twice.

    Inputs are none. What such a record names wrongly is passed over: who runs the graph reads it and says so.

    Args: updates: also new values of variables and weights, which in a row of batches only the last one keeps.
    """
    index, lists = {key: v for v, key in enumerate(graph.ids)}, list[Any]()
    match graph.attributes:
        case {"results": named}:
            lists = [named]
        case {"captured": {"outputs": outputs, "updates": updated}}:
            lists = [outputs, updated if updates else ()]
        case {"workload": {**workload}, "outputs": {**outputs}}:
            without = "training" in workload and not updates
            lists = [output["tiles"] for name, output in outputs.items()
                     if isinstance(output, Mapping) and "tiles" in output and not (without and str(name).startswith("new_"))]
    found = {_tensor(graph, index, record) for named in lists if isinstance(named, Sequence) for record in named}
    return sorted(t for t in found if t is not None)


def check_results(graph: DataflowGraph, where: str) -> None:
    """Raises GraphError unless the graph's attribute `results`, if it has one, names outputs of vertices that are no inputs."""
    index, named = {key: v for v, key in enumerate(graph.ids)}, graph.attributes.get("results", [])
    for record in named if isinstance(named, list | tuple) else [named]:
        if _tensor(graph, index, record) is None:
            raise field_error(GraphError, where, "", "graph.results", "a list of objects with a `vertex` that is no input and one of its "
                              "outputs, `output` (0)", record)


def _tensor(graph: DataflowGraph, index: Mapping[Any, int], record: Any) -> int | None:
    """The tensor that {`vertex`, `output`} names; None: none."""
    match record:
        case {"vertex": key, **others} if type(key) in (int, str) and key in index:
            v, output = index[key], others.get("output", 0)
            if type(output) is int and not graph.is_input[v] and 0 <= output < graph.tensor_ptr[v + 1] - graph.tensor_ptr[v]:
                return int(graph.tensor_ptr[v]) + output
    return None
