"""Graphs of equal layers in a row."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records


def stack(layers: int, width: int = 6, seed: int = 0, constrained: bool = False, twins: bool = False) -> DataflowGraph:
    """A vertex, layers of `width` vertices and an input each, and a last vertex. The vertex j of layer i has the id "i.j".

    Every layer has the same edges inside, and the same from the layer before.

    Args: constrained: two vertices of each layer are pinned, two others are a group; twins: the vertices of a layer are alike in costs.
    """
    rng = np.random.default_rng(seed)
    exec_s = np.ones(width) if twins else 1.0 + rng.permutation(width)
    inside = [(int(u), v, float(1 + rng.integers(3))) for v in range(1, width) for u in rng.choice(v, min(v, 2), replace=False)]
    across = [(int(rng.integers(width)), v, float(1 + rng.integers(3))) for v in range(0, width, 2)]
    nodes, edges = [{"id": "first", "exec_s": 2.5, "output_bytes": 1}], []
    for i in range(layers):
        nodes.append({"id": f"{i}.in", "input": True, "output_bytes": 3})
        edges.append({"source": f"{i}.in", "target": f"{i}.0"})
        nodes += [{"id": f"{i}.{j}", "exec_s": float(exec_s[j]), "output_bytes": 2} for j in range(width)]
        if constrained:
            nodes[-1]["pin"], nodes[-2]["pin"] = 0, 1
            nodes[-3]["colocate"] = nodes[-4]["colocate"] = f"group {i}"
        edges += [{"source": f"{i}.{u}", "target": f"{i}.{v}", "transfer_s": s} for u, v, s in inside]
        edges += [{"source": f"{i - 1}.{u}" if i else "first", "target": f"{i}.{v}", "transfer_s": s} for u, v, s in across]
    nodes.append({"id": "last", "exec_s": 0.25, "output_bytes": 1})
    edges += [{"source": f"{layers - 1}.{j}", "target": "last", "transfer_s": 1.5} for j in range(width)]
    return graph_from_records(nodes, edges, {"name": "stack"})


def shuffled(graph: DataflowGraph, nodes: list, edges: list, seed: int) -> DataflowGraph:
    """The same graph with its vertices and edges in another order."""
    rng = np.random.default_rng(seed)
    return graph_from_records([nodes[i] for i in rng.permutation(len(nodes))], [edges[i] for i in rng.permutation(len(edges))],
                              {"name": graph.name})


@st.composite
def stacks(draw, constrained: bool = False) -> DataflowGraph:
    """Stacks of many shapes."""
    return stack(draw(st.integers(3, 12)), draw(st.integers(6, 12)), draw(st.integers(0, 10**6)), constrained, draw(st.booleans()))
