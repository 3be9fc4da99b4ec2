"""Measures assignments in turn on this machine or a cluster, with TensorFlow's ways of running the program as yardsticks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from doppler_tf.api.comparison.plain_tensorflow import PlainTensorFlow, modes
from doppler_tf.api.executors import load_program, plan_executor
from doppler_tf.api.inputs import load_assignment
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError
from doppler_tf.finalists import Finalist, warm_up
from doppler_tf.formats.files import file_name
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.progress import progress_bar
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.merging import merge_calls
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import simulate

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster

ALONE, GREEDY = "TensorFlow alone", "policy_greedy"
BARRIERS, THEIR_EXECUTOR = "{}, with barriers", "{}, TensorFlow's executor"
LEARNED_SIMULATED, LEARNED = "learned, before stage III", "learned"

def measure_found(source: str | Path | DataflowGraph, graph: DataflowGraph, costs: CostModel, best: Mapping[str, Assignment],
                  run: Path | None, turns: int, cluster: Cluster | None = None) -> dict[str, dict[str, float | int | None]]:
    """Runs in turn the assignments found, those that the training run `run` wrote for this graph, and the whole program uncut.

    The assignment learned last, else the best by simulation, also runs with barriers and on TensorFlow's executor. One with a plan for the
    host does not: only the engine follows it, in calls of single vertices. Every turn runs everything, so that a burst of other work on
    the machine affects all alike. It runs everything twice, and the second run counts: users run one graph many times, and at the first
    run the caches are full of another's tensors.

    Args:
      source: the file of `graph`, from which another process reads the program; or the graph itself.
      turns: the number of turns that count.
      cluster: its devices run the assignments; TensorFlow alone runs on this machine.

    Returns:
      By name `median_s`, the quartiles `low_s` and `high_s`, `runs`, and `simulated_s` of merged calls or of a plan (None if it cannot be
      simulated).
    """
    found = {name: assignment for name, assignment in best.items() if name != GREEDY or "policy" not in best}
    program, runtime = load_program(graph), import_quietly("runtime")

    def simulated(assignment: Assignment) -> float:
        if assignment.offload is not None:
            return simulate(graph, costs, assignment).makespan_s
        return merge_calls(graph, costs, assignment, program.fetch).makespan_s

    simulated_s = {name: simulated(assignment) for name, assignment in found.items()}
    leader = min(found, key=lambda name: simulated_s[name], default=None)
    for name, ending in ((LEARNED_SIMULATED, ".simulated.json"), (LEARNED, ".json")):
        path = None if run is None else run / "assignments" / f"{file_name(graph.name)}{ending}"
        if path is not None and path.exists():
            assignment = load_assignment(path, graph, costs, offload=True)
            leader = name if assignment.method.partition(",")[0] in ("", "policy") else f"{name} ({assignment.method})"
            found[leader], simulated_s[leader] = assignment, simulated(assignment)
    if leader is None:
        raise ConfigError("--measure: expected a method whose assignment fits in memory, got none; name others with --methods")
    devices = runtime.prepare_devices(costs.num_devices) if cluster is None else cluster.devices
    with ExitStack() as stack:
        move = stack.enter_context(progress_bar("measuring"))
        engine = stack.enter_context(runtime.MergedExecutor(program.inputs, program.fetch, None, cluster))

        def call_of(assignment: Assignment) -> Callable[[], float]:
            if assignment.offload is None:
                return lambda: engine.execute(graph, costs, assignment).makespan_s
            ran = offloaded(graph, costs, assignment)
            planned = stack.enter_context(plan_executor(graph, ran[0], cluster=cluster))
            return lambda: planned.execute(*ran).makespan_s

        plain = stack.enter_context(PlainTensorFlow(source))
        calls = {**{f"{ALONE}, {mode}": lambda mode=mode: plain.run(mode) for mode in modes(graph) if plain.can_run(mode)},
                 **{name: call_of(assignment) for name, assignment in found.items()}}
        if found[leader].offload is None:
            with_barriers = import_quietly("runtime.synchronous").with_barriers
            barriers = stack.enter_context(runtime.MergedExecutor(program.inputs, program.fetch, None, cluster, make=with_barriers))
            yardstick = import_quietly("runtime.tensorflow_graph").TensorFlowGraph(
                graph, found[leader].device, program.inputs, program.fetch, devices)
            calls |= {BARRIERS.format(leader): lambda: barriers.execute(graph, costs, found[leader]).makespan_s,
                      THEIR_EXECUTOR.format(leader): lambda: _timed(yardstick.run)}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            warm_up(call)
        for turn in range(turns):
            for name, call in calls.items():
                call()
                seconds[name].append(call())
            move(turn + 1, turns)
    return {name: Finalist(simulated_s.get(name), tuple(values)).to_json() for name, values in seconds.items()}


def _timed(call: Callable[[], object]) -> float:
    started = perf_counter()
    call()
    return perf_counter() - started
