"""Placing a graph: one method, or the portfolio of heuristics, searches and learned policies; the best by simulation wins."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from doppler_tf.assignment import Assignment, check_constraints
from doppler_tf.batches import Batches
from doppler_tf.bounds import lower_bounds
from doppler_tf.costs import CostModel, build_costs
from doppler_tf.errors import AssignmentError, ConfigError, field_error
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph import DataflowGraph
from doppler_tf.heuristics import CONSTRUCTIVE, DETERMINISTIC, FAST, HEURISTICS, SEARCHES, Budget, CriticalPath
from doppler_tf.heuristics.portfolio import search_together
from doppler_tf.heuristics.search import Found, default_budget
from doppler_tf.heuristics.starting_point import stacked_orders
from doppler_tf.simulator import Simulator
from doppler_tf.topology import Topology

Sampler = Callable[[np.random.Generator], Assignment]
Policy = Callable[[DataflowGraph, CostModel, int, int], Iterable[Assignment]]
DEFAULT_SAMPLES, LEARNED_SAMPLES, LEARNED_CHOICES = 50, 64, 1_280_000
# Above as many vertices the portfolio without a budget leaves out what takes seconds there.
_MOST_FOR_ALL = 50_000
# Vertices that are partitioned again and again where nobody says how often.
_PARTITIONED = 50_000


@dataclass(frozen=True)
class Placement:
    """The outcome of `place`.

    Attributes:
      assignment: the best found; its `method` names the winner.
      device_of: device name by vertex id (inputs left out).
      makespan_s: simulated.
      lower_bound_s: no assignment is faster than this.
      seconds: wall-clock time spent.
      makespans_s: the best by member of the portfolio; a search's may be another one's that it went on from.
      assignments: the assignments that these are of.
    """

    assignment: Assignment
    device_of: Mapping[int | str, str]
    makespan_s: float
    lower_bound_s: float
    seconds: float
    makespans_s: Mapping[str, float]
    assignments: Mapping[str, Assignment]

    @property
    def gap(self) -> float:
        """How far above the lower bound: 0.1 is 10%. 0 for a graph that takes no time at all."""
        return self.makespan_s / self.lower_bound_s - 1 if self.lower_bound_s else 0.0


def place(graph: DataflowGraph, topology: Topology | CostModel, method: str = "auto", samples: int | None = None, seed: int = 0,
          dispatch: str = "fifo", budget_s: float | None = None,
          learned: Mapping[str, Policy] | None = None) -> Placement:
    """Finds an assignment.

    Args:
      topology: where to place, or ready-made costs.
      method: a heuristic's name, a name in `learned`, or `auto`: all that construct assignments (above 50,000 vertices the fast ones)
        and all in `learned`; with a `budget_s` then annealing, hill climbing and CP-SAT for the seconds left (see `search_together`).
      samples: how many assignments each randomised method may try, the first is kept among equals; None: 50, of a policy 64, and
        fewer of a policy where a graph has more than 20,000 vertices (12 at 100,000). Of a search: how many simulations; None:
        about a second's worth, or as many as `budget_s` lets it.
      budget_s: nothing further is begun after this many seconds. A search ends sooner where it meets the lower bound.
      learned: samplers of trained policies by name: (graph, costs, samples, seed) -> assignments, the greedy one first.

    Raises:
      ConfigError: an unknown method or a bad number; a graph that is too large for the method.
      DeadlockError: every assignment found runs out of memory.
    """
    learned = learned or {}
    known = (*HEURISTICS, *learned)
    if method not in (*known, "auto"):
        raise field_error(ConfigError, "place", "", "method", f"one of auto, {', '.join(known)}", method)
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int | np.integer) or samples < 1):
        raise field_error(ConfigError, "place", "", "samples", "an integer >= 1", samples)
    if budget_s is not None and not (isinstance(budget_s, int | float) and budget_s >= 0):
        raise field_error(ConfigError, "place", "", "budget_s", "a number of seconds >= 0 or None", budget_s)
    started = time.perf_counter()
    costs = topology if isinstance(topology, CostModel) else build_costs(graph, topology)
    fast = FastSimulator(graph, costs, dispatch)
    deadline = np.inf if budget_s is None else started + budget_s
    bound_s = lower_bounds(graph, costs).best_s
    best: dict[str, tuple[float, Assignment]] = {}

    def note(name: str, found: Found) -> None:
        nonlocal bound_s
        best[name] = found.makespan_s, found.assignment
        bound_s = max(bound_s, found.lower_bound_s)

    if method in SEARCHES:
        budget = default_budget(graph) if samples is None and budget_s is None else Budget(samples, budget_s)
        note(method, SEARCHES[method](graph, costs, np.random.default_rng(seed), replace(budget, target_s=bound_s), None, dispatch))
    else:
        usual = FAST if budget_s is None and graph.num_vertices > _MOST_FOR_ALL else tuple(CONSTRUCTIVE)
        for name in (*usual, *learned) if method == "auto" else (method,):
            if best and time.perf_counter() > deadline:
                break
            if name in learned:
                found = _until(deadline, learned[name](graph, costs, samples or learned_samples(graph), seed))
            else:
                found = _until(deadline, _draws(name, graph, costs, samples, seed))
            makespans = fast.makespans(np.stack([a.device for a in found]), stacked_orders(found))
            winner = int(np.argmin(makespans))
            best[name] = float(makespans[winner]), replace(found[winner], method=name)
    if method == "auto" and budget_s is not None:
        budget = Budget(samples, max(0.0, deadline - time.perf_counter()), bound_s)
        known_s, known = min(best.values(), key=lambda pair: pair[0])
        if not budget.reached(known_s):
            for name, found in search_together(graph, costs, seed, budget, known, dispatch).items():
                note(name, found)
    for name, (_, assignment) in best.items():
        check_constraints(graph, costs, assignment.device, f"place: method {name}")
    name = min(best, key=lambda key: best[key][0])
    makespan_s, assignment = best[name]
    if not np.isfinite(makespan_s):
        Simulator(dispatch).execute(graph, costs, assignment)  # raises a DeadlockError that names what waits and for which memory
    names = costs.topology.device_names
    return Placement(assignment, {graph.ids[v]: names[assignment.device[v]] for v in graph.work_vertices.tolist()}, makespan_s, bound_s,
                     time.perf_counter() - started, {key: value for key, (value, _) in best.items()},
                     {key: found for key, (_, found) in best.items()})


def place_batches(batches: Batches, method: str = "auto", samples: int | None = None, seed: int = 0, dispatch: str = "fifo",
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
    patterns = {f"{together.assignment.method}, batches apart": batches.pattern(together.assignment),
                f"{one.assignment.method}, batches alike": [one.assignment]}
    anywhere = np.flatnonzero(batches.single_costs.allowed[batches.single.work_vertices].all(axis=0))
    whole = [np.where(batches.single.is_input, -1, d).astype(np.int32) for d in anywhere.tolist()]
    if whole:
        patterns["a device for each batch"] = [Assignment(device) for device in whole]
    found = {}
    for name, pattern in patterns.items():
        assignment = batches.assignment(pattern, dispatch, name)
        with contextlib.suppress(AssignmentError):  # a state that all batches share allows one device alone
            check_constraints(batches.graph, batches.costs, assignment.device, name)
            found[name] = assignment
    fast = FastSimulator(batches.graph, batches.costs, "order")
    makespans = fast.makespans(np.stack([a.device for a in found.values()]), np.stack([a.order for a in found.values()]))
    makespans_s = dict(zip(found, makespans.tolist(), strict=True))
    name = min(makespans_s, key=makespans_s.__getitem__)
    if not np.isfinite(makespans_s[name]):
        Simulator("order").execute(batches.graph, batches.costs, found[name])  # raises a DeadlockError
    names, device = batches.costs.topology.device_names, found[name].device
    return Placement(found[name], {batches.graph.ids[v]: names[device[v]] for v in batches.graph.work_vertices.tolist()}, makespans_s[name],
                     together.lower_bound_s, time.perf_counter() - started, makespans_s, found)


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
