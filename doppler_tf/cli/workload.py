"""Generate the graph of a named workload, tiled for a number of devices."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli import info
from doppler_tf.cli.options import key_value, positive
from doppler_tf.errors import ConfigError, field_error

EXAMPLE = "python -m doppler_tf workload chainmm --devices 4 --scale small --out chainmm.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("name", metavar="NAME", help="chainmm, ffnn, llama_block or llama_layer")
    parser.add_argument("--devices", type=positive, required=True, metavar="N", help="number of devices to tile for")
    parser.add_argument("--scale", default="paper", metavar="small|paper",
                        help="paper: the published shapes; small: shapes that a CPU executes in milliseconds (default: paper)")
    parser.add_argument("--option", type=key_value, action="append", default=[], metavar="KEY=VALUE",
                        help="a size of the workload; repeatable")
    parser.add_argument("--out", type=Path, required=True, metavar="G.json", help="graph file to write")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the graph; returns what `info` says of it."""
    from data import build_workload
    from doppler_tf.formats.graph_json import write_graph

    options = {key: _size(args.name, key, value) for key, value in args.option}
    graph = build_workload(args.name, args.devices, args.scale, args.seed, **options)
    write_graph(args.out, graph)
    return {**info.describe(graph), "out": args.out}


def render(result: dict[str, Any]) -> list:
    """The tables of `info`."""
    return info.render(result)


def _size(name: str, key: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise field_error(ConfigError, "workload", name, key, "an integer >= 1", value) from None
