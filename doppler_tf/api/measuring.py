"""`measure`: assignments that `place` has found, run against the simple placements. A simple placement wins a tie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from doppler_tf.api.executors import emulated_executor, kernel_executor, load_program, plan_executor
from doppler_tf.api.inputs import ClusterLike, load_cluster
from doppler_tf.errors import CancelledError, DopplerError, UserError
from doppler_tf.finalists import (
    Spent,
    baselines,
    batch_baselines,
    choose,
    finalists_of,
    simulated_makespans,
    spent,
    what_runs,
    why_one_device,
)
from doppler_tf.heuristics import Problem
from doppler_tf.notes import note
from doppler_tf.placement import Placement
from doppler_tf.report.progress import progress_bar
from doppler_tf.schedule.any_order import fits_in_any_order
from doppler_tf.schedule.assignment import AUTO, Assignment
from doppler_tf.schedule.batches import Batches
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schema import check_integer

if TYPE_CHECKING:
    from runtime.models.captured_program import CapturedProgram


@dataclass(frozen=True, eq=False)
class Measured:
    """What runs have chosen.

    Attributes:
      assignment: the chosen one; makespan_s: its simulated seconds.
      figures: `measured`, the figures of each finalist; `chosen`, the name of one; `reason`, why one device is faster than several.
    """

    assignment: Assignment
    makespan_s: float
    figures: Mapping[str, Any]


def measure(placed: Placement, runs: int, *, time_scale: float | None = None, cluster: ClusterLike | None = None,
            batches: Batches | None = None, program: CapturedProgram | None = None, seed: int = 0) -> Measured:
    """Chooses among the assignments of a placement and simple ones by measured runs, those with a plan for the host by runs of the plan.

    Args:
      placed: as `place` gives it, of a graph with kernels.
      runs: the most runs of all finalists together.
      time_scale: of emulated devices, where a modelled second takes so many; None: runs the graph's kernels.
      cluster: a cluster file, or what `connect` gives: runs them there, not on this machine.
      batches: those in flight that were placed: each run has them all, and all on one device are always among the finalists.
      program: with the values that runs take; None: draws them.

    Raises ConfigError: a bad number; the last run's error if no run succeeded.
    """
    check_integer(runs, 1, "measure", "runs")
    check_integer(seed, 0, "measure", "seed")
    graph, costs = placed.graph, placed.costs
    cluster = load_cluster(cluster, costs.topology)
    simple = baselines(Problem(graph, costs, AUTO), seed) if batches is None else batch_baselines(batches, seed)
    if time_scale is not None:
        program = None
    elif program is None:
        program = load_program(graph if batches is None else batches.single)
    if batches is not None and program is not None:
        program = program.repeated(batches, seed)
    finalists = finalists_of(placed, simple)
    found = next(name for name, a in finalists.items() if what_runs(a) == what_runs(placed.assignment))
    if costs.topology.host is not None:  # a run takes other orders than the simulation, and what is chosen must fit in these, too
        finalists = {name: a for name, a in finalists.items()
                     if name == found or a.offload is not None or fits_in_any_order(graph, costs, a.device)}
    if len(finalists) == 1:
        note(f"--measure {runs}: there is one finalist, {found}, and nothing to choose")
    if runs < len(finalists):
        note(f"--measure {runs}: fewer runs than the {len(finalists)} finalists; the last ones are not run")
    done: dict[str, list[Spent]] = {name: [] for name in finalists}
    failed: list[DopplerError] = []
    with ExitStack() as stack:
        move = stack.enter_context(progress_bar("measuring"))
        executor = stack.enter_context(emulated_executor("emulated", time_scale, seed) if program is None else
                                       kernel_executor("tf", program, cluster=cluster, merge=True))
        ran = {name: offloaded(graph, costs, assignment) for name, assignment in finalists.items()}
        executors = {name: executor if program is None or finalists[name].offload is None else
                     stack.enter_context(plan_executor(graph, what[0], batches, cluster)) for name, what in ran.items()}

        def timed(name: str) -> float:
            move(sum(map(len, done.values())) + len(failed), runs)
            try:
                trace = executors[name].execute(*ran[name])
            except (CancelledError, UserError):
                raise
            except DopplerError as error:
                failed.append(error)
                return math.nan
            done[name].append(spent(trace.graph, trace))
            return trace.makespan_s

        always = [name for name in (*simple, found) if name in finalists]
        outcome = choose(simulated_makespans(graph, costs, finalists), always, runs, timed)
    if failed:
        note(f"--measure: {len(failed)} runs failed, the last one with: {failed[-1]}")
    if outcome.chosen is None and failed:
        raise failed[-1]
    chosen = outcome.chosen or found
    assignment = replace(finalists[chosen], proven_bound_s=placed.assignment.proven_bound_s)  # what was proved holds for all
    return Measured(assignment, outcome.finalists[chosen].simulated_s, {
        "measured": {name: finalist.to_json() for name, finalist in outcome.finalists.items()}, "chosen": chosen,
        "reason": why_one_device(chosen, done, outcome.finalists)})
