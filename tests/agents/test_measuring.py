"""Budgets, and which failures of a run are counted and which are raised."""

from __future__ import annotations

import math

import pytest

from agents.training.measuring import Measured, RunBudget
from doppler_tf.errors import CancelledError, ExecutionError, GraphError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import ideal
from doppler_tf.schedule.assignment import Assignment


class Clock:
    """Seconds that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_budget_of_runs():
    budget = RunBudget(10)
    budget.start()
    assert (budget.left(), budget.left(0.75), budget.share) == (10, 7, 0.0)
    budget.used = 8
    assert (budget.left(), budget.left(0.75), budget.share) == (2, 0, 0.8)


def test_minutes_end_a_budget_before_its_runs_do():
    clock = Clock()
    budget = RunBudget(1000, minutes=1.0, clock=clock)
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
    budget = RunBudget(100, minutes=1.0, clock=clock)
    budget.resume(40, 30.0)
    budget.start()
    assert (budget.left(), budget.share, budget.spent_s) == (60, 0.5, 30.0)
    clock.now_s += 30.0
    assert budget.left() == 0


@pytest.mark.parametrize("error", [CancelledError, GraphError])
def test_what_no_run_can_mend_is_raised_and_failures_are_not(chains, error):
    graph = chains(2)
    costs, raised = build_costs(graph, ideal(2)), [ExecutionError("vertex 0 failed"), error("stop")]

    class Failing:
        def execute(self, graph, costs, assignment):
            raise raised.pop(0)

    measured = Measured(graph, costs, Failing(), RunBudget(2))
    assert math.isnan(measured.run(Assignment(graph.exec_s)))
    assert (measured.runs, measured.failed, measured.last_error) == (1, 1, "vertex 0 failed")
    assert measured.believed_costs() is costs
    with pytest.raises(error):
        measured.run(Assignment(graph.exec_s))
