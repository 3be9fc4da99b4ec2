"""Generate the graph of a named workload, cut for a number of devices."""

from __future__ import annotations

import argparse
import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any

from doppler_tf.cli import info
from doppler_tf.cli.options import TOPOLOGIES, key_value, output_file, positive, positive_real
from doppler_tf.errors import ConfigError, field_error

if TYPE_CHECKING:
    from doppler_tf.graph import DataflowGraph

EXAMPLE = "python -m doppler_tf workload chainmm --devices 4 --scale small --out chainmm.json"
MORE_EXAMPLES = (
    "python -m doppler_tf workload llama_layer --devices 8 --tiling auto --topology v100x8 --out layer.json",
    "python -m doppler_tf workload llama_stack --devices 4 --layers 500 --out deep.json",
    "python -m doppler_tf workload layered --devices 8 --vertices 100000 --option degree=2.5 --seed 7 --out random.json")


PUBLISHED = "published"
# Seconds in which `auto` searches.
BUDGET_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.epilog = "\n  ".join((parser.epilog or "", *MORE_EXAMPLES))
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
    parser.add_argument("--tiling", default=PUBLISHED, metavar="published|eindecomp|auto",
                        help="how the program is cut: as published; by EinDecomp, so that the fewest elements move; or in several ways, "
                             "of which placements on --topology keep the fastest (default: published)")
    parser.add_argument("--pieces", type=positive, metavar="P", help="with --tiling eindecomp: pieces of each expression (default: N)")
    parser.add_argument("--topology", metavar="T", help=f"with --tiling auto: {TOPOLOGIES}")
    parser.add_argument("--budget-s", type=positive_real, metavar="S",
                        help=f"with --tiling auto: seconds of all searches together (default: {BUDGET_S:g})")
    parser.add_argument("--out", type=output_file, required=True, metavar="G.json", help="graph file to write")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the graph; returns the result of `info`, and with `--tiling auto` what was tried."""
    from data import build_workload
    from doppler_tf.formats.graph_json import write_graph

    _check_tiling(args)

    options = {key: _size(args.name, key, value) for key, value in args.option}
    repeated = next((key for i, (key, _) in enumerate(args.option) if key in dict(args.option[:i])), None)
    if repeated is not None:
        given = ", ".join(value for key, value in args.option if key == repeated)
        raise field_error(ConfigError, "workload", args.name, repeated, "one value", given)
    if args.tiling == "auto":
        graph, tried = _fastest(args, options)
    else:
        graph, tried = build_workload(args.name, args.devices, args.scale, args.seed, args.tiling, args.pieces, **options), {}
    write_graph(args.out, graph)
    return {**info.describe(graph), **tried, "out": args.out}


def render(result: dict[str, Any]) -> list:
    """The tables of `info`, and before them one of the tilings that were tried."""
    from doppler_tf.report.tables import NOTHING, grid, time_unit

    if "tilings" not in result:
        return info.render(result)
    tried = result["tilings"]
    unit = time_unit([row["makespan_s"] for row in tried.values() if row["makespan_s"] is not None])
    published_s = tried[PUBLISHED]["makespan_s"]

    def text(seconds: float | None) -> str:
        return NOTHING if seconds is None else unit.text(seconds)

    rows = [(name, f"{row['vertices']:,}", text(row["constructed_s"]), text(row["searched_s"]),
             f"{row['makespan_s'] / published_s:.3f}" if row["makespan_s"] and published_s else NOTHING) for name, row in tried.items()]
    return [grid(f"tilings of {result['name']} on {result['topology']}",
                 ("tiling", "vertices", "without a search", "with a search", "over published"), rows,
                 list(tried).index(result["tiling"])), *info.render(result)]


def _check_tiling(args: argparse.Namespace) -> None:
    """Raises ConfigError for options that do not go together."""
    tilings = (PUBLISHED, "eindecomp", "auto")
    if args.tiling not in tilings:
        raise field_error(ConfigError, "", "", "--tiling", f"one of {', '.join(tilings)}", args.tiling)
    if args.tiling == "auto" and args.topology is None:
        raise ConfigError("--tiling auto: --topology: expected a topology on which to place, got none; add --topology T")
    for name, value, only in (("--topology", args.topology, "auto"), ("--budget-s", args.budget_s, "auto"),
                              ("--pieces", args.pieces, "eindecomp")):
        if value is not None and args.tiling != only:
            raise ConfigError(f"{name}: expected --tiling {only} beside it, got --tiling {args.tiling}; add it, or leave out {name}")


def _fastest(args: argparse.Namespace, options: dict[str, float]) -> tuple[DataflowGraph, dict[str, Any]]:
    """The graph whose best placement ends first, and what was tried."""
    from data import build_tilings
    from doppler_tf.alternatives import place_alternatives
    from doppler_tf.cli.inputs import load_topology
    from doppler_tf.cli.messages import bars_wanted
    from doppler_tf.report.progress import progress_bar

    topology = load_topology(args.topology)
    graphs = build_tilings(args.name, args.devices, args.scale, args.seed, **options)
    with progress_bar("placing", show=bars_wanted()) as move:
        found = place_alternatives(graphs, topology, BUDGET_S if args.budget_s is None else args.budget_s, args.seed,
                                   always=(PUBLISHED,), progress=move)
    chosen = next(iter(found))

    tried = {name: {"vertices": each.graph.num_vertices,
                    "constructed_s": None if each.constructed is None else each.constructed.makespan_s,
                    "searched_s": None if each.searched is None else each.searched.makespan_s,
                    "makespan_s": each.makespan_s if math.isfinite(each.makespan_s) else None} for name, each in found.items()}
    return found[chosen].graph, {"topology": topology.name, "tiling": chosen, "tilings": tried}


def _pair(key: str, value: str) -> tuple[str, str]:
    return key, value


def _size(name: str, key: str, value: str) -> int | float:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(value)
    raise field_error(ConfigError, "workload", name, key, "a number", value)
