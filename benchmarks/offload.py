"""What a plan for too little memory costs: `make bench NAME=offload`.

Simulated makespans over those without limits, on P100s (links of 12 GB/s and 10 us to the host), for limits as shares of the peak and for
the floor, where a vertex with its inputs and outputs just fits: of the assignment that was found without limits, and of what `place` finds
within them. Beside them a pager as control: it loads on demand, evicts what was used
last the longest ago, and begins with as many inputs on its devices as a plan. `--check N` also runs each plan N times under noise of 50%
and every rule, without the dispatcher's own limits, and judges the traces. `--real` instead runs plans of small models on two logical
devices of this machine (see `benchmarks.offload_real`).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np

from benchmarks.offload_real import real_rows
from benchmarks.tables import finish, show
from data import build_workload
from doppler_tf.graph.costs import CostModel, build_costs, draw_noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, p100x4
from doppler_tf.offload.compiler import ON_DEMAND
from doppler_tf.offload.planning import best_sequence, plan_offload, without_limits
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import DISPATCH_RULES, Assignment
from doppler_tf.schedule.memory import needed_bytes
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace

SHARES = (0.9, 0.6, 0.5, 0.35, 0.25)


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.offload", description=__doc__.splitlines()[0])
    parser.add_argument("--check", type=int, default=0, metavar="N", help="run each plan N times under noise (default: 0)")
    parser.add_argument("--real", action="store_true", help="measured runs of real kernels")
    parser.add_argument("--turns", type=int, default=15, help="of measured runs (default: 15)")
    args = parser.parse_args()
    if args.real:
        result = real_rows(args.turns)
        for way in ("plan", "pager"):
            other, columns = "pager" if way == "plan" else "plan", next(iter(result.values()))
            show(f"{way}: makespans measured on two logical devices", result, [c for c in columns if not c.startswith(other)])
        finish(result)
        return
    cases = {"4 Llama layers": (build_workload("llama_stack", 4, layers=4), p100x4(), SHARES),
             "the same, cut for 16": (build_workload("llama_stack", 16, tiling="eindecomp", layers=4), p100x4(), SHARES),
             "chain of 24 layers": (chain(), two(), (200e6,)), "the same, and back": (chain(backward=True), two(), (200e6,))}
    result = {}
    for name, (graph, topology, limits) in cases.items():
        result |= rows(name, graph, topology, limits, args.check)
    show("makespans over those without limits", result)
    finish(result)


def rows(name: str, graph: DataflowGraph, topology: Topology, limits: tuple[float, ...], checks: int) -> dict[str, dict]:
    """A row for each limit. Args: limits: bytes, or shares of the peak."""
    placed = place(graph, topology)
    assignment, costs, found = placed.assignment, placed.costs, {}
    peak = peak_bytes(graph, costs, assignment, Simulator().execute(graph, costs, assignment)).max()
    floor = needed_bytes(graph, costs)[graph.work_vertices].max()
    shares = [limit if limit <= 1 else limit / peak for limit in limits]
    for share in [*(share for share in shares if share * peak > floor), floor / peak]:
        short = build_costs(graph, topology.with_memory(float(np.ceil(share * peak))))
        begun_s = time.process_time()
        planned_s, planned = best_sequence(graph, short, *plan_offload(graph, short, assignment), placed.makespan_s)
        seconds = time.process_time() - begun_s
        ran = offloaded(graph, short, planned)
        sent = Simulator().execute(*ran)
        host, size = topology.num_devices, ran[1].tensor_bytes[sent.tensor(ran[0])]
        crossed = [np.bincount(end[at == host], size[at == host], host).max()
                   for end, at in ((sent.source, sent.destination), (sent.destination, sent.source))]
        found[f"{name}, {share:.0%}"] = {
            "limit_mb": share * peak / 1e6, "without_limits_s": placed.makespan_s, "planned_ratio": planned_s / placed.makespan_s,
            "placed_ratio": place(graph, short).makespan_s / placed.makespan_s,
            "on_demand_ratio": plan_offload(graph, short, assignment, ON_DEMAND)[0] / placed.makespan_s,
            "crossing_s": max(crossed) / float(np.max(topology.host.bandwidth_bytes_per_s)), "planning_s": seconds,
            **({"checked": checked(ran, checks)} if checks else {})}
    return found


def checked(ran: tuple[DataflowGraph, CostModel, Assignment], times: int) -> int:
    """How many runs were valid, work conserving and within the limits. Raises AssertionError at the first that was not."""
    graph, costs, assignment = ran
    for seed in range(times):
        noise = draw_noise(graph.num_vertices, costs.num_devices, 0.5, seed)
        for rule in DISPATCH_RULES:
            trace = Simulator(rule, noise).execute(graph, without_limits(costs), assignment)
            assert validate_trace(graph, costs, replace(assignment, dispatch=rule), trace).work_conserving
            assert (peak_bytes(graph, costs, assignment, trace) <= costs.memory_bytes).all()
    return times * len(DISPATCH_RULES)


def chain(backward: bool = False, layers: int = 24, size: int = 8164, rows: int = 1536, pieces: int = 4) -> DataflowGraph:
    """Products by weights of 133 MB (float16), 3.2 GB in all, in a row, each cut into columns; with their gradients on the way back."""
    weight, row, flops = 2 * size * size // pieces, 2 * rows * size // pieces, 2 * rows * size * size // pieces
    nodes, edges = [{"id": "x", "input": True, "output_bytes": row * pieces}], []

    def add(key: str, inputs: list[str], output: int = row) -> str:
        nodes.append({"id": key, "flops": flops, "output_bytes": output})
        edges.extend({"source": u, "target": key} for u in inputs)
        return key

    last = ["x"]
    for i in range(layers):
        nodes += [{"id": f"w{i}.{k}", "input": True, "output_bytes": weight} for k in range(pieces)]
        last = [add(f"forward {i}.{k}", [*last, f"w{i}.{k}"]) for k in range(pieces)]
    for i in reversed(range(layers)) if backward else ():
        own = [] if i == layers - 1 else [[f"forward {i}.{k}"] for k in range(pieces)]
        for k in range(pieces):  # the weight's own gradient, a result
            add(f"gradient {i}.{k}", [last[k], *(f"forward {i - 1}.{j}" for j in range(pieces) if i)], weight)
        last = [add(f"backward {i}.{k}", [*last, f"w{i}.{k}", *(own[k] if own else [])]) for k in range(pieces)]
    return graph_from_records(nodes, edges, {"name": "chain"})


def two() -> Topology:
    """Two of four P100."""
    whole = p100x4()
    return replace(whole, name="p100x2", devices=whole.devices[:2], bandwidth_bytes_per_s=whole.bandwidth_bytes_per_s[:2, :2],
                   latency_s=whole.latency_s[:2, :2])


if __name__ == "__main__":
    main()
