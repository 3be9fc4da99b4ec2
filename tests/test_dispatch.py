"""The state machine by hand: which instruction answers which event, and in which sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given

from doppler_tf.errors import AssignmentError, ConfigError, DeadlockError
from doppler_tf.fastsim import FastSimulator
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.dispatch import Dispatcher, Free, StartTransfer, StartVertex, TransferEnded, VertexEnded
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace
from runtime.synchronous import LevelDispatcher
from tests.messages import assert_says, refusal
from tests.strategies import cases


def machine(link_slots=1, memory_bytes=(None, None), slots=1) -> Topology:
    devices = [{"name": name, "memory_bytes": limit, "slots": slots} for name, limit in zip("pq", memory_bytes, strict=True)]
    return Topology.from_json({"devices": devices, "link_slots": link_slots})


def star():
    """x (input) feeds a; a feeds b, c, d and e, all 1 s; e is last and heaviest."""
    nodes = [{"id": "x", "input": True, "output_bytes": 1}]
    nodes += [{"id": v, "exec_s": 9 if v == "e" else 1, "output_bytes": 1} for v in "abcde"]
    edges = [{"source": "a", "target": v, "transfer_s": cost} for v, cost in zip("bcde", (1, 2, 4, 3), strict=True)]
    return graph_from_records(nodes, [{"source": "x", "target": "a"}, *edges], {"name": "star"})


X, A, B, C, D, E = range(6)
SPLIT = Assignment(np.array([-1, 0, 0, 1, 1, 0], np.int32), np.array([A, E, D, C, B]))


def test_each_output_is_sent_by_itself_and_once_to_a_destination():
    """a has outputs of 5, 7 and 9 bytes: b on p takes the first, c on q the first two, d on q the second, nobody the third."""
    nodes = [{"id": "a", "exec_s": 1, "output_bytes": [5, 7, 9]}, *({"id": v, "exec_s": 1, "output_bytes": 1} for v in "bcd")]
    edges = [{"source": "a", "target": v, "output": k, "transfer_s": s} for v, k, s in (("b", 0, 9), ("c", 0, 2), ("c", 1, 4), ("d", 1, 3))]
    graph = graph_from_records(nodes, edges, {"name": "split"})
    costs = build_costs(graph, machine(memory_bytes=(30, 30)))
    assignment = Assignment(np.array([0, 0, 1, 1], np.int32))
    dispatcher = Dispatcher(graph, costs, assignment)
    assert dispatcher.transfers.tensor.tolist() == [0, 1]
    assert dispatcher.transfers.cost_s.tolist() == [2, 4]
    assert dispatcher.begin(0.0) == [StartVertex(0, 0)]
    assert dispatcher.advance(1.0, [VertexEnded(0)]) == [StartVertex(1, 0), StartTransfer(0, 0, 0, 1)]
    assert dispatcher.advance(2.0, [VertexEnded(1)]) == []  # the first output is on its way to q
    assert dispatcher.advance(3.0, [TransferEnded(0)]) == [Free(0, 0), StartTransfer(1, 1, 0, 1)]
    assert dispatcher.advance(7.0, [TransferEnded(1)]) == [Free(1, 0), StartVertex(2, 1)]
    assert dispatcher.advance(8.0, [VertexEnded(2)]) == [Free(0, 1), StartVertex(3, 1)]
    assert dispatcher.advance(9.0, [VertexEnded(3)]) == [Free(1, 1)]
    trace = dispatcher.trace()
    assert trace.output.tolist() == [0, 1]
    assert validate_trace(graph, costs, assignment, trace).work_conserving
    assert peak_bytes(graph, costs, assignment, trace).tolist() == [22, 13]
    assert FastSimulator(graph, costs).makespans(assignment.device[None]).tolist() == [9]


def test_events_in_instructions_out():
    """a on p; b, e stay; c, d share one copy on q, at the larger cost; a is freed on p after b, e and the transfer."""
    dispatcher = Dispatcher(star(), build_costs(star(), machine()), SPLIT)
    assert dispatcher.transfers.cost_s.tolist() == [4]
    assert dispatcher.begin(0.0) == [StartVertex(A, 0)]
    assert dispatcher.advance(1.0, [VertexEnded(A)]) == [Free(X, 0), StartVertex(B, 0), StartTransfer(0, A, 0, 1)]
    assert dispatcher.advance(2.0, [VertexEnded(B)]) == [StartVertex(E, 0)]
    assert dispatcher.advance(5.0, [TransferEnded(0)]) == [StartVertex(C, 1)]
    assert dispatcher.advance(6.0, [VertexEnded(C)]) == [StartVertex(D, 1)]
    assert dispatcher.advance(7.0, [VertexEnded(D)]) == [Free(A, 1)]
    assert not dispatcher.done
    assert dispatcher.advance(11.0, [VertexEnded(E)]) == [Free(A, 0)]
    assert dispatcher.done
    trace = dispatcher.trace()
    assert trace.vertex.tolist() == [A, B, C, D, E]
    assert (trace.start_s.tolist(), trace.end_s.tolist()) == ([0, 1, 5, 6, 2], [1, 2, 6, 7, 11])
    assert (trace.makespan_s, trace.dispatch, trace.device_kind) == (11, "fifo", "virtual")


def test_between_devices_that_share_memory_no_event_tells_of_a_transfer():
    dispatcher = Dispatcher(star(), build_costs(star(), machine()), SPLIT)
    assert dispatcher.begin(0.0, {(0, 1)}) == [StartVertex(A, 0)]
    assert dispatcher.advance(1.0, [VertexEnded(A)]) == [Free(X, 0), StartTransfer(0, A, 0, 1), StartVertex(B, 0), StartVertex(C, 1)]
    assert dispatcher.advance(2.0, [VertexEnded(B), VertexEnded(C)]) == [StartVertex(E, 0), StartVertex(D, 1)]
    assert dispatcher.advance(3.0, [VertexEnded(D)]) == [Free(A, 1)]
    assert dispatcher.advance(11.0, [VertexEnded(E)]) == [Free(A, 0)]
    assert dispatcher.done
    assert (dispatcher.trace().transfer_start_s.tolist(), dispatcher.trace().transfer_end_s.tolist()) == ([1], [1])
    assert dispatcher.begin(0.0) == [StartVertex(A, 0)]
    assert StartTransfer(0, A, 0, 1) in dispatcher.advance(1.0, [VertexEnded(A)])
    assert dispatcher.advance(5.0, [TransferEnded(0)]) == [StartVertex(C, 1)]  # of a run on others each end is told


def sharing(kind):
    """A dispatcher of devices that all share their memory, for the simulator, which then hears of no transfer."""
    class Sharing(kind):
        def begin(self, now_s=0.0):
            return told(super().begin(now_s, set(zip(self.transfers.source.tolist(), self.transfers.destination.tolist(), strict=True))))

        def advance(self, now_s, events):
            return told(super().advance(now_s, events))

    def told(instructions):
        return [each for each in instructions if not isinstance(each, StartTransfer)]

    return Sharing


@given(cases())
def test_what_shares_its_memory_idles_beside_nothing(case):
    graph, costs, assignment = case.graph, replace(case.costs, topology=replace(case.costs.topology, source_share=None,
                                                                                destination_share=None)), case.assignment
    assume(not Dispatcher(graph, costs, assignment).limited)
    simulator = Simulator()
    assert validate_trace(graph, costs, assignment, simulator.drive(sharing(Dispatcher)(graph, costs, assignment, case.rule), costs)
                          ).work_conserving
    if assignment.after is None:
        assert validate_trace(graph, costs, assignment, simulator.drive(sharing(LevelDispatcher)(graph, costs, assignment), costs)).valid


@pytest.mark.parametrize(("rule", "started"), [("fifo", [A, B, C, D, E]), ("b_level", [A, E, B, C, D]), ("order", [A, E, D, C, B])])
def test_rules_order_the_queue_of_a_device(rule, started):
    assignment = Assignment(np.array([-1, 0, 0, 0, 0, 0], np.int32), SPLIT.order)
    trace = simulate(star(), machine(), assignment, rule)
    assert trace.vertex[np.argsort(trace.start_s)].tolist() == started
    assert trace.dispatch == rule


@pytest.mark.parametrize(("rule", "sent"), [("fifo", [0, 1, 2]), ("b_level", [2, 1, 0]), ("order", [1, 2, 0])])
def test_rules_order_the_queue_of_a_link(rule, sent):
    """Three producers of 0 s end together; a link carries one output after the other."""
    nodes = [*({"id": v, "exec_s": 0} for v in range(3)), *({"id": v, "exec_s": v} for v in (3, 4, 5))]
    graph = graph_from_records(nodes, [{"source": v, "target": v + 3, "transfer_s": 1} for v in range(3)])
    assignment = Assignment(np.array([0, 0, 0, 1, 1, 1], np.int32), np.array([1, 2, 0, 4, 5, 3]))
    trace = simulate(graph, machine(), assignment, rule)
    assert trace.producer[np.argsort(trace.transfer_start_s)].tolist() == sent
    assert sorted(trace.transfer_start_s.tolist()) == [0, 1, 2]


@pytest.mark.parametrize(("link_slots", "ends"), [(1, [1, 2, 3]), (2, [1, 1, 2]), (None, [1, 1, 1])])
def test_a_link_carries_as_many_as_it_has_slots(link_slots, ends):
    nodes = [*({"id": v, "exec_s": 0} for v in range(3)), {"id": 3, "exec_s": 0}]
    graph = graph_from_records(nodes, [{"source": v, "target": 3, "transfer_s": 1} for v in range(3)])
    trace = simulate(graph, machine(link_slots), Assignment(np.array([0, 0, 0, 1], np.int32)))
    assert trace.transfer_end_s.tolist() == ends


def test_transfers_take_time_from_the_devices_at_their_ends():
    """p runs a, then b, while a's output goes to q, which runs d, then c: 4 s, of which p owes a quarter and q a half."""
    nodes = [{"id": "a", "exec_s": 1}, {"id": "b", "exec_s": 2}, {"id": "c", "exec_s": 1}, {"id": "d", "exec_s": 2}]
    graph = graph_from_records(nodes, [{"source": "a", "target": "c", "transfer_s": 4}])
    links = {"source_share": 0.25, "destination_share": 0.5}
    topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}], "links": links})
    assignment = Assignment(np.array([0, 0, 1, 1], np.int32))
    trace = simulate(graph, topology, assignment)
    assert dict(zip(trace.vertex.tolist(), trace.end_s.tolist(), strict=True)) == {0: 1, 1: 4, 2: 6, 3: 4}
    assert trace.transfer_end_s.tolist() == [5]
    assert validate_trace(graph, topology, assignment, trace).work_conserving
    assert FastSimulator(graph, build_costs(graph, topology)).makespans(assignment.device[None]).tolist() == [6]


