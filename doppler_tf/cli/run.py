"""Run an assignment for real: TensorFlow kernels or emulated devices, asynchronously or level by level."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import (
    add_assignment,
    add_batches,
    add_cluster,
    add_graph,
    add_pictures,
    add_topology,
    natural_real,
    positive,
    positive_real,
)
from doppler_tf.errors import ConfigError, field_error

EXAMPLE = "python -m doppler_tf run chainmm.json --topology cpu:4 --assignment placed.json --executor tf --trace run.trace.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_topology(parser)
    add_cluster(parser)
    add_assignment(parser)
    parser.add_argument("--executor", required=True, metavar="tf|emulated|synchronous",
                        help="tf: real kernels; emulated: real threads, modelled times; synchronous: a barrier after each level, with "
                             "modelled times if --time-scale is given or the graph has no kernels, else with real kernels")
    parser.add_argument("--time-scale", type=positive_real, metavar="X",
                        help="emulated: a modelled second takes X seconds (default: 1, or so that a run takes about 2 s)")
    parser.add_argument("--emulate", metavar="T", help="emulated: the true topology of the devices (default: --topology)")
    parser.add_argument("--timeout-s", type=positive_real, metavar="S",
                        help="fail if one vertex or transfer takes longer than S seconds (default: no limit)")
    parser.add_argument("--restart-on-loss", action="store_true",
                        help="tf: when a machine of the cluster is lost, run the graph again on the devices that are left")
    parser.add_argument("--repeats", type=positive, default=1, metavar="N", help="run N times and report the median run (default: 1)")
    parser.add_argument("--merge", action="store_true",
                        help="tf: vertices that a device runs one after the other become one call, where that makes nothing wait; the "
                             "trace is of these calls")
    add_batches(parser)
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz",
                        help="captured models: arguments by name (default: drawn by --seed; integers are 0 or 1)")
    parser.add_argument("--no-check", action="store_true", help="do not compare the outputs with the uncut program or model")
    parser.add_argument("--tolerance-s", type=natural_real, metavar="S",
                        help="tolerance on wall-clock times (default: 1%% of the makespan); the dispatcher's log is judged exactly")
    add_pictures(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Executes, compares the outputs with the unsharded program, and judges the median run's trace."""
    from doppler_tf.bounds import known_bound_s
    from doppler_tf.cli.executors import (
        check_executor,
        default_time_scale,
        has_kernels,
        load_program,
        make_executor,
        matches,
        true_topology,
    )
    from doppler_tf.cli.inputs import load_assignment, load_batches, load_cluster, load_costs
    from doppler_tf.cli.output import batch_figures, write_pictures
    from doppler_tf.report.verdict import idle, judge, usage
    from doppler_tf.simulator import Simulator

    check_executor(args.executor)
    graph, costs = load_costs(args.graph, args.topology, args.costs)
    real = args.executor == "tf" or (args.executor == "synchronous" and has_kernels(graph) and args.time_scale is None)
    if args.emulate and real:
        raise field_error(ConfigError, "run", "", "--emulate", "emulated devices (--executor emulated, or synchronous with --time-scale)",
                          f"--executor {args.executor}")
    if not real and (args.cluster or args.restart_on_loss):
        raise field_error(ConfigError, "run", "", "--cluster" if args.cluster else "--restart-on-loss", "real kernels (--executor tf)",
                          f"--executor {args.executor}")
    if args.merge and args.executor != "tf":
        raise field_error(ConfigError, "run", "", "--merge", "--executor tf beside it", f"--executor {args.executor}")
    if args.merge and (args.repeat is not None or args.in_flight is not None):
        raise ConfigError("run: --merge: expected one call, got --repeat or --in-flight; leave them out")
    truth = true_topology(args.emulate, [(graph, costs)])
    cluster = load_cluster(args.cluster, costs.topology)
    program = load_program(graph, args.seed, args.inputs) if real else None
    batches = None
    if args.repeat is None and args.in_flight is None:
        assignment = load_assignment(args.assignment, graph, costs, args.dispatch)
    else:
        batches, assignment = load_batches(args.assignment, graph, costs, args.dispatch, args.repeat, args.in_flight)
        graph, costs = batches.graph, batches.costs
        program = None if program is None else program.repeated(batches, args.seed)
    simulated = Simulator().execute(graph, costs, assignment)
    simulated_s = simulated.makespan_s
    time_scale = 1.0 if real else args.time_scale or default_time_scale(simulated_s)
    with make_executor(args.executor, program, time_scale, args.seed, args.timeout_s, truth, keep_inputs=cluster is not None,
                       cluster=cluster, restart_on_loss=args.restart_on_loss, merge=args.merge) as executor:
        traces = [executor.execute(graph, costs, assignment) for _ in range(args.repeats)]
        error = None if program is None or args.no_check else program.relative_error(executor.outputs)
        if args.merge:
            merged = executor.merged()
            graph, costs, assignment, simulated_s = merged.graph, merged.costs, merged.assignment, merged.makespan_s
            simulated = Simulator().execute(graph, costs, assignment)
    trace = sorted(traces, key=lambda t: t.makespan_s)[(len(traces) - 1) // 2]
    lower_bound_s = known_bound_s(graph, costs, assignment)
    judged = graph, costs, assignment, trace
    verdict = judge(*judged, args.tolerance_s)
    write_pictures(args, *judged, lower_bound_s)
    return {"graph": graph.name, "topology": costs.topology.name, "method": assignment.method, "executor": args.executor,
            "device_kind": trace.device_kind, "dispatch": trace.dispatch, "time_scale": time_scale,
            "makespan_s": trace.makespan_s, "makespans_s": [t.makespan_s for t in traces], "simulated_makespan_s": simulated_s,
            **({} if batches is None else batch_figures(batches, trace, simulated)),
            "lower_bound_s": lower_bound_s, "outputs_match": matches(error), "relative_error": error,
            **verdict, **usage(*judged, verdict["trace_valid"]), **idle(*judged, verdict["trace_valid"])}


def render(result: dict[str, Any]) -> list:
    """Tables of facts and of devices."""
    from doppler_tf.cli.output import batch_facts, device_table
    from doppler_tf.report.tables import NOTHING, facts, time_unit, yes_no

    unit, error = time_unit([result["makespan_s"]]), result["relative_error"]
    times = result["makespans_s"]
    median = "" if len(times) == 1 else f" (median of {len(times)}, {unit.text(min(times))} to {unit.text(max(times))})"
    return [facts(f"{result['graph']} on {result['topology']}, {result['executor']} executor, {result['device_kind']} devices", {
        "assignment": result["method"] or "by hand", "dispatch": result["dispatch"],
        "makespan": f"{unit.text(result['makespan_s'])}{median}", "simulated": unit.text(result["simulated_makespan_s"]),
        **batch_facts(result),
        "lower bound of the model": unit.text(result["lower_bound_s"]), "outputs match": yes_no(result["outputs_match"]),
        "relative error": NOTHING if error is None else f"{error:.2g}", "trace valid": yes_no(result["trace_valid"]),
        "work conserving": yes_no(result["work_conserving"])}),
        device_table(result)]
