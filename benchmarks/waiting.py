"""What work conservation costs: `make bench NAME=waiting`.

A work-conserving device never idles beside a ready vertex. A schedule that may wait on purpose can be shorter. CP-SAT solves small graphs
with and without this freedom. Devices are equal and links never wait. Within each model the devices and the sequence of vertices are free.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
from ortools.sat.python import cp_model

from benchmarks.tables import finish, show
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal
from doppler_tf.placement import place

SIZES, SEEDS, SECONDS = (12, 20, 30, 50), 3, 30.0


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.waiting", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"the most seconds of a solution (default: {SECONDS:g})")
    args = parser.parse_args()
    rows: dict[str, dict] = {}
    for name, graph in graphs():
        rows[name] = compared(graph, build_costs(graph, ideal(3)), args.seconds)
    show("makespans on 3 devices: the best that was found and the proven bound, with and without waiting on purpose", rows)
    finish({"waiting": rows})


def graphs() -> Iterator[tuple[str, DataflowGraph]]:
    """Random graphs in which a vertex reads one to three of the ten before it. Transfers take a third of a vertex, or as long as three."""
    for count, dear, seed in itertools.product(SIZES, (False, True), range(SEEDS)):
        rng = np.random.default_rng([count, seed])
        nodes = [{"id": v, "exec_s": int(rng.integers(1, 10))} for v in range(count)]
        longest = 30 if dear else 4
        edges = [{"source": int(u), "target": v, "transfer_s": cost} for v in range(1, count) for u, cost in zip(
            rng.choice(np.arange(max(0, v - 10), v), size=min(v, int(rng.integers(1, 4))), replace=False),
            rng.integers(0, longest, 3).tolist(), strict=False)]
        cost_of = {edge["source"]: edge["transfer_s"] for edge in edges}
        edges = [{**edge, "transfer_s": cost_of[edge["source"]]} for edge in edges]  # a tensor has one cost
        name = f"{count} vertices, {'dear' if dear else 'cheap'} transfers, seed {seed}"
        yield name, graph_from_records(nodes, edges, {"name": name})


def compared(graph: DataflowGraph, costs: CostModel, seconds: float) -> dict[str, float | bool]:
    """Makespans of one graph, and what waiting gains if both are optimal."""
    start = place(graph, costs, budget_s=min(2.0, seconds))
    waiting_s, waiting_bound_s = solved(graph, costs, start.makespan_s, seconds, conserving=False)
    conserving_s, conserving_bound_s = solved(graph, costs, start.makespan_s, seconds, conserving=True)
    proven = waiting_s == waiting_bound_s and conserving_s == conserving_bound_s
    return {"place_2s": start.makespan_s, "conserving": conserving_s, "conserving_bound": conserving_bound_s, "waiting": waiting_s,
            "waiting_bound": waiting_bound_s, "proven": proven, "gain_share": 1 - waiting_s / conserving_s if proven else float("nan")}


def solved(graph: DataflowGraph, costs: CostModel, known_s: float, seconds: float, conserving: bool) -> tuple[float, float]:
    """The least makespan that was found (infinite: none) and its proven bound."""
    model = cp_model.CpModel()
    horizon, vertices, devices = int(known_s), range(graph.num_vertices), range(costs.num_devices)
    on = [[model.new_bool_var(f"on{v},{d}") for d in devices] for v in vertices]
    start = [model.new_int_var(0, horizon, f"start{v}") for v in vertices]
    end = [start[v] + int(costs.exec_s[v, 0]) for v in vertices]
    makespan = model.new_int_var(0, horizon, "makespan")
    for v in vertices:
        model.add_exactly_one(on[v])
        model.add(end[v] <= makespan)
        for d in devices:
            if d > v:
                model.add(on[v][d] == 0)  # devices are equal
    for d in devices:
        model.add_no_overlap([model.new_optional_fixed_size_interval_var(start[v], int(costs.exec_s[v, 0]), on[v][d], f"run{v},{d}")
                              for v in vertices])
    together = _together(model, on, devices)
    arrivals: list[list] = [[] for _ in vertices]
    for e, (u, v) in enumerate(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)):
        arrivals[v].append(end[u] + int(costs.explicit_transfer_s[e]) * (1 - together[min(u, v), max(u, v)]))
        model.add(start[v] >= arrivals[v][-1])
    if conserving:
        _forbid_waiting(model, start, end, arrivals, together, horizon)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.random_seed = seconds, 0
    status = solver.solve(model)
    found = solver.objective_value if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else float("inf")
    return found, solver.best_objective_bound


def _together(model: cp_model.CpModel, on: list, devices: range) -> dict[tuple[int, int], cp_model.IntVar]:
    """By pair u < v, whether both are on one device."""
    together = {}
    for u, v in itertools.combinations(range(len(on)), 2):
        same = together[u, v] = model.new_bool_var(f"together{u},{v}")
        for d in devices:
            model.add(on[u][d] == on[v][d]).only_enforce_if(same)
            model.add_bool_or(on[u][d].negated(), on[v][d].negated(), same)
    return together


def _forbid_waiting(model: cp_model.CpModel, start: list, end: list, arrivals: list, together: dict, horizon: int) -> None:
    """Before a vertex starts, either another one has just ended on its device, or nothing that runs there from now on was ready before."""
    vertices = range(len(start))
    ready = []
    for v in vertices:
        ready.append(model.new_int_var(0, horizon, f"ready{v}"))
        model.add_max_equality(ready[v], [0, *arrivals[v]])
    for v in vertices:
        follows = model.new_bool_var(f"follows{v}")
        just_ended = []
        for w in vertices:
            if w == v:
                continue
            same = together[min(v, w), max(v, w)]
            adjacent = model.new_bool_var(f"adjacent{w},{v}")
            model.add_implication(adjacent, same)
            model.add(end[w] == start[v]).only_enforce_if(adjacent)
            just_ended.append(adjacent)
            later = model.new_bool_var(f"later{v},{w}")  # w starts after v
            model.add(start[w] >= start[v] + 1).only_enforce_if(later)
            model.add(start[w] <= start[v]).only_enforce_if(later.negated())
            model.add(ready[w] >= start[v]).only_enforce_if(follows.negated(), same, later)
        model.add_bool_or(*just_ended).only_enforce_if(follows)
        model.add(ready[v] >= start[v]).only_enforce_if(follows.negated())


if __name__ == "__main__":
    main()
