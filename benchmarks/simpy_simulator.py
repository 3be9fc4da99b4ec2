"""The yardstick of `simulation`: a simulator in plain SimPy with one process per vertex and per transfer, as is usual."""

from __future__ import annotations

import simpy

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import plan_transfers


class SimPySimulator:
    """Makespans of assignments of one graph under `fifo`, with ties in SimPy's order of events and without memory limits."""

    def __init__(self, graph: DataflowGraph, costs: CostModel):
        self._graph, self._costs = graph, costs
        into = graph.predecessors
        self._incoming = [into.edge[into.ptr[v]:into.ptr[v + 1]].tolist() for v in range(graph.num_vertices)]
        self._sources = graph.sources.tolist()
        self._work = graph.work_vertices.tolist()
        self._is_input = graph.is_input.tolist()
        self._exec_s = costs.exec_s.tolist()

    def makespan_s(self, device) -> float:
        """Seconds of one assignment (int32 [N])."""
        env, plan = simpy.Environment(), plan_transfers(self._graph, self._costs, device)
        of_edge, on = plan.of_edge.tolist(), device.tolist()
        devices = [simpy.Resource(env, int(slots)) for slots in self._costs.slots]
        link_slots, links = self._costs.topology.link_slots, {}
        ended = {v: env.event() for v in self._work}
        arrived = [env.event() for _ in plan.producer]

        def vertex(v):
            yield env.all_of([arrived[of_edge[e]] if of_edge[e] >= 0 else ended[self._sources[e]] for e in self._incoming[v]
                              if not self._is_input[self._sources[e]]])
            with devices[on[v]].request() as slot:
                yield slot
                yield env.timeout(self._exec_s[v][on[v]])
            ended[v].succeed()

        def transfer(t, producer, link, cost):
            yield ended[producer]
            if link_slots is None:
                yield env.timeout(cost)
            else:
                with links.setdefault(link, simpy.Resource(env, link_slots)).request() as slot:
                    yield slot
                    yield env.timeout(cost)
            arrived[t].succeed()

        for v in self._work:
            env.process(vertex(v))
        for t, (p, s, d, cost) in enumerate(zip(plan.producer.tolist(), plan.source.tolist(), plan.destination.tolist(),
                                                plan.cost_s.tolist(), strict=True)):
            env.process(transfer(t, p, int(self._costs.topology.lanes[s, d]), cost))
        env.run()
        return env.now
