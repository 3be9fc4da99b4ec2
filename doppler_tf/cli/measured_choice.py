"""`place --measure`: runs the assignments found against the simple placements. A simple placement wins a tie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from doppler_tf.assignment import Assignment
from doppler_tf.batches import Batches
from doppler_tf.cli.executors import load_program, make_executor
from doppler_tf.cli.messages import bars_wanted, note
from doppler_tf.costs import CostModel
from doppler_tf.errors import CancelledError, DopplerError, UserError
from doppler_tf.finalists import Spent, baselines, choose, finalists_of, simulated_makespans, spent, what_runs, why_one_device
from doppler_tf.graph import DataflowGraph
from doppler_tf.placement import Placement
from doppler_tf.report.progress import progress_bar

if TYPE_CHECKING:
    from runtime.captured_program import CapturedProgram
    from runtime.cluster import Cluster


def choose_by_runs(graph: DataflowGraph, costs: CostModel, placed: Placement, runs: int, time_scale: float | None, seed: int,
                   cluster: Cluster | None = None, program: CapturedProgram | None = None) -> tuple[Assignment, float, dict[str, Any]]:
    """The chosen assignment, its simulated seconds, and the results of the runs.

    Args:
      runs: the most runs of all finalists together.
      time_scale: of emulated devices; None: runs the graph's kernels.
      cluster: runs them there, not on this machine.
      program: with the values that runs take; None: draws them.

    Raises the last run's error if no run succeeded.
    """
    program = None if time_scale is not None else load_program(graph) if program is None else program
    return _choose(graph, costs, placed, baselines(graph, costs, seed), runs, program, time_scale, seed, cluster)


def choose_batches_by_runs(batches: Batches, placed: Placement, runs: int, time_scale: float | None, seed: int,
                           cluster: Cluster | None = None,
                           program: CapturedProgram | None = None) -> tuple[Assignment, float, dict[str, Any]]:
    """As `choose_by_runs`, of batches in flight: each run has them all. All batches on one device are always among the finalists."""
    single = baselines(batches.single, batches.single_costs, seed)
    simple = {name: batches.assignment([single[name]], method=name) for name in ("one_device",) if name in single}
    repeated = None if time_scale is not None else (load_program(batches.single) if program is None else program).repeated(batches, seed)
    return _choose(batches.graph, batches.costs, placed, simple, runs, repeated, time_scale, seed, cluster)


def _choose(graph: DataflowGraph, costs: CostModel, placed: Placement, simple: Mapping[str, Assignment], runs: int, program,
            time_scale: float | None, seed: int, cluster: Cluster | None) -> tuple[Assignment, float, dict[str, Any]]:
    finalists = finalists_of(placed, simple)
    found = next(name for name, a in finalists.items() if what_runs(a) == what_runs(placed.assignment))
    if runs < len(finalists):
        note(f"--measure {runs}: fewer runs than the {len(finalists)} finalists; the last ones are not run")
    done: dict[str, list[Spent]] = {name: [] for name in finalists}
    failed: list[DopplerError] = []
    with (make_executor("tf" if program else "emulated", program, time_scale or 1.0, seed, keep_inputs=True,
                        cluster=cluster, merge=True) as executor,
          progress_bar("measuring", show=bars_wanted()) as move):
        def timed(name: str) -> float:
            move(sum(map(len, done.values())) + len(failed), runs)
            try:
                trace = executor.execute(graph, costs, finalists[name])
            except (CancelledError, UserError):
                raise
            except DopplerError as error:
                failed.append(error)
                return math.nan
            done[name].append(spent(trace.graph, trace))
            return trace.makespan_s

        outcome = choose(simulated_makespans(graph, costs, finalists), [*simple, found], runs, timed)
    if failed:
        note(f"--measure: {len(failed)} runs failed, the last one with: {failed[-1]}")
    if outcome.chosen is None and failed:
        raise failed[-1]
    chosen = outcome.chosen or found
    return finalists[chosen], outcome.finalists[chosen].simulated_s, {
        "measured": {name: finalist.to_json() for name, finalist in outcome.finalists.items()}, "chosen": chosen,
        "reason": why_one_device(chosen, done, outcome.finalists)}