@pytest.mark.parametrize(("card", "ends"), [(None, [1, 1, 1]), ([[None, 0, 0], [None] * 3, [None] * 3], [1, 2, 1]),
                                            ([[None, 3, 3], [None, None, 3], [None] * 3], [1, 2, 3])])
def test_links_of_one_card_take_turns(card, ends):
    """p sends to q and r, and q to r; a transfer takes 1 s."""
    nodes = [{"id": v, "exec_s": 0} for v in range(5)]
    graph = graph_from_records(nodes, [{"source": u, "target": v, "transfer_s": 1} for u, v in ((0, 2), (0, 3), (1, 4))])
    topology = Topology.from_json({"devices": [{"name": name} for name in "pqr"], "links": {"card": card}})
    assignment = Assignment(np.array([0, 1, 1, 2, 2], np.int32))
    trace = simulate(graph, topology, assignment)
    assert trace.transfer_end_s.tolist() == ends
    assert validate_trace(graph, topology, assignment, trace).work_conserving
    assert FastSimulator(graph, build_costs(graph, topology)).makespans(assignment.device[None]).tolist() == [max(ends)]


def test_a_queue_takes_the_first_that_fits():
    """p holds 10 bytes: beside big (6, until 2 s) small (4) fits and medium (5), which is before it, does not."""
    nodes = [{"id": v, "exec_s": s, "output_bytes": size} for v, s, size in (("big", 2, 6), ("medium", 1, 5), ("small", 1, 4))]
    nodes += [{"id": f"of {v}", "exec_s": 0, "output_bytes": 0} for v in ("big", "medium", "small")]
    graph = graph_from_records(nodes, [{"source": v, "target": f"of {v}", "transfer_s": 0} for v in ("big", "medium", "small")])
    assignment = Assignment(np.array([0, 0, 0, 1, 1, 1], np.int32))
    trace = simulate(graph, machine(memory_bytes=(10, None), slots=2), assignment)
    assert trace.start_s[:3].tolist() == [0, 2, 0]
    assert simulate(graph, machine(slots=2), assignment).start_s[:3].tolist() == [0, 0, 1]


