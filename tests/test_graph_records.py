"""Records of large and of cyclic graphs."""

from __future__ import annotations

import gc
import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler_tf.errors import GraphError
from doppler_tf.graph.records import graph_from_records


def nodes(count):
    return [{"id": v, "exec_s": 1} for v in range(count)]


def edges(pairs):
    return [{"source": u, "target": v} for u, v in pairs]


@given(st.integers(1, 8).flatmap(lambda n: st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=3 * n)))
def test_a_cycle_is_named_where_there_is_one_and_only_there(pairs):
    try:
        graph = graph_from_records(nodes(8), edges(sorted(pairs)))
    except GraphError as error:
        path = [int(v) for v in re.search(r"expected no cycle, got (.*); remove", str(error)).group(1).split(" -> ")]
        assert path[0] == path[-1] == min(path)
        assert len(set(path)) == len(path) - 1
        assert set(itertools.pairwise(path)) <= pairs
    else:
        assert sum(level.size for level in graph.levels) == 8


def test_a_cycle_that_most_of_a_large_graph_does_not_reach():
    """Many starts before one long tail: a search from each start would walk the tail each time."""
    count = 20_000
    pairs = [*((v, count) for v in range(count)), *((v, v + 1) for v in range(count, 2 * count)), (2 * count + 1, 2 * count + 2),
             (2 * count + 2, 2 * count + 1)]
    with pytest.raises(GraphError, match="got 40001 -> 40002 -> 40001; remove"):
        graph_from_records(nodes(2 * count + 3), edges(pairs))


def test_a_deep_chain():
    graph = graph_from_records(nodes(20_000), edges((v, v + 1) for v in range(19_999)))
    assert len(graph.levels) == 20_000


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_left_as_it_was(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        graph_from_records(nodes(1), [])
        assert gc.isenabled() == enabled
        with pytest.raises(GraphError):
            graph_from_records([], [])
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
