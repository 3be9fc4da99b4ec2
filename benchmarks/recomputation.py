"""Less memory by recomputation, by offload and by both: `make bench NAME=recomputation`.

A training step of a stack of Llama layers is placed on 4 x P100 whose memory is a share of what it needs at its peak where nothing
limits it. Neither way: the step as it is, without a host. Each makespan is simulated. Beside it stands the lower bound of its graph.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.tables import finish, show
from data import build_workload
from doppler_tf.errors import DeadlockError
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.topology import Topology, p100x4
from doppler_tf.placement import Placement, place
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import peak_bytes

# Whether cheap steps are computed again, and whether tensors may be kept on the host.
WAYS = (("neither", False, "never"), ("recomputation", True, "never"), ("offload", False, "auto"), ("both", True, "auto"))


def main() -> None:
    """Prints the table and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.recomputation", description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=8, help="of llama_stack at paper scale (default: 8)")
    parser.add_argument("--tiling", default="data", help="(default: data)")
    parser.add_argument("--optimizer", default="adam", help="(default: adam)")
    parser.add_argument("--shares", default="0.8,0.65,0.5", help="of the peak (default: 0.8,0.65,0.5)")
    args = parser.parse_args()
    graphs = {recompute: build_workload("llama_stack", 4, tiling=args.tiling, optimizer=args.optimizer, recompute=recompute,
                                        layers=args.layers) for recompute in (False, True)}
    free, whole = p100x4().with_memory(None), place(graphs[False], p100x4().with_memory(None), offload="never")
    needed_bytes, rows = peak(whole), {}
    for share in (None, *map(float, args.shares.split(","))):
        topology = free if share is None else free.with_memory(float(np.ceil(share * needed_bytes)))
        for name, recompute, offload in WAYS[:2] if share is None else WAYS:
            rows[f"{'no limit' if share is None else f'{share:.0%}'}, {name}"] = row = placed(graphs[recompute], topology, offload)
            row["over_no_limit_ratio"] = row["makespan_s"] and row["makespan_s"] / whole.makespan_s
            print(share, name, row, flush=True)
    show(f"{args.layers} Llama layers with {args.optimizer}, {args.tiling}, 4 x P100, simulated", rows)
    finish({"peak_gb": needed_bytes / 1e9, "cases": rows})


def placed(graph: DataflowGraph, topology: Topology, offload: str) -> dict[str, float | str | None]:
    """One row: none of its figures where nothing was found that fits."""
    started_s = time.process_time()
    try:
        found = place(graph, topology, offload=offload)
    except DeadlockError as error:
        return {"makespan_s": None, "bound_s": None, "peak_gb": None, "placing_s": time.process_time() - started_s,
                "why": str(error)[:120]}
    return {"makespan_s": found.makespan_s, "bound_s": found.lower_bound_s, "peak_gb": peak(found) / 1e9,
            "placing_s": time.process_time() - started_s, "why": "planned" if found.assignment.offload else "as it is"}


def peak(found: Placement) -> float:
    """The most bytes on a device."""
    ran = offloaded(found.graph, found.costs, found.assignment)
    return float(peak_bytes(*ran, Simulator().execute(*ran))[:found.costs.num_devices].max())


if __name__ == "__main__":
    main()
