"""Generate the graph of a named workload, cut for a number of devices."""

from __future__ import annotations

import argparse
from typing import Any

from doppler_tf.cli import info
from doppler_tf.cli.options import TOPOLOGIES, add_memory, key_value, output_file, positive, positive_real

FUNCTION = "doppler_tf.api.workloads.write_workload"
EXAMPLE = "python -m doppler_tf workload chainmm --devices 4 --scale small --out chainmm.json"
MORE_EXAMPLES = (
    "python -m doppler_tf workload llama_layer --devices 8 --tiling auto --topology v100x8 --out layer.json",
    "python -m doppler_tf workload llama_stack --devices 4 --layers 500 --out deep.json",
    "python -m doppler_tf workload llama_layer --devices 4 --training --optimizer adam --out step.json",
    "python -m doppler_tf workload llama_layer --devices 4 --training --recompute auto --topology p100x4 --memory 2GB --out lean.json",
    "python -m doppler_tf workload examples/own_program.py:mixer --devices 4 --training --out mixer.json",
    "python -m doppler_tf workload layered --devices 8 --vertices 100000 --option degree=2.5 --seed 7 --out random.json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("name", metavar="NAME", help="chainmm, ffnn, llama_block, llama_layer, llama_stack (layers in a row), layered "
                                                     "(a random graph with costs but no kernels), or file.py:NAME, an EinsumProgram or a "
                                                     "Workload in a Python file, which is run")
    parser.add_argument("--devices", type=positive, required=True, metavar="N", help="number of devices to cut for")
    parser.add_argument("--scale", default="paper", metavar="small|paper",
                        help="paper: the published shapes; small: shapes that take a CPU milliseconds (default: paper)")
    parser.add_argument("--option", type=key_value, action="append", default=[], metavar="KEY=VALUE",
                        help="a size of the workload; repeatable")
    for key, purpose in (("layers", "llama_stack: layers in a row"), ("vertices", "layered: vertices of the graph")):
        parser.add_argument(f"--{key}", dest="option", type=lambda value, key=key: (key, value), action="append", default=[], metavar="N",
                            help=f"{purpose}, as --option {key}=N")
    parser.add_argument("--tiling", default="published", metavar="published|data|tensor|mixed|eindecomp|auto",
                        help="how the program is cut: as published; data parallel, by rows; tensor parallel, by columns and rows of "
                             "weights in turn; both at once; by EinDecomp, so that the fewest elements move; or in all these ways, of "
                             "which placements on --topology keep the fastest (default: published)")
    parser.add_argument("--training", action="store_true",
                        help="a step of training: the loss, its gradients, and the updates of the weights")
    parser.add_argument("--optimizer", metavar="sgd|momentum|adam", help="with --training: what updates the weights (default: sgd)")
    parser.add_argument("--recompute", default="never", metavar="never|always|auto",
                        help="with --training: whether the backward pass computes cheap steps of the forward pass (elementwise functions, "
                             "norms) again where that keeps fewer bytes between the passes; auto: whichever of both graphs placement "
                             "on --topology lets end first (default: never)")
    parser.add_argument("--pieces", type=positive, metavar="P", help="with --tiling eindecomp: pieces of each expression (default: N)")
    parser.add_argument("--topology", metavar="T", help=f"with --tiling or --recompute auto: {TOPOLOGIES}")
    add_memory(parser)
    parser.add_argument("--budget-s", type=positive_real, metavar="S",
                        help="with --tiling or --recompute auto: seconds of all searches together (default: 10)")
    parser.add_argument("--out", type=output_file, required=True, metavar="G.json", help="graph file to write")


def render(result: dict[str, Any]) -> list:
    """The tables of `info`, and before them one of the tilings that were tried."""
    from doppler_tf.report.tables import NOTHING, grid, time_unit

    if "tilings" not in result:
        return info.render(result)
    tried = result["tilings"]
    unit = time_unit([row["makespan_s"] for row in tried.values() if row["makespan_s"] is not None])
    # As published, or as asked for; where it is among them, without recomputation.
    usual = min(tried, key=lambda name: (not name.startswith("published"), name.endswith(", recomputed")))
    usual_s = tried[usual]["makespan_s"]

    def text(seconds: float | None) -> str:
        return NOTHING if seconds is None else unit.text(seconds)

    rows = [(name, f"{row['vertices']:,}", text(row["constructed_s"]), text(row["searched_s"]),
             f"{row['makespan_s'] / usual_s:.3f}" if row["makespan_s"] and usual_s else NOTHING) for name, row in tried.items()]
    return [grid(f"tilings of {result['name']} on {result['topology']}",
                 ("tiling", "vertices", "without a search", "with a search", f"over {usual}"), rows,
                 list(tried).index(result["tiling"])), *info.render(result)]
