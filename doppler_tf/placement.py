"""Placing a graph: one method, or the portfolio of heuristics, searches and learned policies; the best by simulation wins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from doppler_tf.errors import AssignmentError, ConfigError, DeadlockError, field_error
from doppler_tf.graph.costs import CostModel, graph_with_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.heuristics import HEURISTICS, SEARCHES, Pool, Problem
from doppler_tf.heuristics.judging import by_order
from doppler_tf.heuristics.pool import Candidate
from doppler_tf.notes import note
from doppler_tf.offload.planning import crossing_bound_s, roomy
from doppler_tf.schedule.any_order import fits_in_any_order
from doppler_tf.schedule.assignment import AUTO, DISPATCH_RULES, Assignment, check_constraints
from doppler_tf.schedule.batches import Batches
from doppler_tf.schedule.memory import MORE_MEMORY, never_fits
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schema import check_budget, check_integer
from doppler_tf.showing import ShowsItself
from doppler_tf.stages import (
    Asked,
    Policy,
    bound_by_memory,
    construct,
    construct_all,
    improve,
    mend,
    over_host,
    search_alone,
    steadiest,
    tie_repeats,
    under_noise,
    with_loads_in_mind,
)

OFFLOAD = (AUTO, "never")
# Where memory makes the best so long, searches end at the first share of the budget, and those without limits at the second of what is
# left. The rest is for compiling.
_FITTING, _WITHOUT_LIMITS = 0.2, 0.5
# A note tells what safety in any order of execution costs, if it is more than this share of the makespan.
_WORTH_A_NOTE = 0.01
# What is found within the limits: candidates, the one that is chosen, means under noise, and whether memory makes it so long.
_Fitting = tuple[Pool, str, Mapping[str, float] | None, bool]


@dataclass(frozen=True, repr=False)
class Placement(ShowsItself):
    """The outcome of `place`.

    Attributes:
      assignment: the best found; its `method` names the winner.
      device_of: device name by vertex id (inputs left out).
      makespan_s: simulated.
      lower_bound_s: no assignment is faster than this.
      seconds: wall-clock time spent.
      makespans_s: the best by member of the portfolio; a search's may be another one's that it went on from.
      assignments: the assignments that these are of.
      noisy_means_s: if there was noise, the mean of simulations with it, by member.
      simulations: how many each search has made.
      graph, costs: what was placed.
    """

    assignment: Assignment
    device_of: Mapping[int | str, str]
    makespan_s: float
    lower_bound_s: float
    seconds: float
    makespans_s: Mapping[str, float]
    assignments: Mapping[str, Assignment]
    graph: DataflowGraph
    costs: CostModel
    noisy_means_s: Mapping[str, float] = field(default_factory=dict)
    simulations: Mapping[str, int] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far above the lower bound: 0.1 is 10%. 0 for a graph that takes no time at all."""
        return self.makespan_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0


