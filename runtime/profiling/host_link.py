"""The links of the host of this machine: measured copies from its memory to each device."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

import numpy as np

from doppler_tf.graph.topology import Host, Topology
from runtime.devices import server_of
from runtime.profiling.link_fit import copy_seconds, fit_link


def measured_host(topology: Topology, devices: Sequence[str], known: MutableMapping[str, float]) -> Host | None:
    """The host of a topology with measured links. Logical CPUs get from it what they get from each other, in the same way.

    Args:
      topology: with measured links. devices: their TensorFlow names.
      known: seconds by name, as of `Profiler.profile`; what is measured now is added.
    """
    host = topology.host
    if host is None or any(map(server_of, devices)):
        return host
    apart = ~np.eye(len(devices), dtype=bool)
    if all("CPU" in name for name in devices) and np.isfinite(topology.bandwidth_bytes_per_s[apart]).any():
        bandwidth = topology.bandwidth_bytes_per_s[apart]
        return replace(host, bandwidth_bytes_per_s=float(np.median(bandwidth[np.isfinite(bandwidth) & (bandwidth > 0)])),
                       latency_s=float(np.median(topology.latency_s[apart])), destination_share=1.0)  # its thread copies
    lines = [_line(name, known) for name in devices]
    return replace(host, bandwidth_bytes_per_s=tuple(1 / s_per_byte for _, s_per_byte in lines),
                   latency_s=float(np.median([latency_s for latency_s, _ in lines])), destination_share=float("CPU" in devices[0]))


def _line(device: str, known: MutableMapping[str, float]) -> tuple[float, float]:
    """Latency and seconds per byte of copies to a device."""
    keys = [f"link host {device}: {figure}" for figure in ("latency_s", "s_per_byte")]
    if not known.keys() >= set(keys):
        copies = copy_seconds("/device:CPU:0", device, "DeepCopy" if "CPU" in device else "Identity")
        latency_s, bandwidth = fit_link(list(copies), [float(np.median(seconds)) for seconds in copies.values()])
        known.update(zip(keys, (latency_s, max(1 / bandwidth, 1e-15)), strict=True))
    return known[keys[0]], known[keys[1]]
