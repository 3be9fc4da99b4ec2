"""Memory over time is what the dispatcher counts, and pictures say which devices and limits they show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject

from doppler_tf.errors import DeadlockError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.offload.planning import plan_offload
from doppler_tf.report.figures import MEMORY
from doppler_tf.report.gantt import gantt_png
from doppler_tf.report.html.pictures import gantt_data
from doppler_tf.report.memory_rows import memory_rows
from doppler_tf.schedule.assignment import assignment_from_devices
from doppler_tf.schedule.dispatch import Dispatcher, Free, StartVertex
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator, simulate
from doppler_tf.schedule.trace import peak_bytes
from tests.report.test_gantt import pixels, shows
from tests.strategies import cases_short_of_memory, cases_that_need_a_host, examples


class Counting(Dispatcher):
    """Keeps `held`, the bytes by device after each instant, as instructions reserve and free them."""

    def begin(self, now_s: float = 0.0, instant=()) -> list:
        graph, self.held = self._graph, {}
        pairs = {(t, self._device[v]) for u, t, v in zip(graph.sources, graph.edge_tensor.tolist(), graph.targets, strict=True)
                 if graph.is_input[u]}
        self.now = np.zeros(self._costs.num_devices)
        for t, d in pairs:
            self.now[d] += self._costs.tensor_bytes[t]
        return self._counted(now_s, super().begin(now_s, instant))

    def advance(self, now_s: float, events) -> list:
        return self._counted(now_s, super().advance(now_s, events))

    def _counted(self, now_s: float, instructions: list) -> list:
        for each in instructions:
            if isinstance(each, StartVertex):
                self.now[each.device] += self._costs.output_bytes[each.vertex]
            else:
                sign, d = (-1, each.device) if isinstance(each, Free) else (1, each.destination)
                self.now[d] += sign * self._costs.tensor_bytes[each.tensor]
        self.held[now_s] = self.now.copy()
        return instructions


def check_rows(graph, costs, assignment, simulator: Simulator) -> None:
    counting = Counting(graph, costs, assignment, simulator.dispatch)
    try:
        trace = simulator.drive(counting, costs)
    except DeadlockError:
        reject()
    rows, _ = memory_rows(graph, costs, trace)
    assert [row.name for row in rows] == list(costs.topology.device_names)
    counted = np.stack([counting.held[t] for t in sorted(counting.held)])
    for d, row in enumerate(rows):
        at = np.searchsorted(row.time_s, sorted(counting.held), side="right") - 1
        np.testing.assert_array_equal(np.where(at < 0, 0.0, row.used_bytes[at]), counted[:, d])
    assert [row.most_bytes for row in rows] == counted.max(axis=0).tolist() == peak_bytes(graph, costs, assignment, trace).tolist()


@given(cases_short_of_memory())
def test_the_curve_is_what_the_dispatcher_counts(case):
    check_rows(case.graph, case.costs, case.assignment, Simulator(case.rule, case.noise))


@examples(0.3)
@given(cases_that_need_a_host())
def test_the_curve_of_a_plan_with_a_host_too(case):
    check_rows(*offloaded(case.graph, case.costs, plan_offload(case.graph, case.costs, case.assignment)[1]), Simulator())


def pipeline(limits: list[float | None]):
    """Input x of 4 bytes, then a vertex of 2 bytes on each device, one after the other."""
    nodes = [{"id": "x", "input": True, "output_bytes": 4}, *({"id": d, "exec_s": 1, "output_bytes": 2} for d in range(len(limits)))]
    edges = [{"source": "x", "target": 0}, *({"source": d, "target": d + 1, "transfer_s": 1} for d in range(len(limits) - 1))]
    graph = graph_from_records(nodes, edges, {"name": "pipeline"})
    topology = Topology.from_json({"devices": [{"name": f"d{d}", "memory_bytes": limit} for d, limit in enumerate(limits)]})
    costs = build_costs(graph, topology)
    return graph, costs, simulate(graph, costs, assignment_from_devices(graph, costs, [None, *range(len(limits))]))


def test_rows_by_hand():
    (first, second), what = memory_rows(*pipeline([8, 40]))
    assert (first.time_s.tolist(), first.used_bytes.tolist(), first.label) == ([0, 1, 2], [6, 2, 0], "d0   6 B of 8 B")
    seconds, heights = first.until(3.0)
    assert (seconds.tolist(), heights.tolist()) == ([0, 1, 1, 2, 2, 3], [0.75, 0.75, 0.25, 0.25, 0, 0])
    assert (second.time_s.tolist(), second.used_bytes.tolist(), second.is_near) == ([1, 2, 3], [2, 4, 2], True)
    assert what == "memory held; line: the limit"


@pytest.mark.parametrize(("limits", "words", "near"), [
    ([8, 41], "memory held; line: the limit, where over a tenth of it is held", [True, False]),
    ([80, None], "memory held; limits are over 10 times as high", [False, False]),
    ([8, None], "memory held; line: the limit", [True, False]),
    ([90, *[8] * 8], "memory held, the 8 fullest of 9 devices; line: the limit", [True] * 8),
    ([None, None], "", []),
])
def test_what_the_rows_are_is_said(limits, words, near):
    rows, what = memory_rows(*pipeline(limits))
    assert what == words
    assert [row.is_near for row in rows] == near
    assert [row.until(9.0)[1].max() <= 1.0 for row in rows] == [True] * len(rows)


def test_an_incomplete_trace_has_no_rows():
    graph, costs, trace = pipeline([8, 8])
    assert memory_rows(graph, costs, trace)[0]
    assert memory_rows(graph, costs, replace(trace, vertex=trace.vertex[[1, 1]])) == ([], "")


def test_the_picture_shows_memory_where_there_are_limits():
    limited, free = (pixels(gantt_png(*pipeline(limits))) for limits in ([8, 8], [None, None]))
    assert shows(limited, MEMORY)
    assert not shows(free, MEMORY)
    assert limited.shape[0] > free.shape[0]
    assert not shows(pixels(gantt_png(*pipeline([8, 8]), card=True)), MEMORY)


def test_the_page_has_rows_of_memory_between_devices_and_links():
    data = gantt_data(*pipeline([8, 100]), 1.0)
    assert [row["label"] for row in data["rows"]] == ["d0 33%", "d1 33%", "d0 6 B of 8 B", "d1 4 B of 100 B", "d0 → d1 33%"]
    assert data["rows"][2]["memory"] == {"time_s": [0, 1, 1, 2, 2, 3], "height": [0.75, 0.75, 0.25, 0.25, 0, 0], "limit": True}
    assert data["rows"][3]["memory"] == {"time_s": [1, 2, 2, 3, 3, 3], "height": [0.5, 0.5, 1, 1, 0.5, 0.5], "limit": False}
    assert data["bars"]["row"] == [0, 1, 4]
    assert data["memory"] == "memory held; line: the limit, where over a tenth of it is held"
    assert gantt_data(*pipeline([None, None]), 1.0)["memory"] == ""
