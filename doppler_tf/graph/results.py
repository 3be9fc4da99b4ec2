"""Which tensors of a graph are results: they stay to the end of a run, whoever takes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doppler_tf.graph.dataflow import DataflowGraph


def result_tensors(graph: DataflowGraph, updates: bool = True) -> list[int]:
    """The tensors that the graph's attribute `results` names, or the record of its capture or workload; in order, none twice.

    Inputs are none, and what the graph does not have is passed over.

    Args: updates: also new values of variables and weights, which in a row of batches only the last one keeps.
    """
    index, found = {key: v for v, key in enumerate(graph.ids)}, set[int]()
    for record in _records(graph.attributes, updates):
        v, output = index.get(record["vertex"]), record.get("output", 0)
        if v is not None and not graph.is_input[v] and graph.tensor_ptr[v] + output < graph.tensor_ptr[v + 1]:
            found.add(int(graph.tensor_ptr[v]) + output)
    return sorted(found)


def _records(attributes: Mapping[str, Any], updates: bool) -> Iterator[Mapping[str, Any]]:
    """Mappings that name a `vertex` and its `output`. Records that somebody has changed are read by whoever runs the graph, who says so."""
    lists: list[Any] = []
    match attributes:
        case {"results": named}:
            lists = [named]
        case {"captured": {"outputs": outputs, "updates": updated}}:
            lists = [outputs, updated if updates else ()]
        case {"workload": {**workload}, "outputs": {**outputs}}:
            lists = [output["tiles"] for name, output in outputs.items()
                     if isinstance(output, Mapping) and "tiles" in output and
                     (updates or "training" not in workload or not str(name).startswith("new_"))]
    for named in lists:
        for record in named if isinstance(named, list | tuple) else ():
            match record:
                case {"vertex": str() | int(), **other} if isinstance(other.get("output", 0), int):
                    yield record
