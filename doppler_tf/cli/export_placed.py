"""Export a captured model under an assignment as a SavedModel whose operations name their devices, for TensorFlow alone."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.options import add_assignment, add_graph, add_topology
from doppler_tf.errors import ConfigError, GraphError

if TYPE_CHECKING:
    from doppler_tf.topology import Topology

EXAMPLE = "python -m doppler_tf export-placed my_model.json --assignment placed.json --out my_model.placed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_assignment(parser, dispatch=False)
    add_topology(parser, required=False)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="folder to write: a SavedModel, and in devices.json the device of each operation")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the model; returns how many operations each device has."""
    from doppler_tf.cli.inputs import load_topology
    from doppler_tf.cli.tensorflow import import_quietly
    from doppler_tf.costs import build_costs, estimated
    from doppler_tf.formats.assignment_json import assignment_from_json
    from doppler_tf.formats.files import read_json
    from doppler_tf.formats.graph_json import read_graph

    graph, record = read_graph(args.graph), read_json(args.assignment)
    if "captured" not in graph.attributes:
        raise GraphError(f"{args.graph}: expected a captured graph, got {graph.name}, which has no model beside it; make one with "
                         "`capture`")
    if args.topology is None and isinstance(record, Mapping):
        topology = _named(record.get("device_names"), args.assignment)
        record = {key: value for key, value in record.items() if key != "topology_hash"}
    elif args.topology is None:
        raise ConfigError(f"{args.assignment}: expected an assignment file, got a list that names no devices; give --topology T, too")
    else:
        topology = load_topology(args.topology)
    if args.costs == "estimated":
        graph = estimated(graph, topology, str(args.graph))
    assignment = assignment_from_json(record, graph, build_costs(graph, topology, str(args.graph)), str(args.assignment))
    placed_model = import_quietly("runtime.placed_model")
    devices = import_quietly("runtime").prepare_devices(topology.num_devices)
    placed = placed_model.write_placed_model(args.out, graph, assignment, devices)
    count = Counter(placed.values())
    return {"graph": graph.name, "model": args.out, "signature": placed_model.SIGNATURE, "devices_file": args.out / placed_model.DEVICES,
            "operations": len(placed), "operations_by_device": {device: count[device] for device in devices}}


def render(result: dict[str, Any]) -> list:
    """A table of facts."""
    from doppler_tf.report.tables import facts

    return [facts("", {"model": str(result["model"]), "signature": result["signature"], "devices": str(result["devices_file"]),
                       **{device: f"{count:,} operations" for device, count in result["operations_by_device"].items()}})]


def _named(names: object, where: Path) -> Topology:
    """A topology of the devices that an assignment file names; costs do not count here."""
    from doppler_tf.topology import Topology

    if not isinstance(names, list) or not names:
        raise ConfigError(f"{where}: device_names: expected the names of the devices, got {names!r}; give --topology T, too")
    return Topology.from_json({"name": str(where), "devices": [{"name": name, "flops_per_s": 1.0} for name in names]}, str(where))
