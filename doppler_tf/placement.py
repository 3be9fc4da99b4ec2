"""Placing a graph: one method, or the portfolio of heuristics, searches and learned policies; the best by simulation wins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from doppler_tf.errors import AssignmentError, ConfigError, DeadlockError, field_error
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import CostModel, graph_with_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.heuristics import CONSTRUCTIVE, DETERMINISTIC, FAST, HEURISTICS, SEARCHES, YARDSTICKS, Budget, CriticalPath, climb
from doppler_tf.heuristics.judging import Steadiness, by_order, judge, judge_frugal, noisy_means
from doppler_tf.heuristics.local_search import PATIENCE
from doppler_tf.heuristics.portfolio import search_together
from doppler_tf.heuristics.repetition import find_repetition
from doppler_tf.heuristics.search import Found, default_budget
from doppler_tf.heuristics.tied_search import place_tied
from doppler_tf.schedule.assignment import AUTO, DISPATCH_RULES, Assignment, check_constraints
from doppler_tf.schedule.batches import Batches
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schedule.memory import MORE_MEMORY, never_fits
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.showing import ShowsItself

Sampler = Callable[[np.random.Generator], Assignment]
Policy = Callable[[DataflowGraph, CostModel, int, int], Iterable[Assignment]]
_Found = tuple[float, Assignment]  # simulated seconds first
DEFAULT_SAMPLES, LEARNED_SAMPLES, LEARNED_CHOICES = 50, 64, 1_280_000
# Above as many vertices the portfolio without a budget leaves out what takes seconds there.
_MOST_FOR_ALL = 50_000
# The most simulations, and vertices and edges in them, to improve what was constructed: a tenth of a second, as much as a tenth of the
# default budget of a search.
_IMPROVING, _IMPROVING_SIZE = 20_000, 4_000_000
# Vertices that are partitioned again and again where nobody says how often.
_PARTITIONED = 50_000


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


def place(graph: GraphLike, topology: TopologyLike | CostModel, method: str = "auto", samples: int | None = None, seed: int = 0,
          dispatch: str = AUTO, budget_s: float | None = None,
          learned: Mapping[str, Policy] | None = None, noise: float | None = None) -> Placement:
    """Finds an assignment.

    Args:
      graph, topology: as in `build_costs`; or ready-made costs.
      method: a heuristic's name, a name in `learned`, or `auto`: all that construct assignments (above 50,000 vertices the fast ones)
        and all in `learned`, then hill climbing for about a tenth of a second; with a `budget_s` instead annealing, hill climbing and
        CP-SAT for the seconds left (see `search_together`). If the graph repeats itself, a tied search comes first and takes half of
        the budget, and the other searches the last quarter. Without a budget it takes about a second, if the graph is too large for
        hill climbing.
      samples: how many assignments each randomised method may try, the first is kept among equals; None: 50, of a policy 64, and
        fewer of a policy where a graph has more than 20,000 vertices (12 at 100,000). Of a search: how many simulations; None:
        about a second's worth, or as many as `budget_s` lets it.
      budget_s: nothing further is begun after this many seconds. A search ends sooner where it meets the lower bound.
      learned: samplers of trained policies by name: (graph, costs, samples, seed) -> assignments, the greedy one first.
      noise: the shape of log-normal factors on all times. With it the members' best assignments, the best of all under each rule, and the
        last improvements of searches are judged by the mean of 20 noisy simulations. None: with `auto`, the steadiest of a search
        (see `search.Found`) replaces the best if it loses less without noise than it gains under noise of 1%.

    Raises:
      ConfigError: an unknown method or a bad number; a graph that is too large for the method.
      DeadlockError: no assignment fits in memory, or none was found that does; the message says which.
      CostError: no assignment needs only links that exist, or none was found.
    """
    learned = learned or {}
    check_method(method, learned)
    if dispatch not in (AUTO, *DISPATCH_RULES):
        raise field_error(ConfigError, "place", "", "dispatch", f"one of {', '.join((AUTO, *DISPATCH_RULES))}", dispatch)
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 1):
        raise field_error(ConfigError, "place", "", "samples", "an integer >= 1", samples)
    if budget_s is not None and not (isinstance(budget_s, int | float) and budget_s >= 0):
        raise field_error(ConfigError, "place", "", "budget_s", "a number of seconds >= 0 or None", budget_s)
    if noise is not None and not (isinstance(noise, int | float) and 0 < noise <= 1):
        raise field_error(ConfigError, "place", "", "noise", "a number above 0 and up to 1, or None", noise)
    started = time.perf_counter()
    graph, costs = graph_with_costs(graph, topology)
    building_until = deadline = np.inf if budget_s is None else started + budget_s
    if (proof := never_fits(graph, costs)) is not None:
        raise DeadlockError(f"{graph.name}: out of memory with any assignment: {proof}; {MORE_MEMORY}")
    bound_s = unproven_s = lower_bounds(graph, costs).best_s
    best: dict[str, _Found] = {}
    improvements: list[_Found] = []
    steadiest: dict[str, _Found] = {}
    simulations: dict[str, int] = {}
    further: list[tuple[int, _Found]] = []  # what methods found beside their best, with the rank, to race

    def note(name: str, found: Found) -> None:
        nonlocal bound_s
        improvements.extend(found.improvements)
        if found.steadiest is not None:
            improvements.append(found.steadiest)
            steadiest[name] = found.steadiest
        best[name], simulations[name] = (found.makespan_s, found.assignment), found.simulations
        bound_s = max(bound_s, found.lower_bound_s)

    if method in SEARCHES:
        budget = default_budget(graph) if samples is None and budget_s is None else Budget(samples, budget_s)
        note(method, SEARCHES[method](graph, costs, np.random.default_rng(seed), replace(budget, target_s=bound_s), None, dispatch))
    else:
        repetition = find_repetition(graph, costs) if method == "auto" else None
        # Its set-up depends on the few layers that it searches.
        if repetition is not None and time.perf_counter() < started + (budget_s or 0.0) / 2:
            budget, rng = Budget(samples, budget_s / 2, bound_s), np.random.default_rng(seed)
            found = place_tied(graph, costs, rng, budget, None, dispatch, repetition)
            if np.isfinite(found.makespan_s):
                note("tied_search", found)
                building_until = started + 0.75 * budget_s
        usual = FAST if budget_s is None and graph.num_vertices > _MOST_FOR_ALL else tuple(CONSTRUCTIVE)
        for name in (*usual, *learned) if method == "auto" else (method,):
            if best and time.perf_counter() > building_until:
                break
            if name in learned:
                found = _until(building_until, learned[name](graph, costs, samples or learned_samples(graph), seed))
            else:
                found = _until(building_until, _draws(name, graph, costs, samples, seed))
            (makespan_s, winner), *others = sorted(judge(graph, costs, found, dispatch), key=lambda pair: pair[0])
            best[name] = makespan_s, replace(winner, method=name)
            if budget_s is not None:
                further.extend(enumerate(others, 1))
    name = min(best, key=lambda key: best[key][0])
    if not np.isfinite(best[name][0]):
        best[name] = judge_frugal(graph, costs, best[name][1], dispatch, name not in YARDSTICKS)
    known_s, known = best[name]
    if method == "auto" and budget_s is not None:
        budget = Budget(samples, max(0.0, deadline - time.perf_counter()), bound_s)
        ranked = sorted([*((0, found) for found in best.values()), *further], key=lambda pair: (pair[0], pair[1][0]))
        if not budget.reached(known_s):
            starts = [assignment for _, (_, assignment) in ranked]
            for name, found in search_together(graph, costs, seed, budget, starts, dispatch).items():
                note(name, found)
    elif method == "auto" and np.isfinite(known_s):
        improving = max(1, min(_IMPROVING, _IMPROVING_SIZE // (graph.num_vertices + graph.num_edges)))
        budget = Budget(min(improving, samples or improving), target_s=bound_s)
        if repetition is not None and improving < PATIENCE * graph.num_vertices and not budget.reached(known_s):
            tied = replace(default_budget(graph) if samples is None else Budget(samples), target_s=bound_s)
            note("tied_search", place_tied(graph, costs, np.random.default_rng(seed), tied, known, dispatch, repetition))
        if not budget.reached(known_s):
            note("local_search", climb(graph, costs, np.random.default_rng(seed), budget, known, dispatch))
    for name, (_, assignment) in best.items():
        check_constraints(graph, costs, assignment.device, f"place: method {name}")
    name, means_s = min(best, key=lambda key: best[key][0]), dict[str, float]()
    if noise is not None and np.isfinite(best[name][0]):
        if dispatch == AUTO:
            best |= _by_rule(graph, costs, name, best[name][1])
        best |= _steadier(graph, costs, name, best[name], improvements, np.inf, noise, seed)
        means_s = dict(zip(best, noisy_means(graph, costs, [a for _, a in best.values()], noise, seed), strict=True))
        name = min(means_s, key=means_s.__getitem__)
    elif noise is None and method == "auto" and steadiest:
        steadiness = Steadiness(graph, costs, draws=20, seed=seed)
        steadiness.offer(*best[name])
        for search, found in steadiest.items():
            if found[0] <= known_s and steadiness.offer(*found):  # never slower than without a search
                name = f"{search}, steadier"
                best[name] = found[0], replace(found[1], method=name)
    makespan_s, assignment = best[name]
    if not np.isfinite(makespan_s):
        Simulator().execute(graph, costs, assignment)  # raises a DeadlockError that names what waits and for which memory
    names = costs.topology.device_names
    assignment = replace(assignment, proven_bound_s=bound_s if bound_s > unproven_s else 0.0)
    return Placement(assignment, {graph.ids[v]: names[assignment.device[v]] for v in graph.work_vertices.tolist()}, makespan_s, bound_s,
                     time.perf_counter() - started, {key: value for key, (value, _) in best.items()},
                     {key: found for key, (_, found) in best.items()}, graph, costs, means_s, simulations)


def check_method(method: str, learned: Iterable[str] = ()) -> None:
    """Raises ConfigError for an unknown one. Args: learned: the names of policies."""
    known = (*HEURISTICS, *learned)
    if method not in (*known, "auto"):
        raise field_error(ConfigError, "place", "", "method", f"one of auto, {', '.join(known)}", method)


def place_batches(batches: Batches, method: str = "auto", samples: int | None = None, seed: int = 0, dispatch: str = AUTO,
                  budget_s: float | None = None, learned: Mapping[str, Policy] | None = None) -> Placement:
    """Finds an assignment of batches in flight. Each device takes the oldest batch first, so the assignment is for the rule `order`.

    Candidates are what `place` finds for all batches as one graph, what it finds for one batch, and whole batches on one device each.

    Args:
      method, samples, seed, learned: as in `place`, for both graphs; each has half of `budget_s`.
      dispatch: the rule under which candidates are found, and the order within a batch.

    Raises:
      As `place`.
    """
    started = time.perf_counter()
    half_s = None if budget_s is None else budget_s / 2
    one = place(batches.single, batches.single_costs, method, samples, seed, dispatch, half_s, learned)
    together = place(batches.graph, batches.costs, method, samples, seed, dispatch, half_s, learned)
    apart = batches.pattern(by_order(batches.graph, batches.costs, together.assignment))
    patterns = {f"{together.assignment.method}, batches apart": apart,
                f"{one.assignment.method}, batches alike": [by_order(batches.single, batches.single_costs, one.assignment)]}
    anywhere = np.flatnonzero(batches.single_costs.allowed[batches.single.work_vertices].all(axis=0))
    whole = [np.where(batches.single.is_input, -1, d).astype(np.int32) for d in anywhere.tolist()]
    if whole:
        patterns["a device for each batch"] = [Assignment(device) for device in whole]
    found = {}
    for name, pattern in patterns.items():
        assignment = batches.assignment(pattern, name)
        with contextlib.suppress(AssignmentError):  # a state that all batches share allows one device alone
            check_constraints(batches.graph, batches.costs, assignment.device, name)
            found[name] = assignment
    makespans = FastSimulator(batches.graph, batches.costs, "order").makespans_of(list(found.values()))
    makespans_s = dict(zip(found, makespans.tolist(), strict=True))
    name = min(makespans_s, key=makespans_s.__getitem__)
    if not np.isfinite(makespans_s[name]):
        Simulator().execute(batches.graph, batches.costs, found[name])  # raises a DeadlockError
    names, device = batches.costs.topology.device_names, found[name].device
    chosen = replace(found[name], proven_bound_s=together.assignment.proven_bound_s)
    return Placement(chosen, {batches.graph.ids[v]: names[device[v]] for v in batches.graph.work_vertices.tolist()}, makespans_s[name],
                     together.lower_bound_s, time.perf_counter() - started, makespans_s, found, batches.graph, batches.costs)


def _steadier(graph: DataflowGraph, costs: CostModel, name: str, best: _Found, improvements: Sequence[_Found], most_s: float,
              sigma: float, seed: int) -> dict[str, _Found]:
    """Among the improvements of at most `most_s` the one with the least mean under noise, named after it; none if `best` has it."""
    near = [best, *(found for found in improvements if found[0] <= most_s)]
    means_s = noisy_means(graph, costs, [assignment for _, assignment in near], sigma, seed) if len(near) > 1 else [0.0]
    first = int(np.argmin(means_s))
    key = f"{name}, steadier"
    return {key: (near[first][0], replace(near[first][1], method=key))} if first else {}


def _by_rule(graph: DataflowGraph, costs: CostModel, name: str, assignment: Assignment) -> dict[str, _Found]:
    """The same devices under all rules but the assignment's own; under `order` in the sequence in which its own rule starts vertices."""
    ordered = by_order(graph, costs, assignment)
    found = [judge(graph, costs, [ordered], rule)[0] for rule in DISPATCH_RULES if rule != assignment.dispatch]
    keys = [f"{name}, {other.dispatch}" for _, other in found]
    return {key: (seconds, replace(other, method=key)) for key, (seconds, other) in zip(keys, found, strict=True)}