def test_a_deadlock_says_who_waits_where_and_for_what():
    graph, topology = star(), machine(memory_bytes=(None, 2))
    message = refusal(DeadlockError, simulate, graph, topology, SPLIT)
    assert_says(message, "star: out of memory on device 'q': vertex 'd' needs 1 bytes, 2 bytes of 2 bytes are resident",
                "another assignment or order may fit")
    fast = FastSimulator(graph, build_costs(graph, topology))
    assert fast.makespans(np.stack([SPLIT.device, np.zeros(6, np.int32)])).tolist() == [np.inf, 13]


def test_rules_that_cannot_be():
    graph, costs = star(), build_costs(star(), machine())
    assert_says(refusal(ConfigError, Dispatcher, graph, costs, SPLIT, "lifo"), "rule: expected one of fifo, b_level, order, got 'lifo'")
    assert_says(refusal(ConfigError, FastSimulator, graph, costs, "lifo"), "rule: expected one of fifo, b_level, order, got 'lifo'")
    unordered = Assignment(SPLIT.device)
    assert_says(refusal(AssignmentError, Dispatcher, graph, costs, unordered, "order"), "star: priority: expected a priority or an order")
    fast = FastSimulator(graph, costs, "order")
    assert_says(refusal(AssignmentError, fast.makespans, SPLIT.device[None]), "star: order: expected orders for dispatch rule 'order'")


