"""One assignment at a time, for compiled searches that decide by each makespan what to try next."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from doppler_tf.fastsim import free_links, queued_links
from doppler_tf.fastsim.fitting import may_run_short

_simulate_free, _simulate_queued = free_links.simulate, queued_links.simulate


class Prepared(NamedTuple):
    """What `free_links.simulate` and `queued_links.simulate` take beside the assignment, under their names.

    Attributes: topological: int32 [N], vertices; least_tail: float64 [N], no assignment has a shorter `tail`.
    """

    priority: np.ndarray
    fifo: bool
    patience: int
    patience_limited: int
    ptr: np.ndarray
    edges: np.ndarray
    incoming: np.ndarray
    exec_s: np.ndarray
    latency_s: np.ndarray
    bandwidth: np.ndarray
    factor: np.ndarray
    slots: np.ndarray
    link_slots: int
    limited: bool
    in_ptr: np.ndarray
    producer: np.ndarray
    output_bytes: np.ndarray
    memory_bytes: np.ndarray
    by_bytes: np.ndarray
    topological: np.ndarray
    least_tail: np.ndarray


@numba.njit(nogil=True, inline="always")  # else its code, which is long, would be compiled once more by itself
def makespan(devices, p, limit_s, tail, awaited):
    """Seconds that `devices` (int32 [1, N]) take, infinity where memory runs out for good; where that must be more than `limit_s`, a lower
    bound that is; p: Prepared; tail: float64 [N], awaited: int32 [N * (D + 1) + 1] or [0], see `queued_links.simulate`."""
    limited = p.limited and may_run_short(devices, p.ptr, p.edges, p.incoming, p.output_bytes, p.memory_bytes)[0]
    if limited or p.link_slots >= 0:
        patience = p.patience_limited if limited else p.patience
        return _simulate_queued(devices, p.priority, p.fifo, patience, p.ptr, p.edges, p.incoming, p.exec_s, p.latency_s, p.bandwidth,
                                p.factor, p.slots, p.link_slots, limited, p.in_ptr, p.producer, p.output_bytes, p.memory_bytes,
                                p.by_bytes, limit_s, tail, awaited)[0]
    return _simulate_free(devices, p.priority, p.fifo, p.patience, p.ptr, p.edges, p.incoming, p.exec_s, p.latency_s, p.bandwidth,
                          p.factor, p.slots, limit_s, tail, awaited)[0]
