"""The rules of time for transfers that queue for links and for memory that may run short."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled, copy_to, inner
from doppler_tf.fastsim.queues import DEVICE, ENTRY, LANE, SHIFT, VERTEX, edge_cost, heap, pop, push, take, take_fitting, touch, wait


@inner(forceinline=True)
def _sort(touched, noted):
    """Sorts the few noted lanes without the allocation that NumPy's sort makes."""
    for i in range(1, noted):
        k, j = touched[i], i
        while j > 0 and touched[j - 1] > k:
            touched[j] = touched[j - 1]
            j -= 1
        touched[j] = k


@inner
def _unblock(lanes, link_lane, touched, noted, blocked, d):
    """After memory was freed on device d, notes its lane and the lanes of links to it if their entries did not fit before."""
    num_devices = len(blocked)
    for source in range(-1, num_devices):
        k = d if source < 0 else num_devices + link_lane[source, d]
        if lanes[k].blocked:
            lanes[k].blocked = False
            noted = touch(lanes, touched, noted, k)
    blocked[d] = False
    return noted


@compiled
def simulate(devices, prepared, limited, limit_s, tail, waited_for, begun_s):
    """Makespans of a batch.

    Args:
      devices: int32 [B, N]; prepared: Prepared.
      limited: whether memory may run short; if not, it is not tracked.
      limit_s: a simulation is abandoned when its makespan must exceed this; only for a batch of one; infinity: never.
      tail: float64 [N] if there is a limit: a lower bound on the seconds from a vertex's start to the end of everything that depends on it.
      waited_for: int32 [N + T * D + 1], or [0] to record nothing. Event v is the execution of vertex v, event N + t * D + d the transfer of
        tensor t to d. The entry of an event becomes the event whose end it waited for (-1: none), the last entry the event that ended last.
        An event that waited for memory names one that ended at that instant.
      begun_s: float64 [N], if waiting is recorded: gets the starts of vertices.

    Returns:
      float64 [B] seconds; infinity at a deadlock; for an abandoned simulation a lower bound above `limit_s`.
    """
    priority, fifo, link_slots = prepared.priority, prepared.fifo, prepared.link_slots
    link_lane, shared, shares = prepared.link_lane, prepared.shared, prepared.shares
    patience = np.iinfo(np.int64).max if limited else prepared.patience  # what fits is not always the first
    ptr, edges, incoming, in_ptr, in_tensor = prepared.ptr, prepared.edges, prepared.incoming, prepared.in_ptr, prepared.in_tensor
    exec_s, latency_s, bandwidth, factor, slots = prepared.exec_s, prepared.latency_s, prepared.bandwidth, prepared.factor, prepared.slots
    item_bytes, memory_bytes, maker = prepared.item_bytes, prepared.memory_bytes, prepared.maker
    batch, count = devices.shape
    tensor_bytes = item_bytes[count:]
    num_devices = len(slots)
    num_lanes = num_devices + prepared.num_link_lanes
    single = len(maker) == count  # one output each
    owing, owed_s = len(shares) > 0, np.zeros(num_devices)
    noisy, watched = factor.shape[0] > 1, limit_s < np.inf
    makespan, load = np.zeros(batch), np.zeros(num_devices)
    vertices, lanes = np.empty(count, VERTEX), np.empty(num_lanes, LANE)
    # An edge causes at most one transfer, so the number of edges bounds the links' queues and the transfers in flight.
    places = count + len(edges)
    queue, events = np.empty(places, ENTRY), np.empty(places + 1, ENTRY)
    touched, seen, blocked = np.empty(num_lanes, np.int64), np.empty(num_devices, np.int64), np.empty(num_devices, np.bool_)
    recording = len(waited_for) > 0
    since, freed = np.empty(len(waited_for)), np.empty(num_lanes, np.int64)
    memory_left = memory_bytes.copy()
    uses = np.empty((len(maker) if limited else 0, num_devices), np.int32)
    for b in range(batch):
        device, rank = devices[b], priority[b if len(priority) > 1 else 0]
        # Each lane gets a region of the queue, with a place for each vertex of the device or transfer of the link.
        for k in range(num_lanes):
            lanes[k].tail, lanes[k].touched, lanes[k].blocked, lanes[k].free = 0, False, False, link_slots if link_slots >= 0 else places
        for d in range(num_devices):
            lanes[d].free = slots[d]
        if limited:
            copy_to(memory_left, memory_bytes)
            uses[:] = 0
        seen[:] = -1
        left = 0
        for v in range(count):
            vertex = vertices[v]
            if incoming[v] < 0:
                vertex.device = -1
                if limited:
                    for i in range(ptr[v], ptr[v + 1]):
                        d, t = device[edges[i].vertex], edges[i].tensor
                        if uses[t, d] == 0:
                            memory_left[d] -= tensor_bytes[t]
                        uses[t, d] += 1
                continue
            home = device[v]
            vertex.key, vertex.exec_s, vertex.device, vertex.missing = rank[v], exec_s[v, home], home, incoming[v]
            vertex.first, vertex.last = ptr[v], ptr[v + 1]
            lanes[home].tail += 1
            left += 1
            if watched:
                load[home] += vertex.exec_s / slots[home]
            for i in range(vertex.first, vertex.last):
                d, t = device[edges[i].vertex], edges[i].tensor
                if limited:
                    uses[t, d] += 1
                if d != home and seen[d] != t:
                    seen[d] = t
                    lanes[num_devices + link_lane[home, d]].tail += 1
                    if limited:
                        uses[t, home] += 1
        if limited:
            for t in prepared.results:  # their last use never ends
                uses[t, device[maker[t]]] += 1
        base = 0
        for k in range(num_lanes):
            lane = lanes[k]
            lane.base, lane.head, lane.tail, base = base, base, base, base + lane.tail
        now, running, noted, moved, long = 0.0, 0, 0, 0, False
        for v in range(count):
            if incoming[v] == 0:
                d = device[v]
                if fifo:
                    vertices[v].key = now
                moved += wait(queue, lanes[d], vertices[v].key, v << SHIFT | d, long)
                noted = touch(lanes, touched, noted, d)
                if moved > patience and not long:
                    heap(queue, lanes)
                    long = True
        seen[:], blocked[:], owed_s[:] = -1, False, 0.0
        if recording:
            waited_for[:count], waited_for[-1], since[:count], freed[:] = -1, -1, 0.0, -1
        while True:
            # 1. Apply everything that ends at this instant.
            while running and events[0].key == now:
                entry = pop(events, 0, running)
                item, arrived = entry >> SHIFT, entry & DEVICE
                running -= 1
                tensor, ended = -1, item
                if owing and item < count and owed_s[arrived] > 0:
                    push(events, 0, running, now + owed_s[arrived], entry)
                    owed_s[arrived] = 0.0
                    running += 1
                    continue
                if item < count:
                    p, home, source = item, arrived, arrived
                    lanes[home].free += 1
                    noted = touch(lanes, touched, noted, home)
                    left -= 1
                    if fifo:
                        vertices[p].key = now
                else:
                    tensor = item - count
                    p, home, ended = tensor if single else maker[tensor], -1, count + tensor * num_devices + arrived
                    source = vertices[p].device
                    k = num_devices + link_lane[source, arrived]
                    lanes[k].free += 1
                    noted = touch(lanes, touched, noted, k)
                if recording:
                    freed[home if home >= 0 else k], waited_for[-1] = ended, ended
                for i in range(vertices[p].first, vertices[p].last):
                    w, t = edges[i].vertex, edges[i].tensor
                    if not single and home < 0 and t != tensor:
                        continue
                    vertex = vertices[w]
                    d = vertex.device
                    if d == arrived:
                        vertex.missing -= 1
                        if vertex.missing > 0:
                            continue
                        if fifo:
                            vertex.key = now
                        k, item, begun, key = d, w, w, vertex.key
                    elif d != home and home >= 0 and seen[d] != t:
                        seen[d] = t
                        k, item, begun = num_devices + link_lane[home, d], count + t, count + t * num_devices + d
                        key = vertices[p].key
                        if not fifo:  # the most urgent consumer there
                            key = vertex.key
                            for j in range(i + 1, vertices[p].last):
                                if edges[j].tensor != t:
                                    break
                                other = vertices[edges[j].vertex]
                                if other.device == d:
                                    key = min(key, other.key)
                    else:
                        continue
                    if recording:
                        waited_for[begun], since[begun] = ended, now
                    moved += wait(queue, lanes[k], key, item << SHIFT | d, long)
                    noted = touch(lanes, touched, noted, k)
                    if moved > patience and not long:
                        heap(queue, lanes)
                        long = True
                if limited:
                    if home < 0:
                        uses[tensor, source] -= 1
                        if uses[tensor, source] == 0:
                            memory_left[source] += tensor_bytes[tensor]
                            if blocked[source]:
                                noted = _unblock(lanes, link_lane, touched, noted, blocked, source)
                    else:
                        for i in range(in_ptr[p], in_ptr[p + 1]):
                            t = in_tensor[i]
                            uses[t, home] -= 1
                            if uses[t, home] == 0:
                                memory_left[home] += tensor_bytes[t]
                                if blocked[home]:
                                    noted = _unblock(lanes, link_lane, touched, noted, blocked, home)
            if moved > patience and not long:
                heap(queue, lanes)
                long = True
            # 2. Start everything that can start: devices by index, then links. In this order they compete for memory, and what devices owe
            # is summed, which decides its last bit.
            if limited or owing:
                _sort(touched, noted)
            for t in range(noted):
                k = touched[t]
                lane = lanes[k]
                lane.touched = False
                while lane.free:
                    if lane.head == lane.tail:
                        break
                    elif limited:
                        entry = take_fitting(queue, lane, item_bytes, memory_left)
                        item, d = entry >> SHIFT, entry & DEVICE
                        if entry < 0:
                            for i in range(lane.head, lane.tail if shared else lane.head + 1):
                                blocked[queue[i].item & DEVICE] = True
                    else:
                        entry = take(queue, lane, long)
                        item, d = entry >> SHIFT, entry & DEVICE
                    if item < 0:
                        lane.blocked = True
                        break
                    lane.free -= 1
                    memory_left[d] -= item_bytes[item]
                    if recording:
                        begun = item if k < num_devices else count + (item - count) * num_devices + d
                        if since[begun] < now:
                            waited_for[begun] = freed[k] if freed[k] >= 0 else waited_for[-1]
                    if k < num_devices:
                        if recording:
                            begun_s[item] = now
                        if watched:
                            makespan[b] = now + max(tail[item], load[k])
                            if makespan[b] > limit_s:
                                return makespan
                            load[k] -= vertices[item].exec_s / slots[k]
                        push(events, 0, running, now + vertices[item].exec_s, item << SHIFT | d)
                    else:
                        tensor = item - count
                        p = tensor if single else maker[tensor]
                        source, longest, after_s = vertices[p].device, 0.0, 0.0
                        for i in range(vertices[p].first, vertices[p].last):
                            if vertices[edges[i].vertex].device == d and (single or edges[i].tensor == tensor):
                                longest = max(longest, edge_cost(edges[i].cost, source, d, latency_s, bandwidth))
                                if watched:
                                    after_s = max(after_s, tail[edges[i].vertex])
                        if watched:
                            makespan[b] = now + longest + after_s
                            if makespan[b] > limit_s:
                                return makespan
                        if noisy:
                            longest *= factor[p, d]
                        if owing:
                            owed_s[source] += shares[0, source, d] * longest
                            owed_s[d] += shares[1, source, d] * longest
                        push(events, 0, running, now + longest, item << SHIFT | d)
                    running += 1
                freed[k] = -1
            noted = 0
            if not running:
                break
            now = events[0].key
        makespan[b] = now if left == 0 else np.inf
    return makespan