def place(graph: GraphLike | Problem, topology: TopologyLike | CostModel | None = None, method: str = "auto",
          samples: int | None = None, seed: int = 0, dispatch: str = AUTO, budget_s: float | None = None,
          learned: Mapping[str, Policy] | None = None, noise: float | None = None, offload: str = AUTO) -> Placement:
    """Finds an assignment.

    Args:
      graph, topology: as in `build_costs`; or ready-made costs; or a `Problem` alone, which keeps its rule and is quicker a second time.
      method: a heuristic's name, a name in `learned`, or `auto`: all that construct assignments (above 50,000 vertices the fast ones)
        and all in `learned`, then hill climbing for about a tenth of a second; with a `budget_s` instead annealing, hill climbing and
        CP-SAT for the second half of the seconds (see `search_together`). If the graph repeats itself, a tied search comes first and
        takes half of the budget, and the other searches the last quarter. Without a budget it takes about a second, if the graph is
        too large for hill climbing.
      samples: how many assignments each randomised method may try, the first is kept among equals; None: 50, of a policy 64, and
        fewer of a policy where a graph has more than 20,000 vertices (12 at 100,000). Of a search: how many simulations; None:
        about a second's worth, or as many as `budget_s` lets it.
      budget_s: nothing further is begun after this many seconds. A search ends sooner where it meets the lower bound.
      learned: samplers of trained policies by name: (graph, costs, samples, seed) -> assignments, the greedy one first.
      noise: the shape of log-normal factors on all times. With it the members' best assignments, the best of all under each rule, and the
        last improvements of searches are judged by the mean of 20 noisy simulations. None: with `auto`, the steadiest of a search
        (see `Pool`) replaces the best if it loses less without noise than it gains under noise of 1%.
      offload: `auto`: where the topology has a host, and something is found that would end before all that fits in the devices' memory,
        what is found without limits is compiled so that it fits with the host (see `fastest_plan`), in the last four fifths of
        `budget_s`. It is taken if it ends first. What fits, but perhaps not in every order of execution, is compiled so that it does;
        a note tells what that costs.
        `never`: it must fit in the order of its simulated run.

    Raises:
      ConfigError: an unknown method or a bad number; a graph that is too large for the method.
      DeadlockError: no assignment fits in memory, or none was found that does; the message says which.
      CostError: no assignment needs only links that exist, or none was found.
    """
    asked = Asked(samples, seed, learned or {}, time.perf_counter(), budget_s)
    _check(asked, method, dispatch, noise, offload)
    problem = as_problem(graph, topology, dispatch)
    heuristic = method == AUTO or method in HEURISTICS  # policies know no host
    placed = _chosen(problem, asked, offload, lambda host: _fitting(problem, asked, method, noise, host),
                     lambda asked: _searched(roomy(problem), asked, method)[0],
                     (lambda streamed, asked: _searched(streamed, asked._replace(learned={}), method)[0]) if heuristic else None)
    if noise is not None and placed.assignment.offload is not None:
        note(f"{problem.graph.name}: kept in part on the host, so assignments are judged without noise")
    return placed


def _fitting(problem: Problem, asked: Asked, method: str, noise: float | None, host: bool) -> _Fitting:
    pool, known_s, bound = _searched(problem, asked, method, _FITTING if host else 1.0)
    if noise is not None:
        return pool, *under_noise(pool, noise, asked.seed), bound
    return pool, steadiest(pool, known_s, asked.seed) if method == AUTO else pool.leader, None, bound


def _searched(problem: Problem, asked: Asked, method: str, if_short: float = 1.0) -> tuple[Pool, float, bool]:
    """What a method or the portfolio finds, the best makespan without searches, and whether it is memory that makes it so long.

    Args: if_short: the share of the budget at which searches end if it is.
    """
    pool = Pool(problem, problem.bounds.best_s)
    if method in SEARCHES:
        short = if_short < 1.0 and asked.budget_s is not None and _is_short(problem, asked)
        search_alone(pool, _ending(asked, if_short) if short else asked, method)
    elif method != AUTO:
        construct(pool, asked, (method,))
    else:
        tie_repeats(pool, asked)
        construct_all(pool, asked)
    mend(pool)
    known_s, bound = pool.members[pool.leader].makespan_s, if_short < 1.0 and bound_by_memory(pool)
    if method == AUTO:
        improve(pool, _ending(asked, if_short) if bound else asked)
    return pool, known_s, bound


def _ending(asked: Asked, share: float) -> Asked:
    """The same at a share of the budget."""
    return asked if asked.budget_s is None else asked._replace(budget_s=share * asked.budget_s)


def _is_short(problem: Problem, asked: Asked) -> bool:
    """Whether memory makes an assignment slow that is found at once."""
    pool = Pool(problem)
    construct(pool, asked._replace(samples=1), ("critical_path",))
    mend(pool)
    return bound_by_memory(pool)


