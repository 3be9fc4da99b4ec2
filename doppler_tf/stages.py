"""The stages of `place`: each takes a pool of candidates and what is asked, and adds to the pool in the time that is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from doppler_tf.errors import CostError, DeadlockError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics import CONSTRUCTIVE, DETERMINISTIC, FAST, HEURISTICS, SEARCHES, YARDSTICKS, Budget, Pool, Problem, climb
from doppler_tf.heuristics.judging import by_order, judge, judge_frugal
from doppler_tf.heuristics.pool import Candidate
from doppler_tf.heuristics.repeats.tied_search import place_tied
from doppler_tf.heuristics.search.budget import default_budget
from doppler_tf.heuristics.search.local_search import PATIENCE
from doppler_tf.heuristics.search.portfolio import search_together
from doppler_tf.heuristics.steadiness import Steadiness, noisy_means
from doppler_tf.offload.planning import best_sequence, costs_much, fastest_plan, roomy, without_limits
from doppler_tf.offload.streaming import Streaming
from doppler_tf.schedule.assignment import AUTO, DISPATCH_RULES, Assignment

Policy = Callable[[DataflowGraph, CostModel, int, int], Iterable[Assignment]]
DEFAULT_SAMPLES, LEARNED_SAMPLES, LEARNED_CHOICES = 50, 64, 1_280_000
# Above as many vertices the portfolio without a budget leaves out what takes seconds there.
_MOST_FOR_ALL = 50_000
# The most simulations, and vertices and edges in them, to improve what was constructed: a tenth of a second, as much as a tenth of the
# default budget of a search.
_IMPROVING, _IMPROVING_SIZE = 20_000, 4_000_000
# Each stage takes at most half of the seconds that are left for it and later ones: the tied search until this share of the budget, and
# after it, or without one, what constructs assignments until these: no further method begins, none makes a further assignment. So
# without a tied search each method makes one, as long as there is time.
_TIED, _AFTER_TIED, _UNTIED = 0.5, (0.75, 0.75), (1.0, 0.5)
# One assignment each, a second at most for 100,000 vertices.
_QUICK = [name for name in FAST if name in DETERMINISTIC and name not in YARDSTICKS]
# Vertices that are partitioned again and again where nobody says how often.
_PARTITIONED = 50_000


class Asked(NamedTuple):
    """What a caller of `place` asks of its stages, and when it began. Each stage ends at a share of the budget of seconds."""

    samples: int | None
    seed: int
    learned: Mapping[str, Policy]
    started_s: float
    budget_s: float | None

    def left_s(self, share: float = 1.0) -> float:
        """Seconds until this share of the budget is spent; infinity without a budget."""
        return np.inf if self.budget_s is None else max(0.0, self.started_s + share * self.budget_s - time.perf_counter())

    def part(self, share: float) -> Asked:
        """The same of a part that begins now, with this share of the seconds that are left."""
        return self._replace(started_s=time.perf_counter(), budget_s=None if self.budget_s is None else share * self.left_s())

    def budget(self, pool: Pool, share: float = 1.0) -> Budget:
        """For a search until then; without samples and a budget of seconds the default one."""
        if self.samples is None and self.budget_s is None:
            return default_budget(pool.problem.graph)
        return Budget(self.samples, None if self.budget_s is None else self.left_s(share))

    def rng(self) -> np.random.Generator:
        """A new generator."""
        return np.random.default_rng(self.seed)


def search_alone(pool: Pool, asked: Asked, method: str) -> None:
    """One search alone."""
    pool.enter(method, SEARCHES[method](pool.problem, asked.rng(), asked.budget(pool), None, pool))


def tie_repeats(pool: Pool, asked: Asked) -> None:
    """With a budget, a tied search of a graph that repeats itself, from the best of quick heuristics."""
    if asked.budget_s is None or pool.problem.repetition is None:
        return
    construct(pool, asked, _QUICK)
    if asked.left_s(_TIED) > 0:
        found = place_tied(pool.problem, asked.rng(), asked.budget(pool, _TIED), pool.members[pool.leader].assignment)
        if np.isfinite(found.makespan_s):  # its set-up depends on the few layers that it searches
            pool.enter("tied_search", found)


def construct_all(pool: Pool, asked: Asked) -> None:
    """The constructive methods of the portfolio, and all policies; with a budget, searches get the seconds that are left."""
    large = asked.budget_s is None and pool.problem.graph.num_vertices > _MOST_FOR_ALL
    construct(pool, asked, (*(FAST if large else CONSTRUCTIVE), *asked.learned), *(_AFTER_TIED if pool.members else _UNTIED))


def construct(pool: Pool, asked: Asked, names: Iterable[str], first: float = 1.0, further: float = 1.0) -> None:
    """Constructive heuristics and policies, each at least once if there is nothing else.

    Args: first, further: the shares of the budget at which no further method begins, and at which none makes a further assignment.
    """
    graph, costs = pool.problem.graph, pool.problem.costs
    for name in names:
        if name in pool.members:
            continue
        if pool.members and asked.left_s(first) <= 0:
            break
        if name in asked.learned:
            made = asked.learned[name](graph, costs, asked.samples or learned_samples(graph), asked.seed)
        else:
            made = _draws(pool.problem, name, asked)
        drawn = []
        for assignment in made:
            drawn.append(assignment)
            if asked.left_s(further) <= 0:
                break
        pool.take(name, drawn)


def _draws(problem: Problem, name: str, asked: Asked) -> Iterator[Assignment]:
    rng = asked.rng()
    return (HEURISTICS[name](problem, rng) for _ in range(tried(name, problem.graph, asked.samples)))


def mend(pool: Pool) -> None:
    """If nothing fits in memory, changes the best until it does."""
    name = pool.leader
    if not np.isfinite(pool.members[name].makespan_s):
        pool.put(name, *judge_frugal(pool.problem, pool.members[name].assignment, name not in YARDSTICKS))


def bound_by_memory(pool: Pool) -> bool:
    """Whether something that does not fit in memory would end before all that fits, if memory had no limits; or nothing fits."""
    problem, fitting_s = pool.problem, pool.members[pool.leader].makespan_s
    if not np.isfinite(fitting_s):
        return True
    free = Problem(problem.graph, without_limits(problem.costs))
    return any(free.simulator(each.assignment.dispatch).makespans_of([each.assignment])[0] < fitting_s
               for each in pool.members.values() if not np.isfinite(each.makespan_s))


def with_loads_in_mind(problem: Problem, found: Mapping[str, Candidate], search: Callable[[Problem], Pool] | None
                       ) -> dict[str, Candidate]:
    """What was found without limits, each with the seconds that it takes if inputs without room come from the host. If these are more than
    a little longer than the fastest takes without limits, what is found where all inputs come from the host joins it.

    Args: search: of such a problem; None: there is none.
    """
    estimated = dict(found)
    with contextlib.suppress(CostError):  # too few links to the host
        streaming = Streaming(problem.costs, roomy(problem))
        estimated = {name: Candidate(streaming.estimate_s(each.assignment), each.assignment) for name, each in found.items()}
        if search is not None and costs_much(*(min(each.makespan_s for each in members.values()) for members in (estimated, found))):
            streamed = {f"{name}, streamed": streaming.own(each.assignment) for name, each in search(streaming.problem).members.items()}
            estimated |= {name: Candidate(streaming.estimate_s(each), each) for name, each in streamed.items()}
    return estimated


def over_host(pool: Pool, found: Mapping[str, Candidate], asked: Asked) -> None:
    """Compiles what was found, the fastest first, so that it fits with the host, and puts it into the pool. What is expected to be slower
    than the best of the pool is left out. If the best has a plan that costs much, it is then compiled again, and in several sequences.

    Raises:
      DeadlockError: as `compile_offload`, where the pool is empty and none of them fits even so.
    """
    failed, before, graph, costs = None, {}, pool.problem.graph, pool.problem.costs
    for name, candidate in sorted(found.items(), key=lambda item: item[1].makespan_s):
        if pool.members and (candidate.makespan_s >= pool.best[0] or asked.left_s() <= 0):
            break
        try:
            pool.put(f"{name}, offloaded", *fastest_plan(graph, costs, candidate.assignment, again=0))
            before[f"{name}, offloaded"] = candidate
        except DeadlockError as error:
            failed = failed or error
    if not pool.members:
        raise failed
    name = pool.leader
    if name in before and costs_much(pool.best[0], before[name].makespan_s) and asked.left_s() > 0:
        best = min(pool.members[name], fastest_plan(graph, costs, before[name].assignment), key=lambda pair: pair[0])
        pool.put(name, *best_sequence(graph, costs, *best, before[name].makespan_s, asked.left_s))


def improve(pool: Pool, asked: Asked) -> None:
    """Searches from what is known until the budget ends. Without a budget a short climb, after a tied search where it is too short."""
    problem, (known_s, known) = pool.problem, pool.members[pool.leader]
    if asked.budget_s is not None and not pool.over:
        search_together(pool, asked.seed, asked.budget(pool))
    if asked.budget_s is not None or not np.isfinite(known_s) or pool.over:
        return
    improving = max(1, min(_IMPROVING, _IMPROVING_SIZE // problem.size))
    if improving < PATIENCE * problem.graph.num_vertices and problem.repetition is not None:
        pool.enter("tied_search", place_tied(problem, asked.rng(), asked.budget(pool), known))
    pool.enter("local_search", climb(problem, asked.rng(), Budget(min(improving, asked.samples or improving)), known, pool))


def steadiest(pool: Pool, known_s: float, seed: int) -> str:
    """Names the best member, or the steadiest of a search if it gains more under noise than it loses without.

    Args: known_s: the best makespan without searches.
    """
    name = pool.leader
    if pool.steadiest:
        steadiness = Steadiness(pool.problem, draws=20, seed=seed)
        steadiness.offer(*pool.members[name])
        for search in [member for member in pool.members if member in pool.steadiest]:
            if pool.steadiest[search].makespan_s <= known_s and steadiness.offer(*pool.steadiest[search]):
                name = f"{search}, steadier"
                pool.put(name, *pool.steadiest[search])
    return name


def under_noise(pool: Pool, sigma: float, seed: int) -> tuple[str, dict[str, float]]:
    """Names the member with the least mean under noise, and all means; none if nothing fits in memory.

    First the best one's devices under the other rules and the steadiest improvement of all join the members.
    """
    problem, name = pool.problem, pool.leader
    best = pool.members[name]
    if not np.isfinite(best.makespan_s):
        return name, {}
    if problem.dispatch == AUTO:
        ordered = by_order(problem, best.assignment)
        for rule in DISPATCH_RULES:
            if rule != best.assignment.dispatch:
                pool.put(f"{name}, {rule}", *judge(problem, [ordered], rule)[0])
    near = [best]
    for search in pool.simulations:
        near += [*pool.improvements[search], *([pool.steadiest[search]] if search in pool.steadiest else [])]
    means_s = noisy_means(problem, [candidate.assignment for candidate in near], sigma, seed) if len(near) > 1 else [0.0]
    if (first := int(np.argmin(means_s))) > 0:
        pool.put(f"{name}, steadier", *near[first])
    means_s = noisy_means(problem, [candidate.assignment for candidate in pool.members.values()], sigma, seed)
    by_member = dict(zip(pool.members, means_s, strict=True))
    return min(by_member, key=by_member.__getitem__), by_member


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
