"""How long an assignment must take at least, told without simulating; compiled."""

from __future__ import annotations

import numba
import numpy as np

from doppler_tf.fastsim.queues import edge_cost


@numba.njit(nogil=True)
def remaining(devices, p, limit_s, tail):
    """A lower bound of the makespan of `devices` (int32 [1, N]): the longest path, or the work of a device.

    Args:
      p: Prepared; limit_s: only whether the bound is larger matters.
      tail: float64 [N], filled with the least seconds from a vertex's start to the end of all that follows it, unless the bound is larger.
    """
    load = np.zeros(len(p.slots))
    bound_s = 0.0
    for j in range(len(p.topological) - 1, -1, -1):
        v = p.topological[j]
        if p.incoming[v] < 0:
            continue
        home, after_s = devices[0, v], 0.0
        for i in range(p.ptr[v], p.ptr[v + 1]):
            w = p.edges[i].vertex
            d, rest_s = devices[0, w], tail[w]
            if d != home:
                rest_s += edge_cost(p.edges[i].cost, home, d, p.latency_s, p.bandwidth)
            after_s = max(after_s, rest_s)
        tail[v] = p.exec_s[v, home] + after_s
        load[home] += p.exec_s[v, home] / p.slots[home]
        bound_s = max(bound_s, tail[v], load[home])
        if bound_s > limit_s:
            break
    return bound_s
