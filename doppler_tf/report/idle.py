"""Causes of idle time: every idle slot second has one cause."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment, plan_transfers
from doppler_tf.schedule.trace import MemoryProfile, Trace, memory_profiles
from doppler_tf.schedule.trace_tasks import trace_tasks

CAUSES = ("input", "link", "memory", "overhead", "finished")


def idle_by_cause(graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace) -> np.ndarray:
    """Idle slot seconds of every device by cause.

    At any instant each idle slot is matched with one vertex of its device that has not started. Vertices in the first of these states are
    matched first:

    - `overhead`: ready, fits, has not started (never under the virtual clock; includes waiting for barriers);
    - `memory`: ready, does not fit, or is held back until something frees memory (`Assignment.after`);
    - `link`: all producers have ended, and an input is queued or in transfer on a link;
    - `input`: a producer has not ended;
    - `finished`: no vertex is left for the slot.

    Args:
      trace: holds every vertex and transfer once.

    Returns:
      float64 [D, 5], columns as CAUSES; a row sums to slots * makespan less the device's busy slot seconds.
    """
    tasks, count = trace_tasks(graph, plan_transfers(graph, costs, assignment.device), assignment, trace), graph.num_vertices
    computed, ready = np.zeros(count), np.zeros(count)
    np.maximum.at(computed, graph.targets, tasks.end_s[graph.sources])
    np.maximum.at(ready, graph.targets, tasks.resident_s)
    let_go = ready.copy()
    if assignment.after is not None:
        held = assignment.after[assignment.after[:, 1] < count]
        np.maximum.at(let_go, held[:, 1], tasks.end_s[held[:, 0]])
    profiles = memory_profiles(graph, costs, assignment, trace) if costs.limited_memory else None
    idle = np.zeros((costs.num_devices, len(CAUSES)))
    for d, slots in enumerate(costs.slots.tolist()):
        mine = np.flatnonzero(tasks.source[:count] == d)
        start = tasks.start_s[mine]
        came = np.minimum(ready[mine], start)  # a wall clock may show it later than the start, within the tolerance
        moments = [np.minimum(computed[mine], came), came, np.minimum(let_go[mine], start), start, tasks.end_s[mine]]
        # Sizes are needed only if something may not fit.
        limit = float(costs.memory_bytes[d])
        memory = None if profiles is None or np.isinf(limit) else (profiles[d], limit, costs.output_bytes[mine])
        idle[d] = _device(moments, slots, trace.makespan_s, memory)
    return idle


def _device(moments: list[np.ndarray], slots: int, makespan_s: float,
            memory: tuple[MemoryProfile, float, np.ndarray] | None) -> np.ndarray:
    """float64 [5] by cause, from the times when each vertex of a device had its inputs computed, had them, was ready, started and
    ended."""
    extra = [memory[0].time_s] if memory is not None else []
    instants = np.unique(np.concatenate([[0.0, makespan_s], *moments, *extra]))
    instants = instants[instants <= makespan_s]
    computed, resident, ready, started, ended = (np.searchsorted(np.sort(moment), instants, side="right") for moment in moments)
    startable = ready - started if memory is None else _count_startable(moments[2], moments[3], instants, *memory)
    waiting = {"overhead": startable, "memory": resident - started - startable, "link": computed - resident,
               "input": len(moments[0]) - computed}
    idle_slots, slots_of = np.maximum(slots - (started - ended), 0), {}
    for cause, vertices in waiting.items():
        slots_of[cause] = np.minimum(idle_slots, vertices)
        idle_slots = idle_slots - slots_of[cause]
    slots_of["finished"] = idle_slots
    return np.array([slots_of[cause][:-1] @ np.diff(instants) for cause in CAUSES])


def _count_startable(ready: np.ndarray, start: np.ndarray, instants: np.ndarray, profile: MemoryProfile, limit: float,
                     size: np.ndarray) -> np.ndarray:
    """int64 [instants]: the number of vertices that are ready, have not started, and fit into the free memory."""
    used = np.append(profile.used_bytes, 0.0)[np.searchsorted(profile.time_s, instants, side="right") - 1]
    arrive, leave = np.argsort(ready), np.argsort(start)
    arrived, left = (np.searchsorted(moment[order], instants, side="right").tolist() for moment, order in ((ready, arrive), (start, leave)))
    entering, leaving = size[arrive].tolist(), size[leave].tolist()
    counts, waiting, i, j = [], [], 0, 0  # waiting: the sizes of the ready vertices, sorted
    for room, until, gone in zip((limit - used).tolist(), arrived, left, strict=True):
        for bytes_ in entering[i:until]:
            insort(waiting, bytes_)
        for bytes_ in leaving[j:gone]:
            waiting.pop(bisect_left(waiting, bytes_))
        i, j = until, gone
        counts.append(bisect_right(waiting, room))
    return np.array(counts, np.int64)
