"""Tilings of the workloads, each placed with the same budget: `make bench NAME=tilings`.

The tiling that `workload --tiling auto` keeps is compared with the published one and with the better of data and tensor parallel. On 3,
6 and 16 devices, for which nothing was published, the published rules are still applied. Figures are simulated.
"""

from __future__ import annotations

import argparse
from statistics import geometric_mean

from benchmarks.tables import finish, show, timed
from data import WORKLOADS, build_tilings, eindecomp, labelled
from doppler_tf.alternatives import place_alternatives
from doppler_tf.graph.topology import Topology, p100x4, preset
from doppler_tf.placement import place

NAMES = ("chainmm", "ffnn", "llama_block", "llama_layer")
NAMED = ("data", "tensor")
LAYERS = 55  # of a stack with 2,207 expressions


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.tilings", description=__doc__.splitlines()[0])
    parser.add_argument("--budget-s", type=float, default=10.0, help="seconds of each placement (default: 10)")
    parser.add_argument("--training", action="store_true", help="of training steps with sgd")
    parser.add_argument("--workloads", default=",".join(NAMES), help=f"(default: {','.join(NAMES)})")
    parser.add_argument("--layers", type=int, default=4, help="of llama_stack (default: 4)")
    parser.add_argument("--devices", default="4,8,3,6,16", help="numbers of devices (default: 4,8,3,6,16; 4 are P100, 8 are V100)")
    args = parser.parse_args()
    rows: dict[str, dict] = {}
    for count in map(int, args.devices.split(",")):
        topology = {4: p100x4(), 8: preset("v100x8")}.get(count) or p100s(count)
        for name in args.workloads.split(","):
            row = compared(name, topology, args.budget_s, "sgd" if args.training else None, args.layers)
            rows[f"{name}, {topology.name}"] = row
            print(name, topology.name, row, flush=True)
    published = {name: row for name, row in rows.items() if name.endswith(("p100x4", "v100x8"))}
    show(f"simulated makespan, {args.budget_s:g} s each", rows)
    program = WORKLOADS["llama_stack"].program({**WORKLOADS["llama_stack"].paper, "layers": LAYERS})
    operations = labelled(program)
    seconds = {}
    for pieces in (4, 8, 12, 16):
        took_s, _ = timed(lambda pieces=pieces: eindecomp(operations, pieces))
        seconds[f"{len(operations):,} expressions, {pieces} pieces"] = {"eindecomp_s": took_s}
    show("choice of a tiling", seconds)
    over = {kind: [row[f"auto_over_{kind}"] for row in published.values()] for kind in ("published", "named")}
    finish({"cases": rows, "choice": seconds,
            **{f"worst_auto_over_{kind}": max(ratios, default=None) for kind, ratios in over.items()},
            **{f"geometric_mean_auto_over_{kind}": geometric_mean(ratios) if ratios else None for kind, ratios in over.items()}})


def compared(name: str, topology: Topology, budget_s: float, optimizer: str | None, layers: int) -> dict[str, float | str]:
    """Makespans and ratios of one workload."""
    count = topology.num_devices
    graphs = build_tilings(name, count, optimizer=optimizer, **({"layers": layers} if name == "llama_stack" else {}))
    chosen = next(iter(place_alternatives(graphs, topology, budget_s, always=["published"])))
    placed = {kind: place(graphs[kind], topology, budget_s=budget_s) for kind in dict.fromkeys(("published", *NAMED, chosen))}
    seconds = {kind: placed[chosen if kind == "auto" else kind].makespan_s for kind in ("published", *NAMED, "auto")}
    best = min(NAMED, key=seconds.__getitem__)
    return {**{f"{kind}_s": made_s for kind, made_s in seconds.items()}, "chosen": chosen,
            "auto_over_published": seconds["auto"] / seconds["published"], "auto_over_named": seconds["auto"] / seconds[best],
            "named_over_bound": seconds[best] / placed[best].lower_bound_s}


def p100s(count: int) -> Topology:
    """So many of the devices of `p100x4`, and its links."""
    made = p100x4().to_json()
    bandwidth, latency_s = made["links"]["bandwidth_bytes_per_s"][0][1], made["links"]["latency_s"][0][1]
    devices = [{**made["devices"][0], "name": f"GPU:{i}"} for i in range(count)]
    return Topology.from_json({**made, "name": f"p100x{count}", "devices": devices,
                               "links": {"bandwidth_bytes_per_s": bandwidth, "latency_s": latency_s}})


if __name__ == "__main__":
    main()
