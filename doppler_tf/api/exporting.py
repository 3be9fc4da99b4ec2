"""`export` and `export-placed`: what TensorFlow alone runs: a policy, and a captured model under an assignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler_tf.api.inputs import load_topology
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, GraphError
from doppler_tf.formats.assignment_json import assignment_from_json
from doppler_tf.formats.files import read_json
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.graph.costs import build_costs, estimated
from doppler_tf.graph.topology import Topology


def export(run: str | Path, out: str | Path) -> dict[str, Any]:
    """Exports the policy of a run or checkpoint as a SavedModel, into `out`/N; returns the model's path and its metadata."""
    room = import_quietly("agents.serving.export")
    model = room.export_policy(run, out)
    return {"model": model, **read_json(model / room.EXTRA / room.METADATA)}


def export_placed(graph: str | Path, assignment: str | Path, out: str | Path, topology: str | None = None,
                  costs: str = "given") -> dict[str, Any]:
    """Writes a captured model under an assignment as a SavedModel whose operations name their devices.

    Args:
      graph, assignment: files.
      out: folder to write.
      topology: None: the devices that the assignment names.

    Returns:
      What the command prints with `--json`: how many operations each device has.
    """
    path, graph, record, out = graph, read_graph(graph), read_json(assignment), Path(out)
    if "captured" not in graph.attributes:
        raise GraphError(f"{path}: expected a captured graph, got {graph.name}, which has no model beside it; make one with "
                         "`capture`")
    if topology is None and isinstance(record, Mapping):
        target = _named(record.get("device_names"), assignment)
        record = {key: value for key, value in record.items() if key != "topology_hash"}
    elif topology is None:
        raise ConfigError(f"{assignment}: expected an assignment file, got a list that names no devices; give --topology T, too")
    else:
        target = load_topology(topology)
    if costs == "estimated":
        graph = estimated(graph, target, str(path))
    placement = assignment_from_json(record, graph, build_costs(graph, target, str(path)), str(assignment))
    if placement.offload is not None:
        raise ConfigError(f"{assignment}: offload: expected none, as a SavedModel cannot say when tensors leave a device, got a plan; "
                          f"place on devices with more memory")
    placed_model = import_quietly("runtime.models.placed_model")
    devices = import_quietly("runtime").prepare_devices(target.num_devices)
    placed = placed_model.write_placed_model(out, graph, placement, devices)
    count = Counter(placed.values())
    return {"graph": graph.name, "model": out, "signature": placed_model.SIGNATURE, "devices_file": out / placed_model.DEVICES,
            "operations": len(placed), "operations_by_device": {device: count[device] for device in devices}}


def _named(names: object, where: str | Path) -> Topology:
    """A topology of the devices that an assignment file names; costs do not count here."""
    if not isinstance(names, list) or not names:
        raise ConfigError(f"{where}: device_names: expected the names of the devices, got {names!r}; give --topology T, too")
    return Topology.from_json({"name": str(where), "devices": [{"name": name, "flops_per_s": 1.0} for name in names]}, str(where))
