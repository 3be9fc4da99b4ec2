"""The machine at hand as a topology: its GPUs, or as many CPU devices as this process has cores, measured."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Device, Topology
from runtime.devices import count_local_devices, prepare_devices
from runtime.profiling.profiler import Effort, Profiler

# Square products of this side take milliseconds on a core; sums of as many elements as a tensor in a larger cache has.
_SIDE, _ELEMENTS = 512, 1 << 20
_CHAIN = 4  # vertices of each sort, which hand their tensors on, so that links are used


def local_topology(progress: Callable[[int, int], None] | None = None) -> Topology:
    """Measures a topology named `local`; call it before TensorFlow's first operation of the process.

    A device's `flops_per_s` is that of a matrix product, its `mem_bytes_per_s` that of a sum of tensors, its `launch_s` what a kernel
    without work takes; links, to the host, too, are fitted to copies. All are medians of runs of one small graph.

    Args:
      progress: called with (done, total) as runs are done.
    """
    devices = prepare_devices(count_local_devices())
    names = [f"{tf.DeviceSpec.from_string(name).device_type}:{d}" for d, name in enumerate(devices)]
    bare = Topology.from_json({"name": "local", "devices": [{"name": name, "flops_per_s": 1e10} for name in names],
                               "host": {"bandwidth_bytes_per_s": 1e10}})
    graph, inputs = _probe()
    found = Profiler(devices, Effort(budget_s=20.0), progress).profile(graph, bare, inputs).costs
    sort = np.array([name.split()[0] for name in graph.names])
    product_s, sum_s, launch_s = (np.median(found.exec_s[sort == name], axis=0) for name in ("product", "sum", "nothing"))
    measured = tuple(Device(name, 2.0 * _SIDE**3 / max(product_s[d] - launch_s[d], 1e-9),
                            3.0 * 4 * _ELEMENTS / max(sum_s[d] - launch_s[d], 1e-9), launch_s[d]) for d, name in enumerate(names))
    return Topology("local", measured, found.topology.bandwidth_bytes_per_s, found.topology.latency_s,
                    shared_cores=found.topology.shared_cores, host=found.topology.host)


def _probe() -> tuple[DataflowGraph, dict[int, np.ndarray]]:
    """Chains of products, of sums and of additions of single numbers, and the tensors of their inputs."""
    rng = np.random.default_rng(0)
    sorts = {"product": ("einsum", {"subscripts": "ac,cb->ab"}, rng.random((_SIDE, _SIDE), np.float32)),
             "sum": ("map", {"fn": "add", "subscripts": "a,a->a"}, rng.random(_ELEMENTS, np.float32)),
             "nothing": ("map", {"fn": "add", "subscripts": "a,a->a"}, np.ones(1, np.float32))}
    nodes, edges, inputs = [], [], {}
    for name, (op, params, tensor) in sorts.items():
        start = len(nodes)
        inputs[start] = tensor
        nodes.append({"id": start, "name": f"{name} input", "input": True})
        for i in range(_CHAIN):
            last, v = start + i, start + i + 1
            flops = 2 * _SIDE**3 if name == "product" else tensor.size
            nodes.append({"id": v, "name": f"{name} {i}", "flops": flops, "output_bytes": tensor.nbytes,
                          "kernel": {"op": op, "params": params, "operands": [{"vertex": last}, {"vertex": start}]}})
            edges += [{"source": u, "target": v} for u in dict.fromkeys((last, start))]
    return graph_from_records(nodes, edges, {"name": "local"}), inputs
