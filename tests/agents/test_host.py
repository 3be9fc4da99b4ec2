"""Training where tensors do not fit in memory and a host takes them."""

from __future__ import annotations

import numpy as np
import pytest

from agents.config import TrainConfig
from agents.training.task import Task
from doppler_tf.errors import DeadlockError
from doppler_tf.formats.assignment_json import read_assignment
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.simulator import simulate
from tests.quiet_training import train

SMALL = TrainConfig(imitation=0, simulated=480, polish=0, batch=16, hidden=16, rounds=1, checkpoint_every=7)


def topology(memory_bytes: float, host: bool = True) -> Topology:
    """Two devices; a byte takes a tenth of a second to or from the host."""
    more = {"host": {"bandwidth_bytes_per_s": 10.0, "latency_s": 0.0}} if host else {}
    return Topology.from_json({"devices": [{"name": name, "memory_bytes": memory_bytes} for name in "ab"], "link_slots": 1, **more})


def kept_long():
    """Two chains of seven. The tensors of their first two vertices are also used by the last two; 40 bytes are there in the middle."""
    edges = [*((i, i + 1) for i in range(6)), (0, 5), (1, 6)]
    return graph_from_records([{"id": f"{c}.{i}", "exec_s": 1.0, "output_bytes": 10} for c in range(2) for i in range(7)],
                              [{"source": f"{c}.{i}", "target": f"{c}.{j}", "transfer_s": 2.0} for c in range(2) for i, j in edges],
                              {"name": "kept"})


def test_it_learns_without_limits_and_what_is_written_has_a_plan(tmp_path):
    graph, devices = kept_long(), topology(35)
    found = train([graph], devices, tmp_path, SMALL)["kept"]
    costs = build_costs(graph, devices)
    assignment = read_assignment(tmp_path / "assignments" / "kept.json", graph, costs)
    assert assignment.offload is not None
    trace = simulate(graph, costs, assignment)
    assert trace.makespan_s == found["best_makespan_s"]
    assert found["greedy_makespan_s"] >= found["best_makespan_s"] >= found["lower_bound_s"] == 7.0
    assert found["best_makespan_s"] < 14.0  # of one device


def test_only_what_may_run_short_is_learned_without_limits():
    graph = kept_long()
    for memory, config, same in ((1_000, SMALL, True), (35, SMALL, False), (35, TrainConfig(real=4), True)):
        costs = build_costs(graph, topology(memory))
        task = Task.of([graph], [costs], config)
        assert task.given == (costs,)
        assert (task.costs[0] is costs) == same
        assert np.isinf(task.costs[0].memory_bytes).all() != same
    no_host = build_costs(graph, topology(35, host=False))
    assert Task.of([graph], [no_host], SMALL).costs == (no_host,)


def test_a_vertex_larger_than_all_devices_is_said_at_once(tmp_path):
    with pytest.raises(DeadlockError, match=r"alone needs 30 bytes .* no device has more than 20 bytes"):
        train([kept_long()], topology(20), tmp_path, SMALL)
