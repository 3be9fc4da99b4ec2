"""`run`: an assignment executed for real, by TensorFlow's kernels or on emulated devices, and its outputs compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler_tf.api.executors import (
    GRADIENT_TOLERANCE,
    Program,
    RepeatedProgram,
    check_executor,
    default_time_scale,
    emulated_executor,
    has_kernels,
    kernel_executor,
    load_program,
    matches,
    true_topology,
)
from doppler_tf.api.inputs import AssignmentLike, ClusterLike, load_cluster, load_costs, load_planned
from doppler_tf.api.traces import Executed, executed
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.frozen import with_weights_as_operands
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.report.verdict import batch_figures, idle
from doppler_tf.schedule.offloaded import kept_on_host
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schema import check_integer


def run(graph: GraphLike, topology: TopologyLike | CostModel, assignment: AssignmentLike, executor: str = "tf", *, costs: str = "given",
        dispatch: str | None = None, time_scale: float | None = None, emulate: TopologyLike | None = None, timeout_s: float | None = None,
        restart_on_loss: bool = False, repeats: int = 1, merge: bool = False, repeat: int | None = None, in_flight: int | None = None,
        inputs: Path | Mapping[str, Any] | None = None, check: bool = True, tolerance_s: float | None = None,
        trace: str | Path | None = None, gantt: str | Path | None = None, cluster: ClusterLike | None = None,
        seed: int = 0) -> Executed:
    """Executes an assignment, compares the outputs with the unsharded program, and judges the median run's trace.

    Args:
      graph, topology: as in `place`, or `local`, this machine; or ready-made costs.
      assignment: one, or the path of its file.
      executor: `tf`: real kernels; `emulated`: real threads, modelled times; `synchronous`: a barrier after each level, with modelled times
        if there is a `time_scale` or the graph has no kernels.
      costs: `estimated`: by flops and bytes, as if the graph gave no times.
      dispatch: rule that orders the queues (default: the assignment's).
      time_scale: emulated: a modelled second takes so many; None: 1, or so that a run takes about 2 s.
      emulate: emulated: the true topology of the devices (default: `topology`).
      timeout_s: a vertex or transfer that takes longer is an error.
      restart_on_loss: when a machine of the cluster is lost, the graph runs again on the devices that are left.
      repeats: runs, of which the median one is reported.
      merge: tf: vertices that a device runs one after the other become one call, where nothing waits for that; the trace is of these.
      repeat, in_flight: calls in one run, each with another batch; how many of them at once.
      inputs: captured models: arguments by name, or an NPZ file of them; None: drawn by `seed`.
      check: compares the outputs.
      tolerance_s: on wall-clock times (default: 1% of the makespan); the dispatcher's log is judged exactly.
      trace, gantt: paths to write the trace and a picture to.
      cluster: a cluster file, or what `connect` gives: its devices run the kernels.

    Raises:
      UserError: options that do not go together, or an assignment that does not fit.
      ExecutionError: the run failed.
    """
    check_executor(executor)
    check_integer(repeats, 1, "run", "repeats")
    check_integer(seed, 0, "run", "seed")
    graph, costs = load_costs(graph, topology, costs)
    real = executor == "tf" or (executor == "synchronous" and has_kernels(graph) and time_scale is None)
    if emulate and real:
        raise field_error(ConfigError, "run", "", "--emulate", "emulated devices (--executor emulated, or synchronous with --time-scale)",
                          f"--executor {executor}")
    if not real and (cluster or restart_on_loss):
        raise field_error(ConfigError, "run", "", "--cluster" if cluster else "--restart-on-loss", "real kernels (--executor tf)",
                          f"--executor {executor}")
    if merge and executor != "tf":
        raise field_error(ConfigError, "run", "", "--merge", "--executor tf beside it", f"--executor {executor}")
    if merge and (repeat is not None or in_flight is not None):
        given = f"--in-flight {in_flight}" if repeat is None else f"--repeat {repeat}"
        raise field_error(ConfigError, "run", "", "--merge", "a single batch", given)
    asked = graph
    truth = true_topology(emulate, [(graph, costs)])
    cluster = load_cluster(cluster, costs.topology)
    batches, graph, costs, assignment = load_planned(assignment, graph, costs, dispatch, repeat, in_flight)
    planned = assignment.after is not None
    if planned:  # whose weights are tensors
        asked = with_weights_as_operands(asked)
    program = load_program(graph if batches is None else asked, seed, inputs) if real else None
    if batches is not None and program is not None:
        program = program.repeated(batches, seed)
    given = {"--emulate": truth, "--restart-on-loss": restart_on_loss, "--executor synchronous": executor == "synchronous"}
    refused = [option for option, value in given.items() if value]
    if planned and refused:
        raise ConfigError(f"run: {refused[0]}: expected an assignment that fits in the devices' memory, got one with offload; leave it out")
    kept = kept_on_host(asked if batches is None else batches.graph, graph) if planned else {}
    asked_for = {there: t for t, there in kept.items()}
    simulated = Simulator().execute(graph, costs, assignment)
    time_scale = 1.0 if real else time_scale or default_time_scale(simulated.makespan_s)
    with (emulated_executor(executor, time_scale, seed, timeout_s, truth) if program is None else
          kernel_executor(executor, program, timeout_s, cluster, cluster is not None, restart_on_loss, merge,
                          [kept.get(t, t) for t in program.fetch])) as engine:
        traces = [engine.execute(graph, costs, assignment) for _ in range(repeats)]
        outputs = None if program is None else {asked_for.get(t, t): value for t, value in engine.outputs.items()}
        error = program.relative_error(outputs) if check and program is not None else None
        of_tape = program.gradient_error() if check and isinstance(program, Program | RepeatedProgram) else None
        if merge:
            merged = engine.merged()
            graph, costs, assignment, simulated = merged.graph, merged.costs, merged.assignment, merged.trace
    found = sorted(traces, key=lambda t: t.makespan_s)[(len(traces) - 1) // 2]
    figures = {"executor": executor, "device_kind": found.device_kind, "dispatch": found.dispatch, "time_scale": time_scale,
               "makespans_s": [t.makespan_s for t in traces], "simulated_makespan_s": simulated.makespan_s,
               **({} if batches is None else batch_figures(batches, found, simulated)),
               "outputs_match": matches(error), "relative_error": error,
               **({} if of_tape is None else {"gradients_match": matches(of_tape, GRADIENT_TOLERANCE), "gradient_error": of_tape})}
    return executed((graph, costs, assignment, found), figures, (idle,), tolerance_s, trace, gantt, outputs)
