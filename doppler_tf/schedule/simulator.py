"""The dispatcher under a virtual clock: exact and traced."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import CostModel, Noise, graph_with_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.schedule.assignment import Assignment, as_assignment, check_constraints
from doppler_tf.schedule.dispatch import Dispatcher, Instruction, StartTransfer, StartVertex, TransferEnded, VertexEnded
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.trace import Trace


@dataclass(frozen=True)
class Simulator:
    """An Executor under a virtual clock; the same inputs give the same trace, bit for bit.

    Attributes:
      dispatch: rule that orders the queues: `fifo`, `b_level` or `order`; None: the assignment's own.
      noise: factors on the modelled times, or None.
    """

    dispatch: str | None = None
    noise: Noise | None = None

    def execute(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        """Simulates `assignment`. Raises DeadlockError when memory runs out for good."""
        return self.drive(Dispatcher(graph, costs, assignment, self.dispatch), costs)

    def drive(self, dispatcher: Dispatcher, costs: CostModel) -> Trace:
        """Simulates the decisions of any dispatcher, such as that of the engine with barriers."""
        exec_s, transfer_s = self._durations(costs, dispatcher)
        running: list[tuple] = []
        now_s, owed_s = 0.0, [0.0] * costs.num_devices

        def schedule(instructions: list[Instruction]) -> None:
            for instruction in instructions:
                if isinstance(instruction, StartVertex):
                    v, d = instruction
                    heapq.heappush(running, (now_s + exec_s[v][d], 0, v, d))
                elif isinstance(instruction, StartTransfer):
                    t, _, source, destination = instruction
                    heapq.heappush(running, (now_s + transfer_s[t], 1, t, destination))
                    if shares is not None:
                        owed_s[source] += shares[0][source][destination] * transfer_s[t]
                        owed_s[destination] += shares[1][source][destination] * transfer_s[t]

        shares = None if costs.topology.shares is None else costs.topology.shares.tolist()
        schedule(dispatcher.begin(now_s))
        while not dispatcher.done:
            if not running:
                raise DeadlockError(dispatcher.stuck())
            now_s = running[0][0]
            ended = []
            while running and running[0][0] == now_s:
                _, transfer, number, d = heapq.heappop(running)
                if owed_s[d] > 0 and not transfer:
                    heapq.heappush(running, (now_s + owed_s[d], 0, number, d))
                    owed_s[d] = 0.0
                else:
                    ended.append(TransferEnded(number) if transfer else VertexEnded(number))
            if ended:
                schedule(dispatcher.advance(now_s, ended))
        return dispatcher.trace()

    def _durations(self, costs: CostModel, dispatcher: Dispatcher) -> tuple[list, list]:
        """Seconds by (vertex, device) and by transfer, noise applied."""
        exec_s, transfer_s = costs.exec_s, dispatcher.transfers.cost_s
        if self.noise is not None:
            exec_s = exec_s * self.noise.vertex[:, None]
            transfer_s = transfer_s * self.noise.transfer[dispatcher.transfers.producer, dispatcher.transfers.destination]
        return exec_s.tolist(), transfer_s.tolist()


def simulate(graph: GraphLike, topology: TopologyLike | CostModel, assignment: Assignment, dispatch: str | None = None,
             noise: Noise | None = None) -> Trace:
    """One simulated run of `assignment` on a topology or with ready-made costs. Graph and topology as in `build_costs`.

    Raises AssignmentError: it is of another graph, breaks a pin or a group, or uses a device or a link that cannot.
    """
    graph, costs = graph_with_costs(graph, topology)
    assignment = as_assignment(graph, costs, assignment)
    check_constraints(graph, costs, assignment.device, graph.name)
    return Simulator(dispatch, noise).execute(*offloaded(graph, costs, assignment))
