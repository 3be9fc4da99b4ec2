"""Convert a task graph of another tool (SAGA, WfCommons, STG, DOT), or a graph to one of these."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import TOPOLOGIES, one_of, output_file
from doppler_tf.errors import ConfigError

EXAMPLE = "python -m doppler_tf convert instance.json --out graph.json --topology-out topology.json"
READ, WRITTEN = ("saga", "wfformat", "stg", "dot", "doppler"), ("doppler", "saga", "stg", "dot")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="task graph: JSON of SAGA or of WfCommons, STG, DOT, or doppler-graph/1")
    parser.add_argument("--out", type=output_file, required=True, metavar="GRAPH", help="graph file to write")
    parser.add_argument("--topology-out", type=output_file, metavar="OUT.json", help="also write the machines that the file describes")
    parser.add_argument("--format", type=one_of(*READ), metavar="|".join(READ), help="what FILE is (default: told by suffix and content)")
    parser.add_argument("--to", type=one_of(*WRITTEN), metavar="|".join(WRITTEN),
                        help="what to write (default: told by the suffix of GRAPH, else doppler-graph/1)")
    parser.add_argument("--topology", metavar="T", help=f"with --to saga: its network; {TOPOLOGIES}")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Reads, writes; returns what was found."""
    from doppler_tf.api.inputs import load_topology
    from doppler_tf.formats.foreign.conversion import convert, write_converted, written_as
    from doppler_tf.formats.topology_json import write_topology

    to = args.to or written_as(args.out)
    if args.topology is not None and to != "saga":
        raise ConfigError(f"--topology {args.topology}: expected --to saga beside it, as {to} has no network, got --to {to}; leave it out")
    found = convert(args.file, args.format)
    if args.topology_out is not None and found.topology is None:
        raise ConfigError(f"--topology-out {args.topology_out}: expected a file that describes machines, got {args.file}, which has none; "
                          f"leave it out, and choose a topology such as ideal:4")
    topology = found.topology if args.topology is None else load_topology(args.topology)
    write_converted(args.out, found.graph, to, topology)
    if args.topology_out is not None:
        write_topology(args.topology_out, found.topology)
    return {"graph": found.graph.name, "vertices": found.graph.num_vertices, "edges": found.graph.num_edges,
            "devices": None if found.topology is None else found.topology.num_devices, "out": args.out, "topology_out": args.topology_out}


def render(result: dict[str, Any]) -> list:
    """A table of facts."""
    from doppler_tf.report.tables import NOTHING, facts

    machines = NOTHING if result["devices"] is None else f"{result['devices']:,}"
    if result["devices"] is not None and result["topology_out"] is None:
        machines += "; --topology-out OUT.json writes them"
    return [facts(f"graph {result['graph']}", {
        "vertices": f"{result['vertices']:,}", "edges": f"{result['edges']:,}", "machines": machines, "written to": str(result["out"]),
        **({"topology": str(result["topology_out"])} if result["topology_out"] else {})})]