def _chosen(problem: Problem, asked: Asked, offload: str, fit: Callable[[bool], _Fitting], search: Callable[[Asked], Pool],
            search_streamed: Callable[[Problem, Asked], Pool] | None = None) -> Placement:
    """What `fit` finds, or where memory makes that slow and it ends first what `search` finds without limits, compiled so that it fits
    with the host; where inputs have to be waited for, also what is found with them on the host. What may not fit in every order of
    execution is compiled, too, unless that cannot be."""
    host = offload == AUTO and problem.costs.topology.host is not None
    proof = never_fits(problem.graph, problem.costs, host=True) if host else problem.never_fits
    if proof is not None:
        raise DeadlockError(f"{problem.graph.name}: out of memory with any assignment: {proof}; {MORE_MEMORY}")
    pool, name, means_s, bound = Pool(problem), "", None, True
    if problem.never_fits is None:
        with contextlib.suppress(DeadlockError) if host else contextlib.nullcontext():
            pool, name, means_s, bound = fit(host)
    plans: dict[str, Candidate] = {}
    if host and bound:
        within = {member: each for member, each in pool.members.items() if np.isfinite(each.makespan_s)}
        found = search(asked.part(_WITHOUT_LIMITS))
        loaded = with_loads_in_mind(problem, found.members, search_streamed and partial(search_streamed, asked=asked.part(_WITHOUT_LIMITS)))
        both = _compiled(problem, within, loaded, asked)
        both.simulations = found.simulations
        plans = {member: each for member, each in both.members.items() if each.assignment.offload is not None}
        if both.leader in plans:
            return _answer(both, asked, both.leader)
    if host and not fits_in_any_order(problem.graph, problem.costs, pool.members[name].assignment.device):
        with contextlib.suppress(DeadlockError):
            safe, fitting_s = _compiled(problem, plans, pool.members, asked), pool.members[name].makespan_s
            safe.simulations = pool.simulations
            if safe.best[0] > fitting_s * (1 + _WORTH_A_NOTE):
                note(f"{problem.graph.name}: {1e3 * safe.best[0]:.4g} ms in any order of execution; {1e3 * fitting_s:.4g} ms fits in "
                     f"memory in the simulated order alone, which offload \"never\" (--offload never) takes")
            return _answer(safe, asked, safe.leader)
    return _answer(pool, asked, name, means_s)


def _compiled(problem: Problem, known: Mapping[str, Candidate], found: Mapping[str, Candidate], asked: Asked) -> Pool:
    """What is known, and what was found, compiled so that it fits with the host."""
    # What a search has proved holds for runs without a host.
    pool = Pool(problem, max(problem.bounds.best_s, crossing_bound_s(problem.graph, problem.costs)))
    for name, each in known.items():
        pool.put(name, *each)
    over_host(pool, found, asked)
    return pool


def place_batches(batches: Batches, method: str = "auto", samples: int | None = None, seed: int = 0, dispatch: str = AUTO,
                  budget_s: float | None = None, learned: Mapping[str, Policy] | None = None, offload: str = AUTO) -> Placement:
    """Finds an assignment of batches in flight. Each device takes the oldest batch first, so the assignment is for the rule `order`.

    Candidates are what `place` finds for all batches as one graph, what it finds for one batch, and whole batches on one device each.

    Args:
      method, samples, seed, learned: as in `place`, for both graphs.
      budget_s: as in `place`. The search for one batch ends at half of it.
      dispatch: the rule under which candidates are found, and the order within a batch.
      offload: as in `place`. A plan is for these batches.

    Raises:
      As `place`.
    """
    asked, problem = Asked(samples, seed, learned or {}, time.perf_counter(), budget_s), Problem(batches.graph, batches.costs, dispatch)
    _check(asked, method, dispatch, None, offload)
    single = Problem(batches.single, batches.single_costs, dispatch)
    return _chosen(problem.under("order"), asked, offload, lambda host: _batches_searched(batches, problem, single, asked, method, host),
                   lambda asked: _batches_searched(batches, roomy(problem), roomy(single), asked, method)[0])


