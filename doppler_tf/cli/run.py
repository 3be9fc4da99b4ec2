"""Run an assignment for real: TensorFlow kernels or emulated devices, asynchronously or level by level."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli import options

FUNCTION = "doppler_tf.api.running.run"
EXAMPLE = "python -m doppler_tf run chainmm.json --topology cpu:4 --assignment placed.json --executor tf --trace run.trace.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    options.add_graph(parser)
    options.add_topology(parser)
    options.add_cluster(parser)
    options.add_assignment(parser)
    parser.add_argument("--executor", required=True, metavar="tf|emulated|synchronous",
                        help="tf: real kernels; emulated: real threads, modelled times; synchronous: a barrier after each level, with "
                             "modelled times if --time-scale is given or the graph has no kernels, else with real kernels")
    parser.add_argument("--time-scale", type=options.positive_real, metavar="X",
                        help="emulated: a modelled second takes X seconds (default: 1, or so that a run takes about 2 s)")
    parser.add_argument("--emulate", metavar="T", help="emulated: the true topology of the devices (default: --topology)")
    parser.add_argument("--timeout-s", type=options.positive_real, metavar="S",
                        help="fail if one vertex or transfer takes longer than S seconds (default: no limit)")
    parser.add_argument("--restart-on-loss", action="store_true",
                        help="tf: when a machine of the cluster is lost, run the graph again on the devices that are left")
    parser.add_argument("--repeats", type=options.positive, default=1, metavar="N",
                        help="run N times and report the median run (default: 1)")
    parser.add_argument("--merge", action="store_true",
                        help="tf: vertices that a device runs one after the other become one call, where that makes nothing wait; the "
                             "trace is of these calls")
    options.add_batches(parser)
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz",
                        help="captured models: arguments by name (default: drawn by --seed; integers are 0 or 1)")
    parser.add_argument("--no-check", dest="check", action="store_false", help="do not compare the outputs with the uncut program or model")
    parser.add_argument("--tolerance-s", type=options.natural_real, metavar="S",
                        help="tolerance on wall-clock times (default: 1%% of the makespan); the dispatcher's log is judged exactly")
    options.add_pictures(parser)


def gradient_facts(result: dict[str, Any]) -> dict[str, str]:
    """Of a training step: whether its uncut program has GradientTape's gradients."""
    from doppler_tf.report.tables import yes_no

    if "gradients_match" not in result:
        return {}
    return {"gradients as GradientTape's": yes_no(result["gradients_match"]), "their relative error": f"{result['gradient_error']:.2g}"}


def render(result: dict[str, Any]) -> list:
    """Tables of facts and of devices."""
    from doppler_tf.cli.output import batch_facts, device_table, offload_facts
    from doppler_tf.report.tables import NOTHING, facts, time_unit, yes_no

    unit, error = time_unit([result["makespan_s"]]), result["relative_error"]
    times = result["makespans_s"]
    median = "" if len(times) == 1 else f" (median of {len(times)}, {unit.text(min(times))} to {unit.text(max(times))})"
    return [facts(f"{result['graph']} on {result['topology']}, {result['executor']} executor, {result['device_kind']} devices", {
        "assignment": result["method"] or "by hand", "dispatch": result["dispatch"],
        "makespan": f"{unit.text(result['makespan_s'])}{median}", "simulated": unit.text(result["simulated_makespan_s"]),
        **batch_facts(result), **offload_facts(result),
        "lower bound of the model": unit.text(result["lower_bound_s"]), "outputs match": yes_no(result["outputs_match"]),
        "relative error": NOTHING if error is None else f"{error:.2g}", **gradient_facts(result),
        "trace valid": yes_no(result["trace_valid"]), "work conserving": yes_no(result["work_conserving"])}),
        device_table(result)]
