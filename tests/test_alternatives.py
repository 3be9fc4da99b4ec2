"""Several graphs of one computation: each is placed, the better half with a search, and the fastest is first."""

from __future__ import annotations

import math

import pytest

from data import build_tilings
from doppler_tf.alternatives import place_alternatives
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, cpu, ideal


def chains(*seconds, bytes_each=1):
    """A graph of chains that share nothing, each of vertices that take so long."""
    nodes = [{"id": f"{c}.{i}", "exec_s": s, "output_bytes": bytes_each} for c, chain in enumerate(seconds) for i, s in enumerate(chain)]
    edges = [{"source": f"{c}.{i}", "target": f"{c}.{i + 1}", "transfer_s": 0.0} for c, chain in enumerate(seconds)
             for i in range(len(chain) - 1)]
    return graph_from_records(nodes, edges, {"name": "chains"})


def test_the_fastest_is_first_and_the_better_half_is_searched():
    graphs = {"whole": chains([4]), "halves": chains([2], [2]), "quarters": chains([1], [1], [1], [1]), "uneven": chains([3], [1])}
    told = []
    found = place_alternatives(graphs, ideal(2), 0.2, progress=lambda done, total: told.append((done, total)))
    # Halves and quarters both take 2 s: the graph with fewer vertices is first.
    assert {name: each.makespan_s for name, each in found.items()} == {"halves": 2, "quarters": 2, "uneven": 3, "whole": 4}
    assert list(found) == ["halves", "quarters", "uneven", "whole"]
    assert [name for name, each in found.items() if each.searched is not None] == ["halves", "quarters"]
    assert told == [(i, 6) for i in range(6)]


def test_some_are_always_searched():
    graphs = {"whole": chains([4]), "halves": chains([2], [2])}
    found = place_alternatives(graphs, ideal(2), 0.1, always=["whole"])
    assert all(each.searched is not None for each in found.values())


def test_what_fits_no_memory_is_last():
    topology = Topology.from_json({"devices": [{"name": "small", "memory_bytes": 10}], "links": {"bandwidth_bytes_per_s": 1.0}})
    found = place_alternatives({"large": chains([1], bytes_each=20), "fits": chains([3], bytes_each=5)}, topology, 0.1)
    assert list(found) == ["fits", "large"]
    assert math.isinf(found["large"].makespan_s)
    assert found["large"].constructed is None


@pytest.mark.parametrize("name", ["ffnn", "llama_block"])
def test_eindecomp_is_never_behind_the_published_tiling(name):
    found = place_alternatives(build_tilings(name, 3), cpu(3), 0.5, always=["published"])
    assert min(found[tiling].makespan_s for tiling in found if tiling.startswith("eindecomp")) < found["published"].makespan_s
    assert len(found) == 7
