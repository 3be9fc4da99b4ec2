"""Foreign graphs by format: which format a file has, and reading and writing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from doppler_tf.errors import ConfigError, FormatError, field_error
from doppler_tf.formats.files import write_bytes, write_json
from doppler_tf.formats.foreign.dot import dot_text, read_dot
from doppler_tf.formats.foreign.fields import Foreign
from doppler_tf.formats.foreign.saga import is_saga, read_saga, saga_record
from doppler_tf.formats.foreign.stg import read_stg, stg_text
from doppler_tf.formats.foreign.wfformat import is_wfformat, read_wfformat
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.given import GraphLike, TopologyLike, as_graph
from doppler_tf.graph.records import collector_paused
from doppler_tf.reading import read_json, read_text

OURS = "doppler"
OF_TEXTS: dict[str, Callable[[str, str, str], Foreign]] = {"stg": read_stg, "dot": read_dot}
OF_DOCUMENTS: dict[str, Callable[[Any, str, str], Foreign]] = {"saga": read_saga, "wfformat": read_wfformat}
FORMATS = (*OF_DOCUMENTS, *OF_TEXTS)
WRITTEN = (OURS, "saga", "stg", "dot")
_SUFFIXES = {".dot": "dot", ".gv": "dot", ".stg": "stg"}
_UNKNOWN = (".xml", ".dax", ".graphml", ".gml")


@collector_paused()
def convert(path: str | Path, format: str | None = None) -> Foreign:
    """Reads a task graph of another tool: SAGA's JSON, WfCommons' WfFormat, STG or DOT. Also reads `doppler-graph/1`.

    What the numbers of each format are taken for stands in `docs/cli.md`.

    Args:
      format: `saga`, `wfformat`, `stg`, `dot` or `doppler`; None: told by suffix and content.

    Returns:
      `graph`, and `topology`, which is None if the file describes no machines.

    Raises:
      ConfigError: an unknown format. FormatError, GraphError, TopologyError: a damaged file, or a suffix of a format that is not read;
        the message says where.
    """
    if format not in (None, OURS, *FORMATS):
        raise field_error(ConfigError, "convert", "", "format", f"one of {', '.join((OURS, *FORMATS))}", format)
    path = Path(path)
    if format is None:
        _refuse_unknown(path)
    name = path.name.split(".")[0] or "graph"
    chosen = format or _SUFFIXES.get(path.suffix.lower()) or _told_by_content(path)
    if chosen == OURS:
        return Foreign(as_graph(path))
    if chosen in OF_TEXTS:
        return OF_TEXTS[chosen](read_text(path), str(path), name)
    return OF_DOCUMENTS[chosen](read_json(path, infinite=True), str(path), name)


def write_converted(path: str | Path, graph: GraphLike, format: str = OURS, topology: TopologyLike | None = None) -> None:
    """Writes a graph as `doppler-graph/1`, or for another tool.

    Args:
      format: `doppler`, `saga`, `stg` or `dot`.
      topology: SAGA's network.

    Raises:
      ConfigError: an unknown format. FormatError: the format cannot say what the graph says, or the file cannot be written.
    """
    if format not in WRITTEN:
        raise field_error(ConfigError, "convert", "", "format", f"one of {', '.join(WRITTEN)}", format)
    graph = as_graph(graph)
    if format == OURS:
        write_graph(path, graph)
    elif format == "saga":
        write_json(path, saga_record(graph, None if topology is None else build_costs(graph, topology)), indent=1)
    else:
        write_bytes(path, (stg_text(graph) if format == "stg" else dot_text(graph)).encode())


def written_as(path: str | Path) -> str:
    """The format that a file's suffix says. Raises FormatError: one that is not written."""
    _refuse_unknown(Path(path))
    return _SUFFIXES.get(Path(path).suffix.lower(), OURS)


def _refuse_unknown(path: Path) -> None:
    if path.suffix.lower() in _UNKNOWN:
        raise field_error(FormatError, str(path), "", "format", "JSON, .stg, .dot or .gv", path.suffix,
                          "networkx reads and writes some others, and `place` takes its graphs; or say which it is: --format, --to")


def _told_by_content(path: Path) -> str:
    text = read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        record = read_json(path, infinite=True)
        for name, looks in (("wfformat", is_wfformat), ("saga", is_saga)):
            if looks(record):
                return name
        if isinstance(record, dict) and "nodes" in record:
            return OURS
        raise field_error(FormatError, str(path), "", "format", "SAGA's task_graph, WfFormat's workflow, STG or DOT", record,
                          "say which it is: --format NAME")
    words = [line.split("#")[0].split() for line in text.splitlines()]
    first = next((line for line in words if line), [""])
    return "stg" if first[0].isdigit() else "dot"
