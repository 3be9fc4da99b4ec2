"""Tilings of the workloads, each placed with the same budget: `make bench NAME=tilings`.

The tiling that `workload --tiling auto` keeps is compared with the published one and with obvious ones: rows, columns and blocks of every
expression. On 3, 6 and 16 devices, for which nothing was published, the published rules are still applied. Figures are simulated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from statistics import geometric_mean

from benchmarks.tables import finish, show
from data import WORKLOADS, build_tilings, decompose, eindecomp, labelled
from data.tiling import Tiling
from data.workloads.workload import fitted, near_square
from doppler_tf.alternatives import place_alternatives
from doppler_tf.graph.topology import Topology, p100x4, preset
from doppler_tf.placement import place

NAMES = ("chainmm", "ffnn", "llama_block", "llama_layer")
LAYERS = 55  # of a stack with 2,207 expressions


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.tilings", description=__doc__.splitlines()[0])
    parser.add_argument("--budget-s", type=float, default=10.0, help="seconds of each placement (default: 10)")
    parser.add_argument("--devices", default="4,8,3,6,16", help="numbers of devices (default: 4,8,3,6,16; 4 are P100, 8 are V100)")
    args = parser.parse_args()
    rows: dict[str, dict] = {}
    for count in map(int, args.devices.split(",")):
        topology = {4: p100x4(), 8: preset("v100x8")}.get(count) or p100s(count)
        for name in NAMES:
            rows[f"{name}, {topology.name}"] = row = compared(name, topology, args.budget_s)
            print(name, topology.name, row, flush=True)
    published = {name: row for name, row in rows.items() if name.endswith(("p100x4", "v100x8"))}
    show(f"simulated makespan, {args.budget_s:g} s each", rows)
    program = WORKLOADS["llama_stack"].program({**WORKLOADS["llama_stack"].paper, "layers": LAYERS})
    operations = labelled(program)
    seconds = {}
    for pieces in (4, 8, 12, 16):
        started = time.perf_counter()
        eindecomp(operations, pieces)
        seconds[f"{len(operations):,} expressions, {pieces} pieces"] = {"eindecomp_s": time.perf_counter() - started}
    show("choice of a tiling", seconds)
    ratios = [row["auto_over_published"] for row in published.values()]
    finish({"cases": rows, "choice": seconds, "worst_auto_over_published": max(ratios, default=None),
            "geometric_mean_auto_over_published": geometric_mean(ratios) if ratios else None})


def compared(name: str, topology: Topology, budget_s: float) -> dict[str, float | str]:
    """Makespans and ratios of one workload."""
    count, workload = topology.num_devices, WORKLOADS[name]
    program = workload.program(workload.paper)
    graphs = build_tilings(name, count)
    chosen = next(iter(place_alternatives(graphs, topology, budget_s, always=["published"])))
    obvious = {kind: decompose(program, tiling, 2) for kind, tiling in obvious_tilings(program, count).items()}
    seconds = {kind: place(graph, topology, budget_s=budget_s).makespan_s
               for kind, graph in {"auto": graphs[chosen], "published": graphs["published"], **obvious}.items()}
    best = min(obvious, key=seconds.__getitem__)
    return {"auto_s": seconds["auto"], "published_s": seconds["published"], "obvious_s": seconds[best],
            "auto_over_published": seconds["auto"] / seconds["published"], "auto_over_obvious": seconds["auto"] / seconds[best],
            "pieces_a_device": graphs[chosen].attributes["workload"].get("tiling", {}).get("pieces", 0) // count}


def obvious_tilings(program, count: int) -> Mapping[str, Tiling]:
    """Every expression cut by its first axis, by its last, or by both."""
    a, b = near_square(count)
    ends = {e.name: (e.labels[0], e.labels[-1]) for e in program.expressions}
    tilings = {"rows": {name: {first: count} for name, (first, _) in ends.items()},
               "columns": {name: {last: count} for name, (_, last) in ends.items()},
               "blocks": {name: {first: a, last: b} if first != last else {first: count} for name, (first, last) in ends.items()}}
    turned = {e.name: e.labels[-1] for e in program.expressions if e.fn == "rotate_half"}
    return {kind: fitted(program, {name: {label: parts for label, parts in each.items() if turned.get(name) != label}
                                   for name, each in tiling.items()}) for kind, tiling in tilings.items()}


def p100s(count: int) -> Topology:
    """So many of the devices of `p100x4`, and its links."""
    made = p100x4().to_json()
    bandwidth, latency_s = made["links"]["bandwidth_bytes_per_s"][0][1], made["links"]["latency_s"][0][1]
    devices = [{**made["devices"][0], "name": f"GPU:{i}"} for i in range(count)]
    return Topology.from_json({**made, "name": f"p100x{count}", "devices": devices,
                               "links": {"bandwidth_bytes_per_s": bandwidth, "latency_s": latency_s}})


if __name__ == "__main__":
    main()
