"""Budgets, sequential halving, and when a difference is more than noise."""

from __future__ import annotations

import math

import pytest

from agents.measuring import Budget, Measured, clearly_faster, halve
from doppler_tf.assignment import Assignment
from doppler_tf.costs import build_costs
from doppler_tf.errors import CancelledError, ExecutionError, GraphError
from doppler_tf.topology import ideal


class Clock:
    """Seconds that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_budget_of_runs():
    budget = Budget(10)
    budget.start()
    assert (budget.left(), budget.left(0.75), budget.share) == (10, 7, 0.0)
    budget.used = 8
    assert (budget.left(), budget.left(0.75), budget.share) == (2, 0, 0.8)


def test_minutes_end_a_budget_before_its_runs_do():
    clock = Clock()
    budget = Budget(1000, minutes=1.0, clock=clock)
    clock.now_s += 500.0  # before the stage begins
    budget.start()
    assert budget.left() == 1000
    budget.used, clock.now_s = 10, clock.now_s + 20.0
    assert budget.share == pytest.approx(1 / 3)
    assert budget.left() == 20  # 40 s at 2 s a run
    assert budget.left(0.5) == 5
    clock.now_s += 40.0
    assert budget.left() == 0


def test_a_resumed_budget_has_what_was_left():
    clock = Clock()
    budget = Budget(100, minutes=1.0, clock=clock)
    budget.resume(40, 30.0)
    budget.start()
    assert (budget.left(), budget.share, budget.spent_s) == (60, 0.5, 30.0)
    clock.now_s += 30.0
    assert budget.left() == 0


def test_halving_spends_most_runs_on_the_best():
    calls = []
    seconds = halve(4, (3,), 28, lambda c: calls.append(c) or [4.0, 1.0, 2.0, 9.0][c])
    # Two rounds of 14 runs: 4 candidates three times each, then the two best and number 3; the two that were left over go to the second.
    assert [len(runs) for runs in seconds] == [3, 8, 8, 8]
    assert calls[:8] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert seconds[1] == [1.0] * 8


def test_halving_leaves_failed_runs_out_and_never_asks_for_more():
    calls = []
    seconds = halve(3, (), 10, lambda c: calls.append(c) or (math.nan if c == 0 else float(c)))
    assert seconds[0] == []
    assert len(seconds[1]) > len(seconds[2])
    assert len(calls) <= 10
    assert halve(3, (0, 1), 2, lambda c: 1.0) == [[1.0], [1.0], []]


def test_clearly_faster_by_hand():
    # Medians 10 and 9; distances to the median 0, 1, 1 and 0, .1, .1: errors 1.85 * 1 / sqrt(3) = 1.07 and 0.107.
    assert not clearly_faster([[9.0, 10.0, 11.0]], [[8.9, 9.0, 9.1]])
    assert clearly_faster([[9.9, 10.0, 10.1]], [[8.9, 9.0, 9.1]])  # 1 > 2 * 0.107 * sqrt(2)
    assert not clearly_faster([[8.9, 9.0, 9.1]], [[9.9, 10.0, 10.1]])
    assert not clearly_faster([[10.0]], [[9.0, 9.0]])
    assert not clearly_faster([[10.0, 10.0]], [[]])
    assert not clearly_faster([[10.0, 10.0], [5.0, 5.0]], [[9.0, 9.0], [7.0, 7.0]])  # two graphs, 2 lost and 1 won


@pytest.mark.parametrize("error", [CancelledError, GraphError])
def test_what_no_run_can_mend_is_raised_and_failures_are_not(chains, error):
    graph = chains(2)
    costs, raised = build_costs(graph, ideal(2)), [ExecutionError("vertex 0 failed"), error("stop")]

    class Failing:
        def execute(self, graph, costs, assignment):
            raise raised.pop(0)

    measured = Measured(graph, costs, Failing(), Budget(2))
    assert math.isnan(measured.run(Assignment(graph.exec_s)))
    assert (measured.runs, measured.failed, measured.last_error) == (1, 1, "vertex 0 failed")
    assert measured.believed_costs() is costs
    with pytest.raises(error):
        measured.run(Assignment(graph.exec_s))
