"""Pins by TensorFlow's device texts: which devices of a topology they mean."""

from __future__ import annotations

import pytest

from doppler_tf.errors import CostError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.device_scopes import devices_in_scope
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import cpu, ideal, p100x4
from tests.messages import assert_says, refusal

MIXED = ["cpu:0", "GPU:0", "my-gpu-7"]
CLUSTER = ["chief/CPU:0", "a:2222/GPU:0", "a:2222/GPU:1", "b:2222/GPU:0"]


@pytest.mark.parametrize(("names", "scope", "devices"), [
    (MIXED, "/GPU:0", [1]), (MIXED, "/device:GPU:1", [2]), (MIXED, "/gpu:1", [2]), (MIXED, "/CPU:0", [0]), (MIXED, "/GPU:2", []),
    (MIXED, "/device:GPU:*", [1, 2]), (MIXED, "/GPU", [1, 2]), (MIXED, "/device:*:*", [0, 1, 2]), (MIXED, "/TPU:0", []),
    (MIXED, "/job:localhost/replica:0/task:0/device:GPU:1", [2]), (MIXED, "/job:worker", [0, 1, 2]),
    (MIXED, "/job:worker/task:1/GPU:0", []), (MIXED, "/GPU:x", []), (MIXED, "/GPU:-1", []), (MIXED, "/job:worker/task:x", []),
    (["CPU:0", "CPU:1"], "/CPU:1", [1]), (["CPU:0", "CPU:1"], "/GPU:0", []), (["device:0", "a100"], "/GPU:0", []),
    (CLUSTER, "/GPU:2", [3]), (CLUSTER, "/job:worker/task:1/GPU:0", [3]), (CLUSTER, "/job:worker/task:0/GPU", [1, 2]),
    (CLUSTER, "/job:chief/task:0", [0]), (CLUSTER, "/job:localhost/replica:0/task:0/device:CPU:0", [0]),
    (CLUSTER, "/job:worker/task:2/GPU:0", []), (CLUSTER, "/job:worker/GPU:1", [2]), (CLUSTER[1:], "/job:localhost/GPU:0", [])])
def test_kind_and_number_machine_and_what_is_left_open(names, scope, devices):
    assert devices_in_scope(scope, names) == devices


def test_a_pin_permits_what_its_text_means():
    nodes = [{"id": v, "exec_s": 1, "pin": pin} for v, pin in enumerate(("/GPU:1", "/GPU", "/job:worker", 3, "GPU:2", None))]
    allowed = build_costs(graph_from_records(nodes, []), p100x4()).allowed
    assert [row.nonzero()[0].tolist() for row in allowed] == [[1], [0, 1, 2, 3], [0, 1, 2, 3], [3], [2], [0, 1, 2, 3]]


@pytest.mark.parametrize("topology", [cpu(4), ideal(2)])
def test_a_device_that_the_topology_lacks_is_named_with_its_operation(topology):
    graph = graph_from_records([{"id": 0, "exec_s": 1}, {"id": 7, "name": "tower/MatMul", "exec_s": 1, "pin": "/device:GPU:0"}], [])
    assert_says(refusal(CostError, build_costs, graph, topology, "g.json"), "g.json: vertex 7 (tower/MatMul): pin:", topology.name,
                topology.device_names[0], "got '/device:GPU:0'", "--keep-devices")
