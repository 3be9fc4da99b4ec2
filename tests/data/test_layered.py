"""Random layered graphs: exactly what was asked for, the same for the same seed, and of use on every topology."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data import Layered, build_workload, layered_graph, workload_program
from doppler_tf.errors import ConfigError
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import preset
from doppler_tf.placement import place

PLAIN = Layered(vertices=200, width=8, degree=2.5, skip=2, window=8, flops=1e6, output_bytes=1e3, spread=0.5)


@st.composite
def layered(draw):
    vertices, width = draw(st.integers(1, 150)), draw(st.integers(1, 20))
    shape = dataclasses.replace(PLAIN, vertices=vertices, width=width, degree=1, skip=draw(st.integers(1, 4)),
                                window=draw(st.integers(1, 30)), spread=draw(st.sampled_from([0, 0.5, 3])))
    assume(vertices > width)
    return dataclasses.replace(shape, degree=draw(st.floats(1, shape.most_edges / (vertices - width))))


@given(layered(), st.integers(0, 2**32))
def test_structure(shape, seed):
    graph = layered_graph(shape, seed)
    assert (graph.num_vertices, graph.num_edges) == (shape.vertices, round(shape.degree * (shape.vertices - shape.width)))
    layer, column = np.divmod(np.arange(shape.vertices), shape.width)
    np.testing.assert_array_equal(np.concatenate([np.full(level.size, i) for i, level in enumerate(graph.levels)]), layer)
    np.testing.assert_array_equal(graph.topological_order, np.arange(shape.vertices))
    back = layer[graph.targets] - layer[graph.sources]
    assert back.min() >= 1
    assert back.max() <= shape.skip
    aside = (column[graph.sources] - column[graph.targets] + shape.window // 2) % shape.width
    assert (aside < shape.window).all()
    unread = np.bincount(graph.sources, minlength=shape.vertices) == 0
    assert np.flatnonzero(unread).min() >= shape.vertices - shape.width  # nothing else stays in memory to the end
    assert (graph.flops >= 1).all()
    assert (graph.output_bytes >= 1).all()


def test_the_seed_decides():
    first, again, other = (layered_graph(PLAIN, seed) for seed in (1, 1, 2))
    assert first.graph_hash == again.graph_hash != other.graph_hash
    assert not np.array_equal(first.sources, other.sources)


def test_means_and_spread_of_the_costs():
    graph = layered_graph(dataclasses.replace(PLAIN, vertices=20_000))
    for values, mean in ((graph.flops, 1e6), (graph.output_bytes, 1e3)):
        assert values.mean() == pytest.approx(mean, rel=0.02)
        assert np.log(values).std() == pytest.approx(0.5, rel=0.02)
    assert abs(np.corrcoef(graph.flops, graph.output_bytes)[0, 1]) < 0.03
    alike = layered_graph(dataclasses.replace(PLAIN, spread=0))
    assert set(alike.flops) == {1e6}


def test_in_degrees_vary_and_edges_reach_all_that_they_may():
    graph = layered_graph(dataclasses.replace(PLAIN, vertices=5000, width=16))
    assert np.bincount(np.bincount(graph.targets)[16:]).size > 5
    apart = graph.targets - graph.sources
    reach = {(int(back), int(aside)) for back, aside in zip(graph.targets // 16 - graph.sources // 16, -apart % 16, strict=True)}
    assert reach == {(back, aside % 16) for back in (1, 2) for aside in range(-4, 4)}


@pytest.mark.parametrize("topology", ["p100x4", "v100x8", "h100x8", "cpu:3"])
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_preset_places_it(scale, topology):
    graph = build_workload("layered", 4, scale, vertices=300)
    costs = build_costs(graph, preset(topology))
    assert np.isfinite(place(graph, costs, "critical_path", samples=1).makespan_s)


def test_the_workload_as_others(tmp_path):
    graph = build_workload("layered", 2, "small", seed=5, vertices=70, spread=0.25)
    record = graph.attributes["workload"]
    assert (graph.name, record["name"], record["seed"]) == ("layered", "layered", 5)
    options = dict(record["options"])
    assert build_workload("layered", options.pop("num_devices"), seed=5, **options).graph_hash == graph.graph_hash
    write_graph(tmp_path / "g.json", graph)
    again = read_graph(tmp_path / "g.json")
    assert (again.graph_hash, again.attributes) == (graph.graph_hash, graph.attributes)
    with pytest.raises(ConfigError, match=r"expected one of chainmm, .* got 'layered'"):
        workload_program(record)


@pytest.mark.parametrize("vertices", [1, 16, 17])
def test_graphs_of_hardly_more_than_a_layer(vertices):
    graph = build_workload("layered", 2, vertices=vertices)
    assert (graph.num_vertices, len(graph.levels)) == (vertices, 1 + (vertices > 16))


@pytest.mark.parametrize(("options", "words"), [
    ({"layers": 3}, ["option", "vertices, width", "'layers'"]), ({"dtype_bytes": 2}, ["option", "'dtype_bytes'"]),
    ({"vertices": 0}, ["vertices", "1 to 10000000", "0"]), ({"vertices": 1e5}, ["vertices", "integer", "100000.0"]),
    ({"width": True}, ["width", "integer", "True"]), ({"skip": "2"}, ["skip", "integer", "'2'"]), ({"window": -1}, ["window", "-1"]),
    ({"degree": 0.9}, ["degree", "number from 1", "0.9"]), ({"degree": float("nan")}, ["degree", "nan"]),
    ({"degree": 9}, ["degree", "1 to 8.4", "9"]), ({"window": 1, "skip": 1}, ["degree", "1 to 1", "3.0"]),
    ({"spread": 3.5}, ["spread", "0 to 3", "3.5"]), ({"flops": 0}, ["flops", "1 to 1e+30", "0"]),
    ({"output_bytes": float("inf")}, ["output_bytes", "inf"]),
])
def test_bad_options_name_culprit_and_range(options, words):
    with pytest.raises(ConfigError) as caught:
        build_workload("layered", 8, **options)
    assert all(word in str(caught.value) for word in ["workload: layered", *words])