def learned_samples(graph: DataflowGraph) -> int:
    """How many assignments of a policy are worth their time where nobody says."""
    return min(LEARNED_SAMPLES, max(1, LEARNED_CHOICES // max(1, graph.work_vertices.size)))


def tried(name: str, graph: DataflowGraph, samples: int | None) -> int:
    """How many assignments a constructive method makes, or a search may simulate, without a limit in seconds; samples: as asked."""
    if name in DETERMINISTIC:
        return 1
    if name in SEARCHES:
        return samples or int(default_budget(graph).most)
    if samples is None and name == "partition":
        return min(DEFAULT_SAMPLES, max(1, _PARTITIONED // graph.num_vertices))
    return samples or DEFAULT_SAMPLES


def made(name: str, graph: DataflowGraph, samples: int | None, simulations: Sequence[int]) -> int | None:
    """How many assignments a method has made, or a search has simulated, in the mean of several runs; None if no search ended.

    Args: samples: as asked; simulations: of the runs of a search.
    """
    if name not in SEARCHES:
        return tried(name, graph, samples)
    return round(sum(simulations) / len(simulations)) if simulations else None


def _draws(name: str, graph: DataflowGraph, costs: CostModel, samples: int | None, seed: int) -> Iterator[Assignment]:
    rng = np.random.default_rng(seed)
    draw: Sampler = CriticalPath(graph, costs).sample if name == "critical_path" else lambda r: HEURISTICS[name](graph, costs, r)
    return (draw(rng) for _ in range(tried(name, graph, samples)))


def _until(deadline: float, assignments: Iterable[Assignment]) -> list[Assignment]:
    """The first, and those that are drawn in time."""
    found = []
    for assignment in assignments:
        found.append(assignment)
        if time.perf_counter() >= deadline:
            break
    return found
