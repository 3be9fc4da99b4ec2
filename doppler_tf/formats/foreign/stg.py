"""Task graphs of the Standard Task Graph Set (Kasahara laboratory, Waseda University), with and without communication costs.

A file has the number of tasks, then of each task its number, its processing time, how many predecessors it has and which. With
communication costs each predecessor is followed by its cost. Whatever follows a `#` is comment.

What is assumed: a unit of time is a second, on every device; a cost is the seconds of a transfer between two devices; each edge with a
cost is a message of its own. The tasks at entry and exit that take no time are kept. The older (prototype) files, which begin with task 1
and also name the number of processors, are read, too.
"""

from __future__ import annotations

import numpy as np

from doppler_tf.errors import FormatError, field_error
from doppler_tf.formats.foreign.fields import Foreign, outputs_by_edge
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records

_Word = tuple[str, int]  # with its line
_Task = tuple[int, float, list[tuple[int, float]]]


def read_stg(text: str, where: str, name: str) -> Foreign:
    """The graph of a file. Args: where: the file, for messages; name: of the graph. Raises FormatError, GraphError."""
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    first = next((k for k, line in enumerate(lines) if line), None)
    if first is None:
        raise field_error(FormatError, where, "", "file", "the number of tasks in the first line", "nothing")
    count = int(_value(((lines[first][0]), first + 1), int, where, "the number of tasks"))
    words = [(word, k + 1) for k, line in enumerate(lines) for word in line if k > first]
    failures = []
    for with_costs in (False, True):
        try:
            tasks = _tasks(words, with_costs, where)
        except _Failure as failure:
            failures.append(failure)
            continue
        if count <= len(tasks) <= count + 2:  # entry and exit may be there beside them
            return Foreign(_graph(tasks, where, name))
        failures.append(_Failure(len(words), field_error(FormatError, where, "", "tasks", f"{count}, as the first line says, or two more",
                                                         len(tasks))))
    raise max(failures, key=lambda failure: failure.position).error


def stg_text(graph: DataflowGraph) -> str:
    """The file of a graph: what `read_stg` gives back. Raises FormatError: STG cannot say it."""
    if graph.is_input.any() or (graph.colocate >= 0).any() or any(pin is not None for pin in graph.pin) or graph.exec_s.shape[1] > 1:
        raise FormatError(f"{graph.name}: expected a graph without inputs, pins, groups and times by device, got one with; STG has none of "
                          f"them")
    for values, field in ((graph.exec_s, "exec_s"), (graph.transfer_s, "transfer_s")):
        if np.isnan(values).any():
            raise field_error(FormatError, graph.name, "", field, "a number for every vertex and edge", None, "STG has times alone")
    number, rows = np.empty(graph.num_vertices, np.int64), []
    number[graph.topological_order] = np.arange(graph.num_vertices)
    costly = bool(graph.transfer_s.any())
    for v in graph.topological_order.tolist():
        edges = graph.predecessors.edge[graph.predecessors.ptr[v]:graph.predecessors.ptr[v + 1]].tolist()
        before = [f"{number[graph.sources[e]]}" + (f" {graph.transfer_s[e]:.17g}" if costly else "") for e in edges]
        rows.append(" ".join([f"{number[v]} {graph.exec_s[v, 0]:.17g} {len(edges)}", *before]))
    return "\n".join([str(graph.num_vertices), *rows, f"# {graph.name}".splitlines()[0]]) + "\n"


class _Failure(Exception):
    """A file that cannot be read one way. Attributes: position: how many words could; error: to raise if there is no other way."""

    def __init__(self, position: int, error: Exception):
        self.position, self.error = position, error


def _tasks(words: list[_Word], with_costs: bool, where: str) -> list[_Task]:
    """The tasks that fill `words`. Raises _Failure."""
    tasks: list[_Task] = []
    at = 0

    def take(kind: type, what: str) -> float:
        nonlocal at
        try:
            if at == len(words):
                raise field_error(FormatError, where, "", what, "a number", "the end of the file")
            value = _value(words[at], kind, where, what)
        except FormatError as error:
            raise _Failure(at, error) from None
        at += 1
        return value

    while at < len(words):
        task = int(take(int, "a task's number"))
        seconds = take(float, f"task {task}: processing time")
        before = [(int(take(int, f"task {task}: predecessor")), take(float, f"task {task}: communication cost") if with_costs else 0.0)
                  for _ in range(int(take(int, f"task {task}: number of predecessors")))]
        tasks.append((task, seconds, before))
    return tasks


def _value(word: _Word, kind: type, where: str, what: str) -> float:
    text, line = word
    try:
        value = kind(text)
    except (ValueError, OverflowError):
        value = -1
    if not 0 <= value < 1e300:
        raise field_error(FormatError, f"{where}: line {line}", "", what, "an integer >= 0" if kind is int else "a number >= 0", text)
    return value


def _graph(tasks: list[_Task], where: str, name: str) -> DataflowGraph:
    edges = [{"source": source, "target": task, "transfer_s": cost} for task, _, before in tasks for source, cost in before]
    if any(edge["transfer_s"] for edge in edges):
        outputs_by_edge(edges)
    nodes = [{"id": task, "exec_s": seconds, "output_bytes": 0} for task, seconds, _ in tasks]
    return graph_from_records(nodes, edges, {"name": name}, where)