@pytest.mark.parametrize(("device", "words"), [
    ([-1, 0, 2, 0, 0, 0], "star: vertex 'b': device: expected 0 to 1 (topology has 2 devices), got 2"),
    ([-1, 0, 0, 0, 0, -1], "star: vertex 'e': device: expected 0 to 1 (topology has 2 devices), got -1"),
    ([-1, 0, 0, 0, 0], "star: device: expected integers of shape [..., 6] (one a vertex), got int64 of shape"),
    ([-1, 0, 0, 0, 0, 0.5], "star: device: expected integers of shape [..., 6] (one a vertex), got float64 of shape"),
])
def test_devices_that_do_not_exist_reach_neither_simulator(device, words):
    graph, device = star(), np.array(device)
    assert_says(refusal(AssignmentError, simulate, graph, machine(), Assignment(device)), words)
    assert_says(refusal(AssignmentError, FastSimulator(graph, build_costs(graph, machine())).makespans, device[None]), words)


def test_what_stands_at_inputs_is_ignored():
    first, second = (simulate(star(), machine(), Assignment(np.array([x, 0, 0, 1, 1, 0], np.int32))) for x in (-1, 1))
    assert first.makespan_s == second.makespan_s == 11
    assert second.producer.tolist() == [A]


def test_of_two_that_end_at_once_operands_leave_before_a_tensor_arrives():
    """a on p sends to c on q at the instant at which b on q ends, so that q need not hold b's operand and the copy at once."""
    nodes = [{"id": v, "exec_s": 1, "output_bytes": 1} for v in ("a", "s", "b", "c")]
    graph = graph_from_records(nodes, [{"source": u, "target": v} for u, v in ("ac", "sb", "bc")], {"name": "swap"})
    dispatcher = Dispatcher(graph, build_costs(graph, machine()), Assignment(np.array([0, 1, 1, 1], np.int32)))
    assert dispatcher.begin(0.0, {(0, 1)}) == [StartVertex(0, 0), StartVertex(1, 1)]
    assert dispatcher.advance(1.0, [VertexEnded(1)]) == [StartVertex(2, 1)]
    assert dispatcher.advance(2.0, [VertexEnded(0), VertexEnded(2)]) == [
        Free(1, 1), StartTransfer(0, 0, 0, 1), Free(0, 0), StartVertex(3, 1)]