def _batches_searched(batches: Batches, problem: Problem, single: Problem, asked: Asked, method: str, host: bool = False) -> _Fitting:
    """What is found for batches. Args: problem, single: of all of them and of one."""
    placed, bound = [], False
    for each, part in ((single, 0.5), (problem, 1.0)):
        pool, name, _, short = _fitting(each, asked.part(part), method, None, host)
        placed.append(_answer(pool, asked, name))
        bound |= short
    one, together = placed
    patterns = {f"{together.assignment.method}, batches apart": batches.pattern(by_order(problem, together.assignment)),
                f"{one.assignment.method}, batches alike": [by_order(single, one.assignment)]}
    anywhere = np.flatnonzero(single.costs.allowed[single.graph.work_vertices].all(axis=0))
    whole = [np.where(single.graph.is_input, -1, d).astype(np.int32) for d in anywhere.tolist()]
    if whole:
        patterns["a device for each batch"] = [Assignment(device) for device in whole]
    pool = Pool(problem.under("order"), together.lower_bound_s)
    for name, pattern in patterns.items():
        assignment = batches.assignment(pattern, name)
        with contextlib.suppress(AssignmentError):  # a state that all batches share allows one device alone
            check_constraints(problem.graph, problem.costs, assignment.device, name)
            pool.take(name, [assignment])
    if not pool.members:
        raise DeadlockError(f"{problem.graph.name}: found no assignment of its batches that keeps each vertex where memory holds what "
                            f"it takes; {MORE_MEMORY}")
    return pool, pool.leader, None, bound or (host and bound_by_memory(pool))


def as_problem(graph: GraphLike | Problem, topology: TopologyLike | CostModel | None, dispatch: str) -> Problem:
    """What a caller of `place` gives, as a problem; a ready-made one keeps its rule."""
    return graph if isinstance(graph, Problem) else Problem(*graph_with_costs(graph, topology), dispatch)


def _check(asked: Asked, method: str, dispatch: str, noise: float | None, offload: str) -> None:
    check_method(method, asked.learned)
    if dispatch not in (AUTO, *DISPATCH_RULES):
        raise field_error(ConfigError, "place", "", "dispatch", f"one of {', '.join((AUTO, *DISPATCH_RULES))}", dispatch)
    if asked.samples is not None:
        check_integer(asked.samples, 1, "place", "samples")
    check_integer(asked.seed, 0, "place", "seed")
    check_budget(asked.budget_s, "place")
    if offload not in OFFLOAD:
        raise field_error(ConfigError, "place", "", "offload", f"one of {', '.join(OFFLOAD)}", offload)
    if noise is not None and not (isinstance(noise, int | float) and 0 < noise <= 1):
        raise field_error(ConfigError, "place", "", "noise", "a number above 0 and up to 1, or None", noise)


def check_method(method: str, learned: Iterable[str] = ()) -> None:
    """Raises ConfigError for an unknown one. Args: learned: the names of policies."""
    known = (*HEURISTICS, *learned)
    if method not in (*known, "auto"):
        raise field_error(ConfigError, "place", "", "method", f"one of auto, {', '.join(known)}", method)


def _answer(pool: Pool, asked: Asked, name: str, means_s: Mapping[str, float] | None = None) -> Placement:
    """What is chosen of the pool. Raises DeadlockError if it does not fit in memory."""
    graph, costs, (makespan_s, assignment) = pool.problem.graph, pool.problem.costs, pool.members[name]
    for member, candidate in pool.members.items():
        check_constraints(graph, costs, candidate.assignment.device, f"place: method {member}")
    if not np.isfinite(makespan_s):
        Simulator().execute(graph, costs, assignment)  # names what waits and for which memory
    names = costs.topology.device_names
    assignment = replace(assignment, proven_bound_s=pool.bound_s if pool.bound_s > pool.problem.bounds.best_s else 0.0)
    device_of = {graph.ids[v]: names[assignment.device[v]] for v in graph.work_vertices.tolist()}
    return Placement(assignment, device_of, makespan_s, pool.bound_s, time.perf_counter() - asked.started_s,
                     {member: found.makespan_s for member, found in pool.members.items()},
                     {member: found.assignment for member, found in pool.members.items()}, graph, costs, means_s or {}, pool.simulations)
