"""Generate the graph of a named workload, cut for a number of devices."""

from __future__ import annotations

import argparse
import contextlib
from functools import partial
from typing import Any

from doppler_tf.cli import info
from doppler_tf.cli.options import key_value, output_file, positive
from doppler_tf.errors import ConfigError, field_error

EXAMPLE = "python -m doppler_tf workload chainmm --devices 4 --scale small --out chainmm.json"
LARGE_EXAMPLES = ("python -m doppler_tf workload llama_stack --devices 4 --layers 500 --out deep.json",
                  "python -m doppler_tf workload layered --devices 8 --vertices 100000 --option degree=2.5 --seed 7 --out random.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.epilog = "\n  ".join((parser.epilog or "", *LARGE_EXAMPLES))
    parser.add_argument("name", metavar="NAME", help="chainmm, ffnn, llama_block, llama_layer, llama_stack (layers in a row) or layered "
                                                     "(a random graph with costs but no kernels)")
    parser.add_argument("--devices", type=positive, required=True, metavar="N", help="number of devices to cut for")
    parser.add_argument("--scale", default="paper", metavar="small|paper",
                        help="paper: the published shapes; small: shapes that take a CPU milliseconds (default: paper)")
    parser.add_argument("--option", type=key_value, action="append", default=[], metavar="KEY=VALUE",
                        help="a size of the workload; repeatable")
    for key, purpose in (("layers", "llama_stack: layers in a row"), ("vertices", "layered: vertices of the graph")):
        parser.add_argument(f"--{key}", dest="option", type=partial(_pair, key), action="append", default=[], metavar="N",
                            help=f"{purpose}, as --option {key}=N")
    parser.add_argument("--out", type=output_file, required=True, metavar="G.json", help="graph file to write")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the graph; returns the result of `info`."""
    from data import build_workload
    from doppler_tf.formats.graph_json import write_graph

    options = {key: _size(args.name, key, value) for key, value in args.option}
    repeated = next((key for i, (key, _) in enumerate(args.option) if key in dict(args.option[:i])), None)
    if repeated is not None:
        given = ", ".join(value for key, value in args.option if key == repeated)
        raise field_error(ConfigError, "workload", args.name, repeated, "one value", given)
    graph = build_workload(args.name, args.devices, args.scale, args.seed, **options)
    write_graph(args.out, graph)
    return {**info.describe(graph), "out": args.out}


def render(result: dict[str, Any]) -> list:
    """The tables of `info`."""
    return info.render(result)


def _pair(key: str, value: str) -> tuple[str, str]:
    return key, value


def _size(name: str, key: str, value: str) -> int | float:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(value)
    raise field_error(ConfigError, "workload", name, key, "a number", value)
