"""The fields of vertices, edges and graphs by name: which other names are taken for slips, and which are kept as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping

from doppler_tf.errors import GraphError, field_error
from doppler_tf.schema import field_meant

VERTEX_FIELDS = ("id", "name", "kind", "flops", "output_bytes", "exec_s", "input", "meta_op", "role", "pin", "colocate", "kernel")
EDGE_FIELDS = ("source", "target", "output", "bytes", "transfer_s")
DOCUMENT_FIELDS = ("directed", "multigraph", "graph", "nodes", "edges", "links")
GRAPH_FIELDS = ("schema", "name", "outputs", "workload", "captured", "batches")
# networkx tells the edges between two vertices apart by it.
EDGE_KEY = "key"
_MEASURED = ("exec_s", "transfer_s", "output_bytes", "bytes", "flops")
_UNITS = {"exec_s": " (seconds)", "transfer_s": " (seconds)", "output_bytes": " (bytes)", "bytes": " (a number)", "flops": " (operations)",
          "pin": " (a device)", "colocate": " (a group's name)"}
# How other tools call what the format has a field for; any of them may end in a unit.
_UNIT = re.compile(r"_?(s|secs?|seconds?|ms|us|ns|[kmgt]?i?b|bytes?)$")
_TIMES = ("time", "duration", "runtime", "run_time", "latency", "cost")
_OF_VERTICES = {
    "exec_s": ("exec", "execution", "compute", *_TIMES, *(f"{of}_{word}" for of in ("exec", "execution", "compute") for word in _TIMES)),
    "flops": ("flop", "kflops", "mflops", "gflops", "tflops", "macs", "num_flops"),
    "output_bytes": ("bytes", "size", "output_size", "out_size", "tensor_size", "data_size", "mem", "memory",
                     "kb", "mb", "gb", "output_kb", "output_mb", "output_gb"),
    "pin": ("pinned", "pinned_to", "pin_to", "pin_device", "device"), "input": ("is_input",),
    "colocate": ("colocation", "colocation_group", "colocate_with")}
_OF_EDGES = {
    "bytes": ("size", "data", "data_size", "tensor_size", "output_bytes", "message_size", "volume", "kb", "mb", "gb"),
    "transfer_s": ("transfer", "comm", "communication", *_TIMES, *(f"{of}_{word}" for of in ("transfer", "comm") for word in _TIMES)),
    "output": ("output_index", "source_output")}
Notes = dict[int, dict[str, object]]


def notes_of(records: Collection[Mapping], vertices: bool, where: str, label: Callable[[Mapping], str]) -> Notes:
    """What the records of vertices or of edges say beyond the fields of the format, by index, as far as JSON holds it.

    Args:
      label: what messages call a record.

    Raises:
      GraphError: a name that is nearly one of the format's, belongs to the other kind of record, or says the same in other words or units.
    """
    known, elsewhere, words = ((VERTEX_FIELDS, EDGE_FIELDS, _OF_VERTICES) if vertices
                               else ((*EDGE_FIELDS, EDGE_KEY), VERTEX_FIELDS, _OF_EDGES))
    names = set().union(*records).difference(known)
    for name in sorted(name for name in names if isinstance(name, str)):
        expected, remedy = _meant(name, known, elsewhere, words)
        if expected:
            record = next(record for record in records if name in record)
            raise field_error(GraphError, where, label(record), name, expected, record[name], remedy)
    if not names:
        return {}
    return {at: {name: record[name] for name in record if name in names and _json_holds(name, record[name])}
            for at, record in enumerate(records) if not names.isdisjoint(record)}


def _json_holds(name: object, value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(name, str)


def _meant(name: str, known: Collection[str], elsewhere: Collection[str], words: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """What is expected instead of a field, and what mends it; "" for a field that is like none."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    of_vertices = words is _OF_VERTICES
    if plain in ("weight", "weights"):
        return f"{'exec_s' if of_vertices else 'transfer_s'} (seconds) or {'flops' if of_vertices else 'bytes'}", (
            "rename it, as a weight does not say what it measures")
    stripped = _UNIT.sub("", plain)
    meant = field_meant(name, known) or next((field for field, others in words.items() if plain in others or stripped in others), None)
    if meant is not None:
        return f"the field {meant}{_UNITS.get(meant, '')}", "rename it, and mind the unit" if meant in _MEASURED else "rename it"
    if name in _MEASURED and name in elsewhere:
        return f"it in {'an edge' if of_vertices else 'a vertex'}", "move it there"
    return "", ""
