"""Episodes against a slow loop in plain Python, and what pins, groups and memory forbid."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from agents.episodes.episode import DEVICE_FEATURES, candidates, device_options, finished, initial_state, padded_graphs, place_vertex
from agents.episodes.features import CLUSTER_SCALES, graph_arrays
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal


def slow_features(arrays, placed: dict[int, tuple[int, float, float]], v: int) -> dict[str, np.ndarray]:
    """The device features of vertex v by their definitions; `placed` maps vertices to (device, start, end) in units of scale_s."""
    graph, costs, scale = arrays.graph, arrays.costs, arrays.scale_s
    devices, work = costs.num_devices, graph.work_vertices
    incoming = [(e, int(np.searchsorted(work, graph.sources[e]))) for e in graph.work_edges if graph.targets[e] == work[v]]
    busy = np.array([sum(end - start for d, start, end in placed.values() if d == k) for k in range(devices)])
    free_at = np.array([max([end for d, _, end in placed.values() if d == k], default=0.0) for k in range(devices)])
    start = free_at.copy()
    for e, u in incoming:
        d, _, end = placed[u]
        start = np.maximum(start, [end + float(costs.transfer_s(e, d, k)) / scale for k in range(devices)])
    inputs = [[placed[u] for _, u in incoming if placed[u][0] == k] for k in range(devices)]
    input_exec = np.array([sum(end - begin for _, begin, end in there) for there in inputs])
    input_cost = np.array([sum(max(float(costs.transfer_s(e, k, j)) / scale for j in range(devices)) for e, u in incoming
                               if placed[u][0] == k) for k in range(devices)])
    consumers = [int(np.searchsorted(work, graph.targets[e])) for e in graph.work_edges if graph.sources[e] == work[v]]
    feeders = [int(np.searchsorted(work, graph.sources[e])) for w in consumers for e in graph.work_edges if graph.targets[e] == work[w]]
    siblings = [u for u in feeders if u != v]
    exec_s = arrays.exec_s.mean(axis=1)
    slowest = [max(float(costs.transfer_s(e, placed[u][0], k)) / scale for k in range(devices)) for e, u in incoming]
    own = exec_s[v] + max(slowest, default=0.0)

    def share(members, weights):
        total = sum(weights[u] for u in members)
        return np.array([sum(weights[u] for u in members if u in placed and placed[u][0] == k) for k in range(devices)]) / max(total, 1e-9)

    same = [np.flatnonzero(arrays.cluster[:arrays.num_work, level] == arrays.cluster[v, level]).tolist()
            for level in range(len(CLUSTER_SCALES))]
    least = start.min()
    return {
        "busy": busy - busy.min(), "input_exec": input_exec / max(input_exec.sum(), 1e-9),
        "input_first_start": np.array([min(b for _, b, _ in there) - least if there else 0.0 for there in inputs]),
        "input_last_end": np.array([max(e for _, _, e in there) - least if there else 0.0 for there in inputs]),
        "earliest_start": start - least, "fair_share": busy, "start_vs_cost": np.tanh((start - least) / own),
        "input_transfer": input_cost / max(input_cost.sum(), 1e-9), "siblings": share(siblings, np.ones(arrays.num_work)),
        "sibling_exec": share(siblings, exec_s), "cluster": share(same[0], exec_s), "half_cluster": share(same[1], exec_s),
        "quarter_cluster": share(same[2], exec_s)}


@pytest.mark.parametrize(("count", "seed", "hub"), [(14, 0, False), (14, 1, False), (14, 2, False), (24, 3, True)])
def test_whole_episodes_against_the_slow_loop(random_graph, count, seed, hub):
    graph = random_graph(count, seed, hub=hub)
    arrays = graph_arrays(graph, build_costs(graph, ideal(3)))
    encoded = padded_graphs([arrays])
    state, rng, placed = initial_state(encoded, tf.zeros([1], tf.int32)), np.random.default_rng(seed), {}
    work = graph.work_vertices
    for step in range(arrays.num_work):
        assert not finished(encoded, state)[0]
        open_vertices = np.flatnonzero(candidates(state)[0])
        needs = {v: [int(np.searchsorted(work, graph.sources[e])) for e in graph.work_edges if graph.targets[e] == work[v]]
                 for v in range(arrays.num_work)}
        expected = [v for v in needs if v not in placed and all(u in placed for u in needs[v])]
        assert open_vertices.tolist() == expected
        v, d = int(rng.choice(open_vertices)), int(rng.integers(3))
        options = device_options(encoded, state, tf.constant([v]))
        slow = slow_features(arrays, placed, v)
        for i, name in enumerate(DEVICE_FEATURES["relational"]):
            np.testing.assert_allclose(options.features[0, :, i], slow[name], atol=2e-5, err_msg=f"step {step}, {name}")
        start = float(options.start_s[0, d])
        placed[v] = (d, start, start + float(arrays.exec_s[v, d]))
        state = place_vertex(encoded, state, tf.constant([v]), tf.constant([d]), options.start_s)
    assert finished(encoded, state)[0]
    again = place_vertex(encoded, state, tf.constant([0]), tf.constant([1]), options.start_s)
    for name, before, after in zip(state._fields, state, again, strict=True):
        if name not in ("missing", "device", "group_device"):  # there the null vertex's own entry is written
            np.testing.assert_array_equal(before, after, err_msg=name)


def test_pins_and_groups_mask_devices(random_graph):
    graph = random_graph(6, 0, pin=lambda v: 2 if v == 0 else None, colocate=lambda v: "g" if v in (1, 2) else None)
    encoded = padded_graphs([graph_arrays(graph, build_costs(graph, ideal(3)))])
    state = initial_state(encoded, tf.zeros([1], tf.int32))

    def mask(v):
        return device_options(encoded, state, tf.constant([v])).mask[0].numpy().tolist()

    assert mask(0) == [False, False, True]
    assert mask(1) == mask(2) == mask(3) == [True] * 3
    state = place_vertex(encoded, state, tf.constant([1]), tf.constant([1]), tf.zeros([1, 3]))
    assert mask(2) == [False, True, False]
    assert mask(3) == [True] * 3


def test_groups_of_inputs_leave_those_of_vertices_in_force():
    nodes = [{"id": f"x{i}", "input": True, "colocate": f"a{i}"} for i in range(40)]
    nodes += [{"id": v, "exec_s": 1.0, "colocate": "z"} for v in range(3)]
    graph = graph_from_records(nodes, [{"source": f"x{i}", "target": i % 3} for i in range(40)], {"name": "grouped"})
    encoded = padded_graphs([graph_arrays(graph, build_costs(graph, ideal(2)))])
    state = initial_state(encoded, tf.zeros([1], tf.int32))
    state = place_vertex(encoded, state, tf.constant([0]), tf.constant([1]), tf.zeros([1, 2]))
    assert device_options(encoded, state, tf.constant([1])).mask[0].numpy().tolist() == [False, True]


def test_the_null_vertex_never_becomes_a_candidate(random_graph):
    encoded = padded_graphs([graph_arrays(random_graph(6, 0), build_costs(random_graph(6, 0), ideal(2)))])
    state = initial_state(encoded, tf.zeros([1], tf.int32))
    before = int(state.missing[0, -1])
    for v in range(6):
        state = place_vertex(encoded, state, tf.constant([v]), tf.constant([0]), tf.zeros([1, 2]))
    assert int(state.missing[0, -1]) == before
    assert not candidates(state).numpy().any()


def test_full_devices_are_masked_while_another_has_room(random_graph):
    graph = random_graph(6, 0)
    devices = [{"name": "a", "memory_bytes": 15}, {"name": "b", "memory_bytes": 15}]
    encoded = padded_graphs([graph_arrays(graph, build_costs(graph, Topology.from_json({"devices": devices, "link_slots": None})))])
    state = initial_state(encoded, tf.zeros([1], tf.int32))
    masks = []
    for v in range(3):
        options = device_options(encoded, state, tf.constant([v]))
        masks.append(options.mask[0].numpy().tolist())
        state = place_vertex(encoded, state, tf.constant([v]), tf.argmax(options.mask, axis=1, output_type=tf.int32), options.start_s)
    assert masks == [[True, True], [False, True], [True, True]]


def test_devices_that_cannot_run_a_vertex_or_have_no_link_are_masked():
    """`c` is reached from `b` alone. All features are numbers; where no device has the links, those that can run the vertex remain."""
    nodes = [{"id": 0, "exec_s": [1, 1, None]}, {"id": 1, "exec_s": 1}, {"id": 2, "exec_s": 1}]
    graph = graph_from_records(nodes, [{"source": 0, "target": 1, "transfer_s": 1}, {"source": 1, "target": 2, "bytes": 0}], {"name": "c"})
    topology = Topology.from_json({"devices": [{"name": name} for name in "abc"],
                                   "links": {"bandwidth_bytes_per_s": [[0, 1, None], [1, 0, 1], [None, None, 0]]}})
    encoded = padded_graphs([graph_arrays(graph, build_costs(graph, topology))])
    state, masks = initial_state(encoded, tf.zeros([1], tf.int32)), []
    for v, d in ((0, 0), (1, 2), (2, 0)):
        options = device_options(encoded, state, tf.constant([v]))
        assert np.isfinite(options.features).all()
        masks.append(options.mask[0].numpy().tolist())
        state = place_vertex(encoded, state, tf.constant([v]), tf.constant([d]), options.start_s)
    assert masks == [[True, True, False], [True, True, False], [False, False, True]]


def test_heterogeneous_devices_take_their_own_time(random_graph):
    graph = random_graph(4, 0)
    exec_s = np.repeat([[2.0, 1.0]], graph.num_vertices, axis=0) * ~graph.is_input[:, None]
    encoded = padded_graphs([graph_arrays(graph, dataclasses.replace(build_costs(graph, ideal(2)), exec_s=exec_s))])
    states = [place_vertex(encoded, initial_state(encoded, tf.zeros([1], tf.int32)), tf.constant([0]), tf.constant([d]), tf.zeros([1, 2]))
              for d in range(2)]
    assert float(states[0].busy_s[0, 0]) == pytest.approx(2 * float(states[1].busy_s[0, 1]))
