"""Compiles an assignment whose tensors do not fit into one that does, whatever the order of execution (after TURNIP, arXiv 2405.16283).

The vertices are gone through in a sequence, one after the other, as if each ended before the next began. Where memory lacks, what is used
next the latest leaves (Belady 1966) and is loaded again from the host at its next consumer's turn. Each tensor that takes place
on a device gets bytes that particular tensors before it have left, or that nothing has used. It starts *after* the last uses of those: no
byte is ever counted twice, whatever else runs meanwhile. And as all of that comes earlier in the sequence, nothing waits in a circle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.offload.freed import Freed, Part
from doppler_tf.schedule.assignment import Assignment, Load, Offload
from doppler_tf.schedule.memory import may_run_short, size_text
from doppler_tf.schedule.offloaded import host_devices, with_loads

HOME, COPY, LOAD, INPUT = range(4)
# A turn and a time later than any.
_NEVER, _EVER_S = 1 << 60, 1e300


@dataclass
class Residency:
    """A tensor on a device for a while: where it was made, copied from there, loaded from the host, or an input that is there at the start.

    Attributes:
      taken: whose bytes it has.
      consumers: vertices on the device that take it; sent: the devices that it is copied to; stored: whether the host gets it, too.
      void: nothing came of it, as it left before anybody took it.
    """

    kind: int
    tensor: int
    device: int
    taken: list[Part]
    consumers: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    stored: bool = False
    void: bool = False


@dataclass(frozen=True)
class Style:
    """How memory is managed: as plans do it, or for comparison as a pager without foresight would.

    Attributes:
      furthest: what is used next the latest leaves; else what was used last the longest ago (LRU).
      ahead: loads and copies start as soon as there is memory; else not before the vertex before their consumer has ended.
      eager: copies to other devices are made when the tensor is, if there is room, and more leaves than must where a tensor would come
        too late for its consumer; else copies are made at their consumer's turn, and only what must leaves.
    """

    furthest: bool = True
    ahead: bool = True
    eager: bool = True


PLANNED, LATE, ON_DEMAND = Style(), Style(eager=False), Style(furthest=False, ahead=False, eager=False)


def compile_offload(graph: DataflowGraph, costs: CostModel, assignment: Assignment, start_s: np.ndarray,
                    style: Style = PLANNED) -> Assignment:
    """The same assignment with an `Offload`.

    Args:
      start_s: float64 [N], of a run that may exceed memory; the sequence is that of its starts.

    Raises:
      DeadlockError: a vertex does not fit with its inputs and outputs on its device, or nothing can leave a device for lack of a link.
    """
    return _Compiler(graph, costs, assignment, start_s, style).compiled()


class _Compiler:
    def __init__(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment, start_s: np.ndarray, style: Style):
        self.graph, self.costs, self.assignment, self.style = graph, costs, assignment, style
        self.device: list[int] = assignment.device.tolist()
        self.size: list[float] = costs.tensor_bytes.tolist()
        self.start_s: list[float] = start_s.tolist()
        exec_s = costs.exec_s[np.arange(graph.num_vertices), assignment.device]
        self.end_s: list[float] = np.where(graph.is_input, 0.0, start_s + exec_s).tolist()
        position = np.argsort(graph.topological_order)
        order = np.lexsort((position, start_s))  # a topological one, as no vertex starts before what it takes from
        self.sequence: list[int] = order[~graph.is_input[order]].tolist()
        self.turn = np.full(graph.num_vertices, -1)
        self.turn[self.sequence] = np.arange(len(self.sequence))
        self.first_tensor: list[int] = graph.tensor_ptr.tolist()
        self.maker: list[int] = graph.tensor_producer.tolist()
        self.inputs_of: list[list[int]] = [[] for _ in range(graph.num_vertices)]
        self.uses: dict[tuple[int, int], list[int]] = {}  # by (tensor, device): turns of consumers, the next one last
        for e in np.argsort(-self.turn[graph.targets], kind="stable").tolist():
            t, v = int(graph.edge_tensor[e]), int(graph.targets[e])
            self.inputs_of[v].append(t)
            self.uses.setdefault((t, self.device[v]), []).append(int(self.turn[v]))
        self.results = frozenset(graph.results.tolist())
        self.devices_of: dict[int, list[int]] = {}
        for t, d in self.uses:
            self.devices_of.setdefault(t, []).append(d)
        memory = costs.memory_bytes
        self.short: list[bool] = may_run_short(graph, costs, assignment.device).tolist()  # elsewhere no memory need be used twice
        self.freed = [Freed(x) for x in memory.tolist()]
        self.live: list[dict[int, int]] = [{} for _ in memory]  # by device: the residency of each tensor that is there
        self.used_last: list[dict[int, int]] = [{} for _ in memory]
        self.found: list[Residency] = []
        self.home: dict[int, int] = {}
        self.host_linked = (costs.topology.with_host.linked[-1, :-1]).tolist()
        # More may leave than must, where the host has room for all.
        may_hurry = style.eager and costs.topology.host.memory_bytes is None
        self.hurries = [may_hurry and short and linked for short, linked in zip(self.short, self.host_linked, strict=True)]

    def compiled(self) -> Assignment:
        self._place_inputs()
        for v in self.sequence:
            self._take_turn(v)
        return self._assignment()

    def _place_inputs(self) -> None:
        """As many inputs as there is room for are on their devices from the start, those that are used first before others."""
        by_use = sorted(((turns[-1], t, d) for (t, d), turns in self.uses.items() if self.graph.is_input[self.maker[t]]))
        for _, t, d in by_use:
            if self.size[t] <= self.freed[d].left_bytes:
                self._settle(INPUT, t, d, -math.inf)

    def _take_turn(self, v: int) -> None:
        d, turn = self.device[v], int(self.turn[v])
        made = range(self.first_tensor[v], self.first_tensor[v + 1])
        needed = {*self.inputs_of[v], *made}
        total = sum(self.size[t] for t in needed)
        if total > self.costs.memory_bytes[d]:
            raise DeadlockError(f"{self.graph.name}: vertex {self.graph.vertex_label(v)!r} needs {size_text(total)} with its inputs "
                                f"and outputs on device {self._name(d)}, which has {size_text(self.costs.memory_bytes[d])}; place it "
                                f"elsewhere, or cut it into smaller vertices")
        for t in self.inputs_of[v]:
            if t not in self.live[d]:
                self._make_room(d, self.size[t], needed, self._due_s(v, t))
                self._bring(t, d)
        self._make_room(d, sum(self.size[t] for t in made), needed, self._due_s(v))
        for t in made:
            self.home[t] = self._settle(HOME, t, d, self.start_s[v])
        for t in needed:
            self.used_last[d][t] = turn
        for t in self.inputs_of[v]:
            self.found[self.live[d][t]].consumers.append(v)
            self.uses[t, d].pop()
            self._leave_if_over(t, d)
        for t in made:
            for other in self.devices_of.get(t, ()):  # copies for which there is room are made at once
                if other != d and self.style.eager and self.size[t] <= self.freed[other].left_bytes and t in self.live[d]:
                    self._bring(t, other)

    def _bring(self, t: int, d: int) -> None:
        """A copy from where the tensor was made, if it is still there; otherwise a load."""
        home = self.home.get(t)
        if home is not None and self.live[self.device[self.maker[t]]].get(t) == home and d not in self.found[home].sent:
            self.found[home].sent.append(d)
            self._settle(COPY, t, d, -math.inf)
            self._leave_if_over(t, self.device[self.maker[t]])
            return
        self._check_link(d)
        self._store(t)
        self._settle(LOAD, t, d, -math.inf)

    def _settle(self, kind: int, t: int, d: int, by_s: float) -> int:
        number = len(self.found)
        self.found.append(Residency(kind, t, d, self.freed[d].take(self.size[t], by_s)))
        self.live[d][t] = number
        self.used_last[d].setdefault(t, -1)
        return number

    def _make_room(self, d: int, size_bytes: float, needed: set[int], due_s: float) -> None:
        """Makes tensors leave until there is room, by `due_s` if possible: first those whose memory is free by then, then others."""
        while (ready_s := self.freed[d].ready_s(size_bytes)) > due_s:
            leaving = self._leaving(d, needed, due_s)
            if leaving is None and (leaving := self._leaving(d, needed, ready_s)) is None:
                return
            self._leave(leaving, d)

    def _leaving(self, d: int, needed: set[int], before_s: float) -> int | None:
        """Which tensor leaves of those that are not needed and whose memory would be free before then."""
        live = self.live[d]
        leaving = (t for t in live if t not in needed and self.size[t] and (before_s >= _EVER_S or self._left_s(t, d) < before_s))
        if self.style.furthest:
            return max(leaving, key=lambda t: (self._next_use(t, d), self.size[t]), default=None)
        return min(leaving, key=lambda t: (self.used_last[d][t], -self.size[t]), default=None)

    def _next_use(self, t: int, d: int) -> int:
        """The turn at which the tensor is used next on the device, or is to be copied from it."""
        turns = self.uses.get((t, d))
        following = turns[-1] if turns else _NEVER
        if self.found[self.live[d][t]].kind == HOME:
            for other in self._waiting(t, d):
                following = min(following, self.uses[t, other][-1])
        return following

    def _waiting(self, t: int, d: int) -> list[int]:
        """Other devices that will need a tensor which was made on d, and have had no copy of it yet."""
        sent = self.found[self.home[t]].sent
        return [other for other in self.devices_of.get(t, ()) if other != d and self.uses[t, other] and other not in sent]

    def _leave_if_over(self, t: int, d: int) -> None:
        """Frees a tensor that is not needed on its device any more. Results stay."""
        if self.uses.get((t, d)):
            return
        residency = self.found[self.live[d][t]]
        if residency.kind == HOME:
            stays = (t in self.results or t not in self.devices_of) and not residency.stored
            if stays or self._waiting(t, d):
                return
        self._free(t, d)

    def _leave(self, t: int, d: int) -> None:
        """Makes a tensor leave its device although it is needed. The host gets it when it is made, unless it has it."""
        residency = self.found[self.live[d][t]]
        if residency.kind == HOME:
            self._store(t)
        if residency.kind == COPY and not residency.consumers:  # it was never sent
            self.found[self.home[t]].sent.remove(d)
            if self.live[self.device[self.maker[t]]].get(t) != self.home[t]:
                self._store(t)
        if residency.kind != HOME and not residency.consumers:
            residency.void = True
            for part in residency.taken:
                self.freed[d].give(part)
            del self.live[d][t]
            return
        self._free(t, d)

    def _store(self, t: int) -> None:
        if self.graph.is_input[self.maker[t]]:
            return
        home = self.found[self.home[t]]
        self._check_link(home.device)
        home.stored = True

    def _check_link(self, d: int) -> None:
        if not self.host_linked[d]:
            raise DeadlockError(f"{self.graph.name}: device {self._name(d)} runs out of memory, and {self.costs.topology.name} has no link "
                                f"between it and the host; give it one, or more memory")

    def _free(self, t: int, d: int) -> None:
        number = self.live[d].pop(t)
        if not self.short[d]:
            return
        residency = self.found[number]
        self.freed[d].give(Part(self._used_until_s(residency, residency.stored), number, self.size[t],
                                not (residency.sent or residency.stored)))

    def _left_s(self, t: int, d: int) -> float:
        """When the memory of a tensor is free if it leaves now, although it is needed."""
        residency = self.found[self.live[d][t]]
        return self._used_until_s(residency, residency.stored or residency.kind == HOME)

    def _used_until_s(self, residency: Residency, stored: bool) -> float:
        t, d = residency.tensor, residency.device
        made_s = self.end_s[self.maker[t]]
        used_s = [made_s, *(self.end_s[v] for v in residency.consumers)]
        topology = self.costs.topology.with_host
        return max(used_s + [made_s + topology.latency_s[d, other] + self.size[t] / topology.bandwidth_bytes_per_s[d, other]
                             for other in [*residency.sent, *([-1] if stored else [])]])

    def _due_s(self, v: int, loaded: int | None = None) -> float:
        """When memory must be free so that v starts in time, with a tensor that is loaded for it; any time where only what must leaves."""
        d, topology = self.device[v], self.costs.topology.with_host
        if not self.hurries[d]:
            return _EVER_S
        load_s = 0.0 if loaded is None else topology.latency_s[-1, d] + self.size[loaded] / topology.bandwidth_bytes_per_s[-1, d]
        return float(self.start_s[v] - load_s)

    def _assignment(self) -> Assignment:
        """Loads, and what each residency starts after."""
        graph = self.graph
        kept = [r for r in self.found
                if r.kind == HOME and r.stored and (r.tensor in self.results or r.tensor not in self.devices_of)]
        for residency in self.found:  # inputs for which there was room all along need not be loaded
            if residency.kind == LOAD and graph.is_input[self.maker[residency.tensor]] and all(p.owner < 0 for p in residency.taken):
                residency.kind = INPUT
        loads = [r for r in self.found if r.kind == LOAD and not r.void]
        plan = tuple(Load(r.tensor, r.device, tuple(r.consumers)) for r in loads) + tuple(Load(r.tensor, r.device, ()) for r in kept)
        self._check_host(plan)
        made = with_loads(graph, self.costs, plan)
        device = host_devices(self.assignment, plan, self.costs.num_devices)
        transfers = _numbered(made, device, self.costs.num_devices + 1)
        number_of = {id(r): graph.num_vertices + i for i, r in enumerate(loads)}
        pairs: set[tuple[int, int]] = set()
        host = self.costs.num_devices
        for r in self.found:
            if r.void or r.kind == INPUT:
                continue
            then = {HOME: lambda r: self.maker[r.tensor], LOAD: lambda r: number_of[id(r)],
                    COPY: lambda r: transfers[r.tensor, r.device]}[r.kind](r)
            for owner in {part.owner for part in r.taken} - {-1}:
                left = self.found[owner]
                ends = [*left.consumers, *(transfers[left.tensor, other] for other in left.sent),
                        *([transfers[left.tensor, host]] if left.stored else [])]
                pairs.update((end, then) for end in ends if end != then)
            if not self.style.ahead and r.kind in (LOAD, COPY) and r.consumers:
                before = self._before(r.consumers[0])
                pairs.update((end, then) for end in before)
        after = np.array(sorted(pairs), np.int32).reshape(-1, 2)
        return replace(self.assignment, offload=Offload(plan, after), proven_bound_s=0.0)

    def _check_host(self, loads: Sequence[Load]) -> None:
        """Raises DeadlockError where the host may run out. It holds each tensor once, and twice what is on its way to memory that waits for
        it."""
        limit = self.costs.topology.host.memory_bytes
        on_way = [0.0] * self.costs.num_devices
        for load in loads:
            on_way[load.device] += self.size[load.tensor]
        moving = sum(min(x, most) for x, most in zip(on_way, self.costs.memory_bytes.tolist(), strict=True))
        needed = sum(self.size[t] for t in {load.tensor for load in loads}) + moving
        if limit is not None and needed > limit:
            raise DeadlockError(f"{self.graph.name}: the host of {self.costs.topology.name} may have to hold {size_text(needed)}, it has "
                                f"{size_text(limit)}; give it or the devices more memory")

    def _before(self, v: int) -> list[int]:
        """The vertex before v on its device, if there is one."""
        for turn in range(int(self.turn[v]) - 1, -1, -1):
            if self.device[self.sequence[turn]] == self.device[v]:
                return [self.sequence[turn]]
        return []

    def _name(self, d: int) -> str:
        return repr(self.costs.topology.device_names[d])


def _numbered(graph: DataflowGraph, device: np.ndarray, count: int) -> dict[tuple[int, int], int]:
    """The event of each transfer by (tensor, destination), numbered as `plan_transfers` does."""
    crossing = ~graph.is_input[graph.sources] & (device[graph.sources] != device[graph.targets])
    keys = np.unique(graph.edge_tensor[crossing].astype(np.int64) * count + device[graph.targets[crossing]])
    return {(int(key // count), int(key % count)): graph.num_vertices + i for i, key in enumerate(keys)}
