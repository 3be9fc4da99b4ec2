"""Capture a model of your own: a SavedModel, or a function in a Python file, becomes a graph with the kernels of its operations."""

from __future__ import annotations

import argparse
from typing import Any

from doppler_tf.cli import info
from doppler_tf.cli.options import output_file, positive

FUNCTION = "doppler_tf.api.capturing.capture"
EXAMPLE = "python -m doppler_tf capture my_model --batch 8 --out my_model.json"
MORE_EXAMPLES = ("python -m doppler_tf capture train.py:step --input x=f32[32,64] --out step.json",)
# Below this ratio of all work to the longest path, a second device has next to nothing to do.
CHAIN = 1.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("source", metavar="FILE",
                        help="folder of a SavedModel (Keras: model.export), or module.py:function, whose code is run")
    parser.add_argument("--out", type=output_file, required=True, metavar="G.json",
                        help="graph file to write; what its vertices run is written beside it, into the folder G.model")
    parser.add_argument("--signature", metavar="S", help="of the SavedModel (default: serving_default, or the only one)")
    parser.add_argument("--input", action="append", default=[], metavar="KEY=VALUE",
                        help="shape and type of an input, where the model leaves them open, by name or path, as x=f32[8,224,224,3] or "
                             "d/zeta=f32[3]; repeatable")
    parser.add_argument("--batch", type=positive, metavar="N", help="size of the first axis, where the model leaves it open")
    parser.add_argument("--pieces", type=positive, metavar="P",
                        help="cut products, convolutions and what lies between them into P tiles that run side by side (default: 1)")
    parser.add_argument("--variables", default="freeze", metavar="freeze|stream|keep",
                        help="what the model only reads becomes constants (freeze, up to 2 GB), the same as tensors that devices can drop "
                             "and load (stream), or stays an input of vertices as it is (keep) (default: freeze)")
    parser.add_argument("--no-grouping", dest="grouping", action="store_false",
                        help="a vertex for every operation: small ones do not join their neighbours")
    parser.add_argument("--keep-devices", action="store_true",
                        help="tf.device scopes become pins to devices of their kind and number (default: they are dropped)")
    parser.add_argument("--allow-unsafe", action="store_true", help="let operations through that touch files, the network or Python")


def render(result: dict[str, Any]) -> list:
    """The tables of `info`, what became of the operations before, and a sentence where nothing can run side by side."""
    from doppler_tf.report.tables import facts

    given = ", ".join(f"{name} {x['dtype']}{x['shape']}" for name, x in result["inputs"].items())
    cut = f", {result['cut_operations']:,} cut" if result["cut_operations"] else ""
    tables = [facts(f"captured {result['function']}", {
        "inputs": given or "none", "outputs": ", ".join(result["outputs"]) or "none", "parameters": f"{result['parameters']:,}",
        "updated variables": f"{result['updates']:,}",
        "operations": f"{result['operations']:,} traced, {result['operations'] - result['computing_operations']:,} folded or passed by, "
                      f"{result['computing_operations']:,} compute{cut}",
        "vertices": f"{result['work_vertices']:,}, the longest chain {result['depth']:,}"
                    + (f", {result['pinned_vertices']:,} on the devices of tf.device scopes" if result["pinned_vertices"] else ""),
        "work / longest path": f"{result['parallelism']:.2f} (estimated from flops and bytes)", "model": str(result["model"])}),
        *info.render(result)]
    if result["parallelism"] < CHAIN:
        tables.append("Next to nothing can run side by side: work and longest path are almost equal, and more devices do not shorten one "
                      "call. Operations cut into tiles do (--pieces), and several batches in flight raise the throughput.")
    return tables
