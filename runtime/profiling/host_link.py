"""The links of the host of this machine: measured copies from its memory to each device."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import replace

import numpy as np

from doppler_tf.graph.topology import Host, Topology
from runtime.devices import server_of
from runtime.profiling.link_fit import copy_seconds, fit_link


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
    latency_s, s_per_byte = np.transpose([_line(name, known) for name in (devices[:1] if alike else devices)])
    return replace(host, bandwidth_bytes_per_s=float(1 / s_per_byte[0]) if alike else tuple((1 / s_per_byte).tolist()),
                   latency_s=float(np.median(latency_s)), destination_share=float(alike))


def _line(device: str, known: MutableMapping[str, float]) -> tuple[float, float]:
    """Latency and seconds per byte of copies to a device."""
    keys = [f"link host {device}: {figure}" for figure in ("latency_s", "s_per_byte")]
    if not known.keys() >= set(keys):
        copies = copy_seconds("/device:CPU:0", device, "DeepCopy" if "CPU" in device else "Identity")
        latency_s, bandwidth = fit_link(list(copies), [float(np.median(seconds)) for seconds in copies.values()])
        known.update(zip(keys, (latency_s, max(1 / bandwidth, 1e-15)), strict=True))
    return known[keys[0]], known[keys[1]]
