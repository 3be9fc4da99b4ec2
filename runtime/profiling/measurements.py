"""What runs show of kernels and links: durations gathered, medians and fits of them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.merged_graph import Merged
from doppler_tf.schedule.trace import Trace, beside_transfers, woken
from runtime.devices import server_of
from runtime.profiling.link_fit import copy_seconds, fit_link, fit_shares

# What is known of a link, and if it leads to another machine and a kernel ran beside its transfers.
_LINE, _SHARES = ("latency_s", "s_per_byte"), ("source_share", "destination_share")
# Copies of so many bytes tell of a link's bandwidth.
_LARGE_BYTES = 1 << 20
# The kind of a logical CPU of this process, which shares tensors with the others.
_SHARING = "CPU"
# A kernel that runs beside transfers for less is not disturbed.
_DISTURBED_S = 1e-6


class Measurements:
    """Durations by kernel and kind of device, and by kind of link and size."""

    def __init__(self, devices: Sequence[str], number: np.ndarray, names: Sequence[str], known: Mapping[str, float]):
        """Args: number: of each vertex's kernel; names: of the kernels; known: figures of kernels and links by name."""
        self.runs, self._devices = 0, devices
        self._number, self._known = number, known
        self._kinds, self._alike = device_kinds(devices), distinct_links(devices)
        self._known_s = [[known.get(f"{kind}: {name}") for kind in self._kinds] for name in names]
        self._launch = f"launch among {hashlib.sha256(repr(sorted(names)).encode()).hexdigest()[:20]}"
        self._between = [server_of(devices[pairs[0][0]]) != server_of(devices[pairs[0][1]]) for pairs in self._alike]
        self._names = [f"{'message' if self._shares_tensors(i) else 'link'} {devices[pairs[0][0]]} {devices[pairs[0][1]]}"
                       for i, pairs in enumerate(self._alike)]
        self._link = {pair: i for i, pairs in enumerate(self._alike) for pair in pairs}
        self._kernel: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._first: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._beside: dict[str, list[tuple[int, float, dict[tuple[int, int], float]]]] = defaultdict(list)
        self._copy: dict[tuple[int, float], list[float]] = defaultdict(list)
        self._launch_s: dict[str, list[float]] = defaultdict(list)

    @property
    def knows_launches(self) -> bool:
        """Whether the figures of all launches were known."""
        return all(f"{kind}: {self._launch}" in self._known for kind in self._local_kinds)

    @property
    def knows_links(self) -> bool:
        """Whether the figures of all links were known."""
        return all(f"{name}: {figure}" in self._known for name in self._names for figure in _LINE)

    def add(self, graph: DataflowGraph, trace: Trace, counts: bool) -> None:
        """Takes in a run; one that does not count fills in where no other has shown anything."""
        self.runs += 1
        log, beside_s = trace.log, defaultdict(lambda: defaultdict(float))
        for s, d, side, rows, seconds in beside_transfers(log):
            if self._between[link := self._link[s, d]]:
                for row, each in zip(rows.tolist(), seconds.tolist(), strict=True):
                    if each > _DISTURBED_S:
                        beside_s[row][link, side] += each
        waited_s, messages = woken(trace)
        took_s = (log.end_s - log.start_s - waited_s).tolist()
        for row, (k, d, seconds) in enumerate(zip(self._number[log.vertex].tolist(), log.device.tolist(), took_s, strict=True)):
            key = k, self._kinds[d]
            if not counts:
                self._first[key].append(seconds)
            elif row in beside_s:
                self._beside[key[1]].append((k, seconds, beside_s[row]))
            else:
                self._kernel[key].append(seconds)
        if not counts:
            return
        for t, (tensor, s, d) in enumerate(zip(log.tensor(graph).tolist(), log.source.tolist(), log.destination.tolist(), strict=True)):
            if self._shares_tensors(self._link[s, d]):
                continue
            on = trace.device == d
            # A destination that is busy takes its copies later, and could not have used them sooner.
            busy = (on & (trace.start_s < trace.transfer_start_s[t]) & (trace.end_s > log.transfer_start_s[t])).any()
            seconds = trace.transfer_end_s[t] - trace.transfer_start_s[t] if busy else log.transfer_end_s[t] - log.transfer_start_s[t]
            self._copy[self._link[s, d], float(graph.tensor_bytes[tensor])].append(float(seconds))
        for t, seconds in messages.items():
            s, d, tensor = int(log.source[t]), int(log.destination[t]), int(log.tensor(graph)[t])
            self._copy[self._link[s, d], float(graph.tensor_bytes[tensor])].append(seconds)

    def add_copies(self) -> None:
        """Measures copies of three sizes over each link that the runs did not use for two sizes, a large one among them.

        What a link takes is kept for other graphs: small tensors alone would say anything of its bandwidth. Logical CPUs of this process
        share tensors, and a copy would say nothing of their runs.
        """
        for link, pairs in enumerate(self._alike):
            if self._shares_tensors(link):
                continue
            names, sizes = [self._devices[d] for d in pairs[0]], [size for used, size in self._copy if used == link]
            if len(sizes) < 2 or max(sizes) < _LARGE_BYTES:
                for size, seconds in copy_seconds(*names).items():
                    self._copy[link, size] += seconds

    def _shares_tensors(self, link: int) -> bool:
        return all(self._kinds[d] == _SHARING for d in self._alike[link][0])

    @property
    def kernel_s(self) -> np.ndarray:
        """float64 [K, D]: what is known, else the median of what was measured.

        If possible of runs while the device sent nothing to another machine and received nothing from one.
        """
        rows = [[self._seconds(k, d) for d in range(len(self._kinds))] for k in range(len(self._known_s))]
        return np.array(rows, np.float64).reshape(len(rows), len(self._kinds))

    def add_merged(self, merged: Merged, trace: Trace) -> None:
        """Takes in a run of larger calls: what each vertex but one saves of the time that it takes as a call of its own."""
        part_s, log = self.kernel_s[self._number], trace.log
        took_s = log.end_s - log.start_s - woken(trace)[0]
        for v, d, seconds in zip(*(x.tolist() for x in (log.vertex, log.device, took_s)), strict=True):
            parts = np.flatnonzero(merged.vertex == v)
            if parts.size > 1:
                saved_s = part_s[parts, d].sum() - seconds / merged.lone.get(v, 1.0)
                self._launch_s[self._kinds[d]] += [max(0.0, saved_s / (parts.size - 1))] * (parts.size - 1)

    @property
    def _local_kinds(self) -> list[str]:
        return [kind for name, kind in zip(self._devices, self._kinds, strict=True) if server_of(name) is None]

    def launch_s(self) -> list[float | None]:
        """By device what a vertex saves as part of a larger call; None of other machines, and where no run of such calls was taken in."""
        return [self.launch_figures().get(f"{kind}: {self._launch}") for kind in self._kinds]

    def launch_figures(self) -> dict[str, float]:
        """`launch_s` by name."""
        names = {kind: f"{kind}: {self._launch}" for kind in self._local_kinds}
        known = {name: self._known[name] for name in names.values() if name in self._known}
        return {names[kind]: float(np.median(seconds)) for kind, seconds in self._launch_s.items() if kind in names} | known

    def _seconds(self, k: int, d: int) -> float:
        key = k, self._kinds[d]
        if self._known_s[k][d]:
            return self._known_s[k][d]
        beside = () if key in self._kernel else (seconds for number, seconds, _ in self._beside.get(key[1], ()) if number == k)
        return float(np.median(self._kernel.get(key) or [*beside] or self._first[key]))

    def _shares(self) -> dict[tuple[int, int], float]:
        """By link and end (0: source, 1: destination) the part of the link's transfers that they take from the device there.

        From kernels that ran both beside transfers and beside none.
        """
        found = {}
        for kind, runs in self._beside.items():
            d = self._kinds.index(kind)
            alone_s = {k: self._seconds(k, d) for k in {k for k, _, _ in runs} if self._known_s[k][d] or (k, kind) in self._kernel}
            told = [(seconds - alone_s[k], beside_s) for k, seconds, beside_s in runs if k in alone_s]
            ends = sorted({end for _, beside_s in told for end in beside_s})
            if ends:
                beside_s = np.array([[row.get(end, 0.0) for end in ends] for _, row in told])
                found |= zip(ends, fit_shares(np.array([longer_s for longer_s, _ in told]), beside_s).tolist(), strict=True)
        return found

    def graph(self, graph: DataflowGraph) -> DataflowGraph:
        """`graph` with measured exec_s."""
        return replace(graph, exec_s=np.where(graph.is_input[:, None], np.nan, self.kernel_s[self._number]))

    def links(self) -> dict[str, np.ndarray]:
        """The matrices of links as a topology has them; links that carried nothing cost nothing."""
        matrices, figures = {figure: np.zeros((len(self._kinds),) * 2) for figure in _LINE + _SHARES}, self.link_figures()
        for name, pairs in zip(self._names, self._alike, strict=True):
            for figure, matrix in matrices.items():
                matrix[tuple(np.transpose(pairs))] = figures.get(f"{name}: {figure}", 0.0)
        with np.errstate(divide="ignore"):
            bandwidth = np.divide(1, matrices["s_per_byte"])
        shares = {figure: matrices[figure] if matrices[figure].any() else None for figure in _SHARES}
        return {"latency_s": matrices["latency_s"], "bandwidth_bytes_per_s": bandwidth, **shares}

    def link_figures(self) -> dict[str, float]:
        """By name of link latency and seconds per byte, and shares, if known or measured; of links that carried something, or are known."""
        found = {f"{self._names[i]}: {_SHARES[end]}": share for (i, end), share in self._shares().items()}
        found |= {key: self._known[key] for name in self._names for figure in _SHARES if (key := f"{name}: {figure}") in self._known}
        for i, name in enumerate(self._names):
            keys = [f"{name}: {figure}" for figure in _LINE]
            points = {size: float(np.median(seconds)) for (link, size), seconds in self._copy.items() if link == i}
            if self._known.keys() >= set(keys):
                found |= {key: self._known[key] for key in keys}
            elif points:
                latency_s, bandwidth = ((float(np.median([*points.values()])), np.inf) if self._shares_tensors(i) else
                                        fit_link(list(points), list(points.values())))
                found |= {keys[0]: latency_s, keys[1]: 1 / bandwidth}
        return found


def device_kinds(devices: Sequence[str]) -> list[str]:
    """The kind of each TensorFlow device: logical CPUs of a machine are alike, and so are GPUs where all of this one are of one make."""
    makes = {str(tf.config.experimental.get_device_details(gpu).get("device_name")) for gpu in tf.config.list_physical_devices("GPU")}
    return [f"CPU of {server}" if "CPU" in name and (server := server_of(name)) else _SHARING if "CPU" in name
            else next(iter(makes)) if len(makes) == 1 and server_of(name) is None else name for name in devices]


def distinct_links(devices: Sequence[str]) -> list[list[tuple[int, int]]]:
    """All pairs (source, destination) of different devices; those that copy alike stand together."""
    pairs = [(s, t) for s in range(len(devices)) for t in range(len(devices)) if s != t]
    of_cpu: dict[tuple[str | None, ...], list[tuple[int, int]]] = defaultdict(list)
    for pair in pairs:
        if all("CPU" in devices[d] for d in pair):
            of_cpu[tuple(server_of(devices[d]) for d in pair)].append(pair)
    return [*of_cpu.values(), *([pair] for pair in pairs if not all("CPU" in devices[d] for d in pair))]
