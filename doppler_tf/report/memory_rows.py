"""Memory over time as all pictures of a run show it: the bytes that each device holds, beside its limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.report.tables import quantity
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.trace import Trace, memory_profiles

MOST_MEMORY_ROWS = 8
# A limit of which less is ever used is not drawn: beside it the curve would be flat.
_NEAR = 0.1


@dataclass(frozen=True)
class MemoryRow:
    """The memory of one device: `used_bytes[i]` from `time_s[i]` on. Attributes: limit_bytes: infinity without a limit."""

    name: str
    time_s: np.ndarray
    used_bytes: np.ndarray
    limit_bytes: float

    @property
    def most_bytes(self) -> float:
        """The most that is ever held."""
        return float(self.used_bytes.max())

    @property
    def is_near(self) -> bool:
        """Whether the limit is in sight. A row is then as high as it, else as the most that is ever held."""
        return self.most_bytes >= _NEAR * self.limit_bytes

    @property
    def label(self) -> str:
        """The device, the most that it ever holds, and its limit."""
        limit = f" of {quantity(self.limit_bytes, 'B')}" if np.isfinite(self.limit_bytes) else ""
        return f"{self.name}   {quantity(self.most_bytes, 'B')}{limit}"

    def until(self, end_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Corners of the curve up to the end of the run as (seconds, shares of the row's height)."""
        height = self.limit_bytes if self.is_near else self.most_bytes
        return np.append(np.repeat(self.time_s, 2)[1:], end_s), np.repeat(self.used_bytes / (height or 1.0), 2)


def memory_rows(graph: DataflowGraph, costs: CostModel, trace: Trace) -> tuple[list[MemoryRow], str]:
    """A row by device and what the rows are, in words; no rows where neither a device has a limit nor a host takes part.

    Of more than MOST_MEMORY_ROWS devices those are shown that come closest to their limits. The bytes are those of the rules of memory, in
    a real run by the dispatcher's own log, so that the most is `peak_bytes`. A trace in which a vertex is missing has no rows.
    """
    if not costs.limited_memory and costs.topology.host_device is None:
        return [], ""
    seen = trace if trace.log is None else trace.log
    device = np.full(graph.num_vertices, -1, np.int32)
    device[seen.vertex] = seen.device
    if (device[graph.work_vertices] < 0).any():
        return [], ""
    profiles = memory_profiles(graph, costs, Assignment(device), seen)
    rows = [MemoryRow(name, profile.time_s, np.maximum(profile.used_bytes, 0.0), limit)
            for name, profile, limit in zip(costs.topology.device_names, profiles, costs.memory_bytes.tolist(), strict=True)]
    what = "memory held"
    if len(rows) > MOST_MEMORY_ROWS:
        what += f", the {MOST_MEMORY_ROWS} fullest of {len(rows)} devices"
        by_share = sorted(range(len(rows)), key=lambda d: (-rows[d].most_bytes / (rows[d].limit_bytes or 1.0), -rows[d].most_bytes, d))
        rows = [rows[d] for d in sorted(by_share[:MOST_MEMORY_ROWS])]
    near = {row.is_near for row in rows if np.isfinite(row.limit_bytes)}
    line = {(True,): "; line: the limit", (False,): "; limits are over 10 times as high",
            (False, True): "; line: the limit, where over a tenth of it is held"}
    return rows, what + line.get(tuple(sorted(near)), "")
