"""Small graphs that the policies learn on, and what an episode needs of them."""

from __future__ import annotations

import numpy as np
import pytest

from agents.episodes.episode import padded_graphs
from agents.episodes.features import graph_arrays, padded_sizes
from agents.policies.networks import DualNetwork
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import ideal


@pytest.fixture(scope="session")
def chains():
    """`count` chains of three unit vertices that cost much to split: one chain a device is optimal, 3 s."""
    def make(count: int, name: str = "chains"):
        nodes = [{"id": f"{c}.{i}", "exec_s": 1.0} for i in range(3) for c in range(count)]
        edges = [{"source": f"{c}.{i}", "target": f"{c}.{i + 1}", "transfer_s": 2.0} for i in range(2) for c in range(count)]
        return graph_from_records(nodes, edges, {"name": name})
    return make


@pytest.fixture(scope="session")
def random_graph():
    """`count` vertices, two inputs before them, each with up to three earlier predecessors; costs drawn by seed.

    hub: vertex 0 feeds all others and all others feed the last one, so that these two have neighbours beyond one row.
    """
    def make(count: int, seed: int, hub: bool = False, **fields):
        rng = np.random.default_rng(seed)
        nodes = [{"id": "x", "input": True}, {"id": "y", "input": True}]
        nodes += [{"id": v, "exec_s": float(rng.uniform(0.5, 2)), "output_bytes": 10.0, **{k: f(v) for k, f in fields.items()}}
                  for v in range(count)]
        edges = [{"source": "xy"[v % 2], "target": v} for v in range(0, count, 3)]
        edges += [{"source": int(u), "target": v, "transfer_s": float(rng.uniform(0, 2))} for v in range(1, count)
                  for u in rng.choice(v, size=min(v, int(rng.integers(0, 4))), replace=False)]
        if hub:
            joined = {(e["source"], e["target"]) for e in edges}
            edges += [{"source": u, "target": v, "transfer_s": 0.1 * (u + v)} for u, v in
                      [(0, v) for v in range(1, count)] + [(u, count - 1) for u in range(1, count - 1)] if (u, v) not in joined]
        return graph_from_records(nodes, edges, {"name": f"random{seed}"})
    return make


@pytest.fixture(scope="session")
def learning():
    """(graphs, devices) -> arrays by graph, their batch and a small network."""
    def make(graphs, devices: int = 3, features: str = "relational"):
        sizes = padded_sizes(graphs)
        arrays = [graph_arrays(g, build_costs(g, ideal(devices)), sizes) for g in graphs]
        return arrays, padded_graphs(arrays), DualNetwork(hidden=16, rounds=1, features=features, seed=1)
    return make
