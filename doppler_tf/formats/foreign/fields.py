"""The parts of a foreign document: looked up with an error that says where in the file something is missing or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from doppler_tf.errors import FormatError, field_error
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import NotNegative, Topology
from doppler_tf.schema import check


class Foreign(NamedTuple):
    """What a foreign file says: a graph and, if it describes machines, a topology."""

    graph: DataflowGraph
    topology: Topology | None = None


def member(record: Any, names: Sequence[str], kind: type, where: str, what: str, default: Any = ...) -> Any:
    """The member of an object that has one of `names`.

    Args:
      kind: Mapping, list or str.
      what: the record is, in messages.
      default: what comes if it has none or null; without a default this is an error.

    Raises:
      FormatError: it is absent or of another type, or `record` is no object.
    """
    value = _found(record, names, where, what)
    if value is None and default is not ...:
        return default
    if not isinstance(value, kind):
        words = {Mapping: "an object", list: "a list", str: "a string"}[kind]
        raise field_error(FormatError, where, what, names[0], words, value)
    return value


def number(record: Any, names: Sequence[str], where: str, what: str, default: float | None = None) -> float:
    """A finite number >= 0, under one of `names`. Raises FormatError: another value, or none and no default."""
    value = _found(record, names, where, what)
    return checked_number(default if value is None else value, names[0], where, what)


def checked_number(value: Any, name: str, where: str, what: str) -> float:
    """`value`, a finite number >= 0. Raises FormatError for anything else."""
    check(value, NotNegative, FormatError, where, what, name)
    return float(value)


def _found(record: Any, names: Sequence[str], where: str, what: str) -> Any:
    if not isinstance(record, Mapping):
        raise field_error(FormatError, where, "", what or "document", "an object", record)
    return next((record[name] for name in names if record.get(name) is not None), None)


def outputs_by_edge(edges: Sequence[dict]) -> dict[Any, list[dict]]:
    """Makes each edge a tensor of its own: numbers the edges of each source in `output`, and returns them by source."""
    by_source: dict[Any, list[dict]] = {}
    for edge in edges:
        siblings = by_source.setdefault(edge["source"], [])
        edge["output"] = len(siblings)
        siblings.append(edge)
    return by_source


def texts_of_ids(graph: DataflowGraph) -> list[str]:
    """The vertices' ids as texts, for formats that know no others. Raises FormatError: two ids are the same text."""
    texts: dict[str, int | str] = {}
    for key in graph.ids:
        if texts.setdefault(str(key), key) != key:
            raise field_error(FormatError, graph.name, f"vertex {key!r}", "id", "ids that differ as texts", [texts[str(key)], key],
                              "rename one")
    return list(texts)
