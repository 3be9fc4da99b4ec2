"""The rules of time (docs/architecture.md) once more, as slowly and literally as possible: at each instant, look at everything."""

from __future__ import annotations

import itertools
import math

import numpy as np

from doppler_tf.graph.costs import CostModel, Noise
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.ranks import b_levels


class NaiveSimulator:
    """No queues, no counters: `started` and `ended` by event.

    An event is ("run", v, device) or ("send", producer, destination, output).
    """

    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, rule: str, noise: Noise | None):
        self.graph, self.costs, self.noise = graph, costs, noise
        self.device = assignment.device.tolist()
        self.edges = list(enumerate(zip(graph.sources.tolist(), graph.targets.tolist(), graph.edge_output.tolist(), strict=True)))
        self.outputs = np.diff(graph.tensor_ptr).tolist()
        self.runs = [("run", v, self.device[v]) for v in graph.work_vertices.tolist()]
        self.sends = sorted({("send", u, self.device[v], k) for _, (u, v, k) in self.edges
                             if not graph.is_input[u] and self.device[u] != self.device[v]})
        numbered = {**{e[1]: e for e in self.runs}, **{graph.num_vertices + i: e for i, e in enumerate(
            sorted(self.sends, key=lambda e: (e[1], e[3], e[2])))}}
        self.after = [(numbered[a], numbered[b]) for a, b in ([] if assignment.after is None else assignment.after.tolist())]
        self.since: dict[tuple, float] = {}
        self.started: dict[tuple, float] = {}
        self.ended: dict[tuple, float] = {}
        self.owed_s = [0.0] * costs.num_devices
        self.priority = None
        if rule == "b_level":
            self.priority = (-b_levels(graph, costs).value_s).tolist()
        elif rule == "order":
            self.priority = {v: i for i, v in enumerate(assignment.order.tolist())} if assignment.priority is None else (
                assignment.priority.tolist())

    def makespan_s(self) -> float:
        """Infinity when memory runs out for good."""
        now, finish = 0.0, {}
        while len(self.ended) < len(self.runs) + len(self.sends):
            for event in sorted(event for event, end in finish.items() if end == now and event not in self.ended):
                finish[event] = now + self.paid(event)
                if finish[event] == now:
                    self.ended[event] = now
            for event in (*self.runs, *self.sends):
                if self.queued(event):
                    self.since.setdefault(event, now)
            for lane, slots in self.lanes():
                while self.running(lane) < slots and (fitting := [e for e in lane if self.queued(e) and self.fits(e)]):
                    event = min(fitting, key=self.key)
                    self.started[event] = now
                    finish[event] = now + self.duration(event)
                    self.owe(event)
            pending = [end for event, end in finish.items() if event not in self.ended]
            if not pending and len(self.ended) < len(self.runs) + len(self.sends):
                return math.inf
            now = min(pending, default=now)
        return now

    def lanes(self):
        """(events that share slots, slots): devices by index, then links by index, with those of the same card."""
        count, link_slots = self.costs.num_devices, self.costs.topology.link_slots
        for d in range(count):
            yield [e for e in self.runs if e[2] == d], self.costs.topology.devices[d].slots
        card, done = self.costs.topology.card, set()
        for source, destination in itertools.product(range(count), repeat=2):
            number = -1 if card is None else int(card[source, destination])
            if number >= 0 and number in done:
                continue
            done.add(number)
            lane = [e for e in self.sends if (self.device[e[1]], e[2]) == (source, destination)
                    or (number >= 0 and card[self.device[e[1]], e[2]] == number)]
            yield lane, math.inf if link_slots is None else link_slots

    def queued(self, event: tuple) -> bool:
        """Whether it waits for nothing but a slot and memory."""
        kind, v, d = event[:3]
        if event in self.started or any(then == event and first not in self.ended for first, then in self.after):
            return False
        if kind == "send":
            return ("run", v, self.device[v]) in self.ended
        return all(self.graph.is_input[u] or self.maker(u, d, k) in self.ended for _, (u, w, k) in self.edges if w == v)

    def maker(self, u: int, d: int, k: int) -> tuple:
        """The event that brings output k of u to d."""
        return ("run", u, d) if self.device[u] == d else ("send", u, d, k)

    def running(self, lane: list) -> int:
        return sum(e in self.started and e not in self.ended for e in lane)

    def key(self, event: tuple) -> tuple:
        """Transfers by (producer's end, producer, output, destination), vertices by (ready since, index); or by the rule's priority, which
        for transfers is the smallest among their consumers."""
        return (self.since[event] if self.priority is None else self.urgency(event), event[1], *event[3:], event[2])

    def urgency(self, event: tuple) -> float:
        if event[0] == "run":
            return self.priority[event[1]]
        _, producer, destination, output = event
        return min(self.priority[w] for _, (u, w, k) in self.edges if (u, k) == (producer, output) and self.device[w] == destination)

    def size(self, u: int, k: int) -> float:
        """Bytes of output k of u."""
        return self.costs.tensor_bytes[self.graph.tensor_ptr[u] + k]

    def fits(self, event: tuple) -> bool:
        limit, v = self.costs.topology.devices[event[2]].memory_bytes, event[1]
        needed = self.size(v, event[3]) if event[0] == "send" else sum(self.size(v, k) for k in range(self.outputs[v]))
        return limit is None or self.used(event[2]) + needed <= limit

    def used(self, d: int) -> float:
        """Bytes on device d: outputs and copies from their start, inputs from time 0, each until its last use there has ended."""
        total = 0.0
        for u, k in ((v, output) for v, count in enumerate(self.outputs) for output in range(count)):
            here = [("run", w, d) for _, (p, w, output) in self.edges if (p, output) == (u, k) and self.device[w] == d]
            held = bool(here) if self.graph.is_input[u] else self.maker(u, d, k) in self.started
            uses = here + ([e for e in self.sends if (e[1], e[3]) == (u, k)] if self.device[u] == d else [])
            stays = self.graph.tensor_ptr[u] + k in self.graph.results and self.device[u] == d
            if held and (stays or not (uses and all(use in self.ended for use in uses))):
                total += self.size(u, k)
        return total

    def owe(self, event: tuple) -> None:
        """A transfer takes time from the devices at its ends."""
        kind, v, d = event[:3]
        topology, seconds = self.costs.topology, self.duration(event)
        if kind == "send":
            for share, at in ((topology.source_share, self.device[v]), (topology.destination_share, d)):
                self.owed_s[at] += 0.0 if share is None else share[self.device[v], d] * seconds

    def paid(self, event: tuple) -> float:
        """The seconds by which an execution ends later, as its device owes them."""
        paid = self.owed_s[event[2]] if event[0] == "run" else 0.0
        if event[0] == "run":
            self.owed_s[event[2]] = 0.0
        return paid

    def duration(self, event: tuple) -> float:
        kind, v, d = event[:3]
        if kind == "run":
            return self.costs.exec_s[v, d] * (1.0 if self.noise is None else self.noise.vertex[v])
        costs = self.costs
        seconds = max(float(costs.transfer_s(e, self.device[v], d)) for e, (u, w, k) in self.edges
                      if (u, k) == (v, event[3]) and self.device[w] == d)
        return seconds * (1.0 if self.noise is None else self.noise.transfer[v, d])
