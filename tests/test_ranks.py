"""b- and t-levels against a slow recursion, and the critical path that they span."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given

from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.schedule.ranks import b_levels, t_levels
from tests.strategies import Case, cases


def edges_of(case: Case) -> list[tuple[int, int, float]]:
    """(source, target, mean transfer); what comes from inputs costs nothing."""
    graph, transfer_s = case.graph, case.costs.mean_transfer_s.tolist()
    return [(u, v, 0.0 if graph.is_input[u] else transfer_s[e])
            for e, (u, v) in enumerate(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))]


def slow_levels(case: Case) -> tuple[dict, dict]:
    """(value, next vertex) by vertex, for b and for t, by recursion over every edge. Among equal successors the first output wins."""
    exec_s, edges = case.costs.mean_exec_s.tolist(), edges_of(case)
    by_output = [edges[e] for e in np.argsort(case.graph.edge_output, kind="stable")]

    def b(v: int) -> tuple[float, int]:
        through = [(cost + b(w)[0], w) for u, w, cost in by_output if u == v]
        best, following = max(through, key=lambda pair: pair[0], default=(0.0, -1))
        return best + exec_s[v], following

    def t(v: int) -> tuple[float, int]:
        through = [(cost + t(u)[0] + exec_s[u], u) for u, w, cost in edges if w == v]
        return max(through, key=lambda pair: pair[0], default=(0.0, -1))

    vertices = range(case.graph.num_vertices)
    return {v: b(v) for v in vertices}, {v: t(v) for v in vertices}


@given(cases())
def test_levels_equal_the_recursion(case):
    slow_b, slow_t = slow_levels(case)
    for levels, slow in ((b_levels(case.graph, case.costs), slow_b), (t_levels(case.graph, case.costs), slow_t)):
        assert dict(enumerate(zip(levels.value_s.tolist(), levels.next_vertex.tolist(), strict=True))) == slow


@given(cases())
def test_the_critical_path_is_the_largest_b_plus_t_all_along(case):
    b, t = b_levels(case.graph, case.costs), t_levels(case.graph, case.costs)
    through = b.value_s + t.value_s
    assert math.isclose(through.max(), b.value_s.max(), rel_tol=1e-12)
    v = int(np.argmax(b.value_s))
    while v >= 0:
        assert math.isclose(through[v], through.max(), rel_tol=1e-12)
        v = int(b.next_vertex[v])


def test_levels_by_hand():
    """x feeds a (3 s); a feeds b (1 s, over 2 s) and c (4 s, over 0 s); both feed d (1 s). Means over two unlike devices."""
    nodes = [{"id": "x", "input": True}, {"id": "a", "exec_s": [2, 4]}, {"id": "b", "exec_s": 1}, {"id": "c", "exec_s": [4, 4]},
             {"id": "d", "exec_s": [0, 2]}]
    edges = [{"source": "x", "target": "a", "bytes": 9}, {"source": "a", "target": "b", "transfer_s": 2},
             {"source": "a", "target": "c", "transfer_s": 0}, {"source": "b", "target": "d", "bytes": 4},
             {"source": "c", "target": "d", "transfer_s": 0}]
    graph = graph_from_records(nodes, edges)
    topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}], "links": {"bandwidth_bytes_per_s": [[9, 1], [2, 9]]}})
    b, t = b_levels(graph, build_costs(graph, topology)), t_levels(graph, build_costs(graph, topology))
    assert b.value_s.tolist() == [10, 10, 5, 5, 1]  # b -> d: 4 bytes over a mean of (1/1 + 1/2) / 2 s a byte
    assert b.next_vertex.tolist() == [1, 2, 4, 4, -1]
    assert t.value_s.tolist() == [0, 0, 5, 3, 9]
    assert t.next_vertex.tolist() == [-1, 0, 1, 1, 2]


def test_levels_do_not_recurse():
    """A chain deeper than any stack."""
    count = 50_000
    graph = graph_from_records([{"id": v, "exec_s": 1} for v in range(count)],
                               [{"source": v, "target": v + 1, "transfer_s": 1} for v in range(count - 1)])
    costs = build_costs(graph, ideal(2))
    assert b_levels(graph, costs).value_s[0] == t_levels(graph, costs).value_s[-1] + 1 == 2 * count - 1
