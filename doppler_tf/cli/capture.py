"""Capture a model of your own: a SavedModel, or a function in a Python file, becomes a graph with the kernels of its operations."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from doppler_tf.cli import info
from doppler_tf.cli.options import output_file, positive
from doppler_tf.errors import ConfigError, field_error

if TYPE_CHECKING:
    from doppler_tf.graph import DataflowGraph

EXAMPLE = "python -m doppler_tf capture my_model --batch 8 --out my_model.json"
# Below this ratio of all work to the longest path, a second device has next to nothing to do.
CHAIN = 1.1
# What the estimate of work and path counts with, where nothing has been measured.
ESTIMATED_ON = "cpu:2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.epilog = "\n  ".join((parser.epilog or "", "python -m doppler_tf capture train.py:step --input x=f32[32,64] --out step.json"))
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
    parser.add_argument("--variables", default="freeze", metavar="freeze|keep",
                        help="what the model only reads becomes constants (freeze, up to 2 GB), or stays an input of vertices (keep) "
                             "(default: freeze)")
    parser.add_argument("--no-grouping", action="store_true", help="a vertex for every operation: small ones do not join their neighbours")
    parser.add_argument("--keep-devices", action="store_true",
                        help="tf.device scopes become pins to devices of their kind and number (default: they are dropped)")
    parser.add_argument("--allow-unsafe", action="store_true", help="let operations through that touch files, the network or Python")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes graph and model folder; returns what `info` says of the graph, what became of the operations, and how parallel it is."""
    from doppler_tf.cli.messages import note
    from doppler_tf.cli.tensorflow import import_quietly
    from doppler_tf.formats.graph_json import write_graph

    if args.variables not in ("freeze", "keep"):
        raise field_error(ConfigError, "", "", "--variables", "freeze or keep", args.variables)
    capture = import_quietly("data.capture")
    source = capture.read_source(args.source, args.signature, args.input, args.batch)
    folder = args.out.with_suffix(".model")
    found = capture.capture_counted(source, model_folder=folder, name=args.out.name.split(".")[0], grouping=not args.no_grouping,
                                    pieces=args.pieces, allow={capture.EVERYTHING} if args.allow_unsafe else (),
                                    keep_devices=args.keep_devices, freeze_variables=args.variables == "freeze")
    if found.scoped and not args.keep_devices:
        note(f"{args.source}: {found.dropped_scopes}; --keep-devices makes pins of them")
    described = found.graph.attributes["captured"]
    write_graph(args.out, found.graph)
    return {**info.describe(found.graph), "function": described["function"], "operations": found.operations,
            "computing_operations": found.computing, "cut_operations": found.cut,
            "scoped_operations": found.scoped, "pinned_vertices": sum(pin is not None for pin in found.graph.pin),
            "parameters": _parameters(described), "updates": len(described["updates"]),
            "inputs": {x["name"]: {"shape": x["shape"], "dtype": x["dtype"]} for x in described["inputs"]},
            "outputs": [x["name"] for x in described["outputs"]],
            "parallelism": _parallelism(found.graph), "out": args.out, "model": folder}


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


def _parameters(captured: dict) -> int:
    """Numbers in the weights."""
    import math

    return sum(math.prod(weight["shape"]) for weight in captured["weights"])


def _parallelism(graph: DataflowGraph) -> float:
    """Seconds of all work by those of the longest path, both estimated, wherever vertices are pinned to."""
    from dataclasses import replace

    from doppler_tf.bounds import lower_bounds
    from doppler_tf.costs import build_costs
    from doppler_tf.formats.topology_json import read_topology

    graph = replace(graph, pin=(None,) * graph.num_vertices)
    costs = build_costs(graph, read_topology(ESTIMATED_ON))
    return float(costs.exec_s[graph.work_vertices].min(axis=1).sum() / lower_bounds(graph, costs).path_s)
