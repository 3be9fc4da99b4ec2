"""The rules of time for links that never wait, without shares or short memory: a transfer's arrival is known when its producer ends."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.fastsim.queues import ENTRY, LANE, VERTEX, edge_cost, heap, pop, push, take, touch, wait


@compiled
def simulate(devices, prepared, limit_s, tail, waited_for, begun_s):
    """Makespans of a batch.

    Args:
      devices: int32 [B, N]; prepared: Prepared.
      limit_s: a simulation is abandoned when its makespan must exceed this; only for a batch of one; infinity: never.
      tail: float64 [N] if there is a limit: a lower bound on the seconds from a vertex's start to the end of everything that depends on it.
      waited_for: int32 [N + 1 or more], or [0] to record nothing. Entry v becomes the vertex whose end or output vertex v waited for (-1:
        none), the last entry the vertex that ended last.
      begun_s: see `queued_links.simulate`.

    Returns:
      float64 [B] seconds; for an abandoned simulation a lower bound above `limit_s`.
    """
    priority, fifo, patience = prepared.priority, prepared.fifo, prepared.patience
    ptr, edges, incoming = prepared.ptr, prepared.edges, prepared.incoming
    exec_s, latency_s, bandwidth, factor, slots = prepared.exec_s, prepared.latency_s, prepared.bandwidth, prepared.factor, prepared.slots
    batch, count = devices.shape
    num_devices = len(slots)
    single = len(prepared.maker) == devices.shape[1]  # one output each
    noisy, watched = factor.shape[0] > 1, limit_s < np.inf
    makespan, load = np.zeros(batch), np.zeros(num_devices)
    vertices, lanes, queue = np.empty(count, VERTEX), np.empty(num_devices, LANE), np.empty(count, ENTRY)
    # Event v < N: vertex v ends. Event N + v: the last input of vertex v arrives.
    events = np.empty(2 * count + 1, ENTRY)
    touched, coming, sent = np.empty(num_devices, np.int64), np.empty(count, np.int32), np.zeros(count, np.int64)
    cost_to, seen = np.zeros(num_devices), np.empty(num_devices, np.int64)
    turn = 0
    recording = len(waited_for) > 0
    since, freed = np.empty(count if recording else 0), np.empty(num_devices, np.int64)
    for b in range(batch):
        device, rank = devices[b], priority[b if len(priority) > 1 else 0]
        for d in range(num_devices):
            lanes[d].tail, lanes[d].free, lanes[d].touched = 0, slots[d], False
        left = 0
        for v in range(count):
            if incoming[v] >= 0:
                vertex = vertices[v]
                vertex.key, vertex.exec_s, vertex.device, vertex.missing = 0.0, exec_s[v, device[v]], device[v], incoming[v]
                vertex.first, vertex.last = ptr[v], ptr[v + 1]
                lanes[device[v]].tail += 1
                left += 1
                if watched:
                    load[device[v]] += vertex.exec_s / slots[device[v]]
        base = 0
        for d in range(num_devices):
            lane = lanes[d]
            lane.base, lane.head, lane.tail, base = base, base, base, base + lane.tail
        now, running, noted, moved, heaped = 0.0, 0, 0, 0, False
        for v in range(count):
            if incoming[v] == 0:
                moved += wait(queue, lanes[device[v]], now if fifo else rank[v], v, heaped)
                noted = touch(lanes, touched, noted, device[v])
                if moved > patience and not heaped:
                    heap(queue, lanes)
                    heaped = True
        seen[:] = -1
        if recording:
            waited_for[:count], waited_for[-1], since[:], freed[:] = -1, -1, 0.0, -1
        while True:
            later = 0
            turn += 1
            # 1. Apply everything that ends at this instant.
            while running and events[0].key == now:
                item = pop(events, 0, running)
                running -= 1
                if item >= count:
                    w = item - count
                    d = vertices[w].device
                    if recording:
                        since[w] = now
                    moved += wait(queue, lanes[d], now if fifo else rank[w], w, heaped)
                    noted = touch(lanes, touched, noted, d)
                else:
                    v = item
                    home = vertices[v].device
                    lanes[home].free += 1
                    noted = touch(lanes, touched, noted, home)
                    left -= 1
                    if recording:
                        freed[home], waited_for[-1] = v, v
                    first, last = vertices[v].first, vertices[v].last
                    while first < last:
                        tensor, end = edges[first].tensor, last
                        if not single:
                            end = first + 1
                            while end < last and edges[end].tensor == tensor:
                                end += 1
                        for i in range(first, end):
                            d = vertices[edges[i].vertex].device
                            if d != home:
                                cost = edge_cost(edges[i].cost, home, d, latency_s, bandwidth)
                                if seen[d] != tensor:
                                    seen[d], cost_to[d] = tensor, cost
                                elif cost > cost_to[d]:
                                    cost_to[d] = cost
                        for i in range(first, end):
                            w = edges[i].vertex
                            vertex = vertices[w]
                            d = vertex.device
                            vertex.missing -= 1
                            if d != home:
                                arrival = now + (cost_to[d] * factor[v, d] if noisy else cost_to[d])
                                if recording and arrival >= vertex.key:
                                    waited_for[w] = v
                                vertex.key = max(vertex.key, arrival)
                                # What is sent and arrives at this very instant comes only after what starts now.
                                if arrival == now:
                                    sent[w] = turn
                            elif recording and vertex.key <= now:
                                waited_for[w] = v
                            if vertex.missing == 0:
                                if vertex.key < now or (vertex.key == now and sent[w] != turn):
                                    if recording:
                                        since[w] = now
                                    moved += wait(queue, lanes[d], now if fifo else rank[w], w, heaped)
                                    noted = touch(lanes, touched, noted, d)
                                elif vertex.key > now:
                                    push(events, 0, running, vertex.key, count + w)
                                    running += 1
                                else:
                                    coming[later] = w
                                    later += 1
                        first = end
                if moved > patience and not heaped:
                    heap(queue, lanes)
                    heaped = True
            # 2. Start everything that can start.
            for t in range(noted):
                d = touched[t]
                lane = lanes[d]
                lane.touched = False
                while lane.free and lane.head < lane.tail:
                    v = take(queue, lane, heaped)
                    lane.free -= 1
                    if recording:
                        begun_s[v] = now
                        if since[v] < now:
                            waited_for[v] = freed[d]
                    if watched:
                        makespan[b] = now + max(tail[v], load[d])
                        if makespan[b] > limit_s:
                            return makespan
                        load[d] -= vertices[v].exec_s / slots[d]
                    push(events, 0, running, now + vertices[v].exec_s, v)
                    running += 1
            noted = 0
            for j in range(later):
                push(events, 0, running, now, count + coming[j])
                running += 1
            if not running:
                break
            now = events[0].key
        makespan[b] = now if left == 0 else np.inf
    return makespan
