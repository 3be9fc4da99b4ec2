"""The machine at hand as a topology: a device a core, with figures that a machine can have."""

import os

import numpy as np

from doppler_tf.graph.topology import Topology
from runtime import local_topology, prepare_devices
from runtime.profiling.host_link import measured_host
from runtime.profiling.local import count_local_devices


def test_the_machine_is_measured():
    seen = []
    found = local_topology(lambda done, total: seen.append((done, total)))
    assert count_local_devices() == len(os.sched_getaffinity(0))
    assert found.device_names == tuple(f"CPU:{d}" for d in range(count_local_devices()))
    assert found.name == "local"
    for device in found.devices:
        assert 1e8 < device.flops_per_s < 1e13
        assert 1e8 < device.mem_bytes_per_s < 1e13
        assert 1e-6 < device.launch_s < 0.1
    other = ~np.eye(found.num_devices, dtype=bool)
    assert (found.latency_s[other] < 0.1).all()
    assert (found.bandwidth_bytes_per_s[other] > 1e7).all()
    assert 1e7 < found.host.bandwidth_bytes_per_s < 1e13
    assert found.host.latency_s < 0.1
    assert found.host.destination_share == 1.0
    assert seen[-1][0] == seen[-1][1]
    assert Topology.from_json(found.to_json()).topology_hash == found.topology_hash


def test_the_host_of_a_lone_device_is_measured():
    """It has no links to other devices, of which those of the host could be taken."""
    known = {}
    bare = Topology.from_json({"devices": [{"name": "CPU"}], "host": {"bandwidth_bytes_per_s": 1.0}})
    found = measured_host(bare, prepare_devices(1), known)
    assert 1e7 < found.bandwidth_bytes_per_s < 1e15
    assert len(known) == 2
    assert measured_host(bare, prepare_devices(1), known) == found
