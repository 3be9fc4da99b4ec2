"""The links of the host of this machine: measured copies from its memory to each device."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter

import numpy as np
import tensorflow as tf

from doppler_tf.graph.topology import Host, Topology
from runtime.calls import execute_on
from runtime.devices import server_of
from runtime.profiling.link_fit import COPIES, LENGTHS, fit_link

# Float32 numbers that no cache holds beside others.
_CACHES = 1 << 25


def measured_host(topology: Topology, devices: Sequence[str], known: MutableMapping[str, float]) -> Host | None:
    """The host of a topology with measured links. Logical CPUs are alike, and a copy takes a core from them.

    Args:
      devices: their TensorFlow names.
      known: seconds by name, as of `Profiler.profile`; what is measured now is added.
    """
    host = topology.host
    if host is None or any(map(server_of, devices)):
        return host
    alike = all("CPU" in name for name in devices)
    latency_s, s_per_byte = np.transpose([_line(names, known) for names in ([devices] if alike else [[name] for name in devices])])
    return replace(host, bandwidth_bytes_per_s=float(1 / s_per_byte[0]) if alike else tuple((1 / s_per_byte).tolist()),
                   latency_s=float(np.median(latency_s)), destination_share=float(alike))


def _line(devices: Sequence[str], known: MutableMapping[str, float]) -> tuple[float, float]:
    """Latency and seconds per byte of copies to each of these devices at once."""
    keys = [f"link memory {' '.join(devices)}: {figure}" for figure in ("latency_s", "s_per_byte")]
    if not known.keys() >= set(keys):
        copies = _copies(devices)
        latency_s, bandwidth = fit_link(list(copies), [float(np.median(seconds)) for seconds in copies.values()])
        known.update(zip(keys, (latency_s, max(1 / bandwidth, 1e-15)), strict=True))
    return known[keys[0]], known[keys[1]]


def _copies(devices: Sequence[str]) -> dict[float, list[float]]:
    """Seconds of copies by bytes. As in runs, no cache holds the tensors, and the other devices use the memory meanwhile."""
    def copy(device: str, tensor: tf.Tensor) -> float:
        begun_s = perf_counter()
        execute_on(device, "DeepCopy" if "CPU" in device else "Identity", [tensor], ("T", tensor.dtype.as_datatype_enum))
        return perf_counter() - begun_s

    found: dict[float, list[float]] = {}
    with ThreadPoolExecutor(len(devices)) as pool:
        for length in LENGTHS:
            for number in range(COPIES + 1):
                with tf.device("/device:CPU:0"):
                    tensors = [tf.fill([length], 1.0) for _ in devices]
                    tf.fill([_CACHES], 0.0)
                seconds = [*pool.map(copy, devices, tensors)]
                if number:  # the first one takes longer
                    found.setdefault(4.0 * length, []).extend(seconds)
    return found
