"""`compare`: what methods find on one graph, by simulation and, where asked for, by runs beside TensorFlow alone."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from doppler_tf.api.comparison.side_by_side import GREEDY, measure_found
from doppler_tf.api.executors import has_kernels
from doppler_tf.api.inputs import ClusterLike, load_cluster, load_costs, load_policy
from doppler_tf.errors import ConfigError, DeadlockError, field_error
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.heuristics import CONSTRUCTIVE, HEURISTICS
from doppler_tf.notes import note
from doppler_tf.offload.compiler import ON_DEMAND
from doppler_tf.offload.planning import plan_offload
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import AUTO, Assignment
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.schema import check_integer
from doppler_tf.stages import Policy, learned_samples, made

PAGER = "by a pager"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Methods side by side.

    Attributes:
      figures: what the command prints with `--json`.
      graph, costs: of what.
      assignments: the fastest of each method by simulation, with a plan for the host as `place` makes it; none of a method that ran out
        of memory.
    """

    figures: Mapping[str, Any]
    graph: DataflowGraph
    costs: CostModel
    assignments: Mapping[str, Assignment]


def compare(graph: GraphLike, topology: TopologyLike | CostModel, methods: Sequence[str] | str | None = None, *, costs: str = "given",
            policy: str | Path | None = None, samples: int | None = None, budget_s: float | None = None, seeds: int = 1,
            dispatch: str = AUTO, measure: int | None = None, cluster: ClusterLike | None = None, seed: int = 0) -> Comparison:
    """Places with each method and each seed.

    Args:
      graph, topology, costs, cluster: as of `run`.
      methods: names, or one; None: every heuristic except searches, and the policy if there is one.
      policy: a run folder or checkpoint; `policy` is shown as greedy and as best of its samples.
      samples, budget_s, dispatch: as of `place`.
      seeds: how many, from `seed` on.
      measure: also measures so many runs of everything, in turn with TensorFlow alone, the engine with barriers and TensorFlow's executor;
        where `policy` is a run folder also the assignments in it.

    Raises:
      UserError: an unknown method, options that do not go together, or a graph without kernels where runs are asked for.
    """
    methods = [methods] if isinstance(methods, str) else methods or [*CONSTRUCTIVE, *(["policy"] if policy else [])]
    for name, value, least in (("seeds", seeds, 1), ("seed", seed, 0)):
        check_integer(value, least, "compare", name)
    if "policy" in methods and policy is None:
        raise ConfigError("--methods policy: --policy: expected a run folder or checkpoint, got none; train one with `train`")
    known = (*HEURISTICS, "policy")
    unknown = next((method for method in methods if method not in known), None)
    if unknown is not None:
        raise field_error(ConfigError, "compare", "", "--methods", f"names among {', '.join(known)}", unknown)
    if cluster is not None and measure is None:
        raise ConfigError("--cluster: expected --measure N beside it, got none; only runs need the machines")
    source, (graph, costs) = graph, load_costs(graph, topology, costs)
    if measure is not None and not has_kernels(graph):
        raise ConfigError(f"--measure: expected a graph with kernels, got {graph.name} without; make the graph with `workload`, or leave "
                          f"out --measure")
    machines = load_cluster(cluster, costs.topology)  # before a policy runs TensorFlow's first operation
    sampler = load_policy(policy) if "policy" in methods else None
    rows, bound_s, best = _compared(graph, costs, methods, sampler, range(seed, seed + seeds), samples, budget_s, dispatch)
    _add_pager(graph, costs, rows, best)
    measured = None
    if measure is not None:
        file = source if isinstance(source, str | os.PathLike) else graph
        measured = measure_found(file, graph, costs, best, None if policy is None else Path(policy), measure, machines)
    figures = {"graph": graph.name, "topology": costs.topology.name, "dispatch": dispatch, "seeds": seeds,
               "lower_bound_s": bound_s, "methods": rows, "measured": measured,
               "cluster": None if machines is None else machines.spec.name}
    return Comparison(figures, graph, costs, best)


def _compared(graph: DataflowGraph, costs: CostModel, methods: Sequence[str], policy: Policy | None, seeds: Sequence[int],
              samples: int | None, budget_s: float | None, dispatch: str) -> tuple[dict[str, dict[str, Any]], float, dict[str, Assignment]]:
    """By method its figures, where a makespan is infinite if memory ran out; the largest bound; by method its fastest assignment.

    `policy` in `methods` becomes two rows, its greedy assignment and the best of its samples.
    """
    learned = {} if policy is None else {GREEDY: policy, "policy": policy}
    members = [member for method in methods for member in (learned if method == "policy" else (method,))]
    for member in ("one_device", *members):  # loads or compiles code first, so that no method's time includes it
        if member not in learned:
            with contextlib.suppress(DeadlockError):
                place(graph, costs, member, samples=1, offload="never")
    rows, best, bound_s, failed = {}, {}, lower_bounds(graph, costs).best_s, None
    for member in members:
        wanted = samples
        if member in learned:
            wanted = 1 if member == GREEDY else samples or learned_samples(graph)
        makespans_s, seconds, simulations = [], [], list[int]()
        for seed in seeds:
            started = time.perf_counter()
            try:
                placed = place(graph, costs, member, wanted, seed, dispatch, budget_s, learned)
                if placed.makespan_s < min(makespans_s, default=math.inf):
                    best[member] = placed.assignment
                makespans_s.append(placed.makespan_s)
                simulations.extend(placed.simulations.values())
                bound_s = max(bound_s, placed.lower_bound_s)
            except DeadlockError as error:
                failed = error
                makespans_s.append(math.inf)
            seconds.append(time.perf_counter() - started)
        tries = wanted if member in learned else made(member, graph, wanted, simulations)
        rows[member] = _row(tries, best.get(member), makespans_s, seconds)
    if not best:
        note(str(failed))
    return rows, bound_s, best


def _add_pager(graph: DataflowGraph, costs: CostModel, rows: dict[str, dict[str, Any]], best: dict[str, Assignment]) -> None:
    """If the fastest has a plan with a host, adds as control what loads on demand on the same devices."""
    leader = min(best, key=lambda member: rows[member]["best_makespan_s"], default=None)
    if leader is not None and best[leader].offload is not None:
        started, name = time.perf_counter(), f"{leader}, {PAGER}"
        with contextlib.suppress(DeadlockError):  # it may take more of the host
            makespan_s, best[name] = plan_offload(graph, costs, best[leader], ON_DEMAND)
            rows[name] = _row(1, best[name], [makespan_s], [time.perf_counter() - started])


def _row(tries: int | None, best: Assignment | None, makespans_s: Sequence[float], seconds: Sequence[float]) -> dict[str, Any]:
    plan = None if best is None else best.offload
    return {"samples": tries, "dispatch": None if best is None else best.dispatch, "makespan_s": mean(makespans_s),
            "best_makespan_s": min(makespans_s), "seconds": mean(seconds),
            "reloads": None if plan is None else sum(bool(load.consumers) for load in plan.loads)}
