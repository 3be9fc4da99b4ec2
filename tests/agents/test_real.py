"""Stage III: it learns what runs show that the model did not, within its budget, whatever fails."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from agents.config import TrainConfig
from agents.training import real
from agents.training.measuring import RunBudget
from agents.training.task import Task
from doppler_tf.errors import ExecutionError
from doppler_tf.formats.assignment_json import read_assignment
from doppler_tf.graph.costs import build_costs, draw_noise
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import Simulator, simulate
from tests.quiet_training import load_policy, train

PLANNED = Topology.from_json({"devices": [{"name": "a"}, {"name": "b"}], "links": {"bandwidth_bytes_per_s": 10.0}})
TRUTH = replace(PLANNED, bandwidth_bytes_per_s=PLANNED.bandwidth_bytes_per_s / 100)
CONFIG = TrainConfig(imitation=32, simulated=320, polish=0, real=48, real_batch=8, real_updates=4, batch=16, hidden=16, rounds=1)


class Measured:
    """Runs on devices whose links are a hundred times as slow as planned, with noise; every `fails`-th run fails."""

    def __init__(self, fails: int = 0, truth: Topology = TRUTH):
        self.calls, self._fails, self._truth = 0, fails, truth

    def execute(self, graph, costs, assignment):
        self.calls += 1
        if self._fails and self.calls % self._fails == 0:
            raise ExecutionError(f"run {self.calls} failed")
        noise = draw_noise(graph.num_vertices, costs.num_devices, 0.02, self.calls)
        return Simulator(noise=noise).execute(graph, build_costs(graph, self._truth), assignment)


@pytest.fixture(scope="module")
def fork():
    """One vertex feeds six, which one joins: planned, half of them on each device take 5.2 s; in truth one device, 8 s, is best."""
    nodes = [{"id": v, "exec_s": 1.0, "output_bytes": 1} for v in range(8)]
    edges = [edge for v in range(1, 7) for edge in ({"source": 0, "target": v}, {"source": v, "target": 7})]
    return graph_from_records(nodes, edges, {"name": "fork"})


@pytest.fixture(scope="module")
def run(fork, tmp_path_factory):
    """A finished run in which every seventh real run failed."""
    folder, executor = tmp_path_factory.mktemp("real") / "run", Measured(fails=7)
    return folder, executor, train([fork], PLANNED, folder, CONFIG, executor=executor)["fork"]


def test_it_learns_what_only_runs_show(run, fork):
    folder, _, result = run
    measured = result["measured"]
    assert measured["before_s"] > 20.0  # as planned: 5.2 s, and two transfers of 10 s
    assert measured["greedy_s"] == pytest.approx(8.0, rel=0.05)
    assert measured["best_s"] == pytest.approx(8.0, rel=0.05)
    assert result["greedy_makespan_s"] == result["best_makespan_s"] == 8.0  # by the plan, in which it is no good
    assert result["lower_bound_s"] < 6.0
    costs = build_costs(fork, PLANNED)
    greedy = next(load_policy(folder)(fork, costs, 1, 0))
    kept = read_assignment(folder / "assignments" / "fork.json", fork, costs)
    for assignment in (greedy, kept):
        assert Simulator().execute(fork, build_costs(fork, TRUTH), assignment).makespan_s == 8.0


def test_what_is_kept_is_not_slower_than_a_baseline_and_the_file_says_what_it_is(run, fork):
    folder, _, result = run
    measured, kept = result["measured"], read_assignment(folder / "assignments" / "fork.json", fork, build_costs(fork, PLANNED))
    assert {"one_device", "round_robin", "critical_path"} <= set(measured["baselines"])
    # Of a baseline whose runs all failed nothing is known.
    assert all(measured["best_s"] <= baseline["median_s"] for baseline in measured["baselines"].values() if baseline["runs"])
    assert kept.method == measured["method"]


def test_a_baseline_that_no_policy_finds_is_kept(tmp_path):
    """A fork of twenty: a policy that does not learn never draws all on one device, 22 s, which is best in truth."""
    nodes = [{"id": v, "exec_s": 1.0, "output_bytes": 1} for v in range(22)]
    edges = [edge for v in range(1, 21) for edge in ({"source": 0, "target": v}, {"source": v, "target": 21})]
    wide = graph_from_records(nodes, edges, {"name": "wide"})
    folder, config = tmp_path / "run", replace(CONFIG, imitation=0, simulated=0, real=64, batch=4, real_updates=0, learning_rate=1e-9)
    result = train([wide], PLANNED, folder, config, executor=Measured())["wide"]
    measured, costs = result["measured"], build_costs(wide, PLANNED)
    kept = read_assignment(folder / "assignments" / "wide.json", wide, costs)
    assert (measured["method"], kept.method) == ("one_device", "one_device")
    assert np.unique(kept.device).size == 1
    assert result["best_makespan_s"] == Simulator().execute(wide, costs, kept).makespan_s == 22.0
    assert measured["best_s"] == measured["baselines"]["one_device"]["median_s"] < measured["before_s"]
    assert measured["best_s"] <= min(baseline["median_s"] for baseline in measured["baselines"].values())
    assert train([wide], PLANNED, folder, config, executor=Measured(), resume=True)["wide"] == result


def test_the_second_of_two_executors_chooses(fork, tmp_path):
    """The first one runs on links as planned, on which half of the vertices on each device are best."""
    learning, choosing = Measured(truth=PLANNED), Measured()
    measured = train([fork], PLANNED, tmp_path / "run", CONFIG, executor=(learning, choosing))["fork"]["measured"]
    assert (learning.calls, learning.calls + choosing.calls) == (33, measured["runs"])
    kept = read_assignment(tmp_path / "run" / "assignments" / "fork.json", fork, build_costs(fork, PLANNED))
    assert Simulator().execute(fork, build_costs(fork, TRUTH), kept).makespan_s == 8.0


def test_failed_runs_count_in_the_budget_alone(run):
    _, executor, result = run
    measured = result["measured"]
    assert measured["runs"] == executor.calls <= 48
    assert (measured["failed"], measured["last_error"]) == (executor.calls // 7, f"run {executor.calls // 7 * 7} failed")
    assert min(measured[f"{key}_runs"] for key in ("before", "greedy", "best")) >= 2
    assert result["episodes"] == 32 + 320 + measured["runs"]


def test_simulated_and_measured_seconds_stand_side_by_side(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from agents.training import summaries
    events = EventAccumulator(str(run[0] / "train" / "real" / "fork"), size_guidance={"tensors": 0}).Reload()
    found = {}
    for tag in (summaries.MEASURED, summaries.SIMULATED, summaries.REFITTED, summaries.REFITTED_ERROR, summaries.RUNS):
        found[tag] = [float(np.frombuffer(e.tensor_proto.tensor_content, np.float32)[0]) if e.tensor_proto.tensor_content
                      else e.tensor_proto.float_val[0] for e in events.Tensors(tag)]
    assert found[summaries.MEASURED][0] > 2 * found[summaries.SIMULATED][0]
    assert found[summaries.REFITTED][0] == pytest.approx(found[summaries.SIMULATED][0])  # nothing was known yet
    assert abs(found[summaries.REFITTED_ERROR][-1]) < 0.05
    assert found[summaries.RUNS] == [8, 16, 24, 32, 33]  # 70% of 48; the rest is for the choice


@pytest.mark.parametrize(("real", "runs"), [(12, 12), (1, 0)])
def test_without_a_successful_run_all_stays_as_it_was(fork, tmp_path, real, runs):
    result = train([fork], PLANNED, tmp_path / "run", replace(CONFIG, real=real), executor=Measured(fails=1))["fork"]
    assert result["measured"]["failed"] == result["measured"]["runs"] == runs
    assert [result["measured"][f"{key}_s"] for key in ("before", "greedy", "best")] == [None] * 3
    assert max(result["greedy_makespan_s"], result["best_makespan_s"]) < 6.0  # on both devices, as planned


def test_without_a_stage_before_it_and_whatever_is_raised_it_goes_on(fork, tmp_path):
    class Foreign(Measured):
        def execute(self, graph, costs, assignment):
            if self.calls % 4 == 3:
                self.calls += 1
                raise RuntimeError("a library's own error\nwith details")
            return super().execute(graph, costs, assignment)

    for imitation in (0, 32):
        config = replace(CONFIG, imitation=imitation, simulated=0, real=96)
        result = train([fork], PLANNED, tmp_path / f"run{imitation}", config, executor=Foreign())["fork"]
        assert result["measured"]["last_error"] == "RuntimeError: a library's own error"
        assert result["measured"]["best_runs"] >= 2


def test_minutes_end_the_stage_and_a_resumed_one_has_only_what_was_left(fork, tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(real, "RunBudget", partial(RunBudget, clock=lambda: clock[0]))

    class Slow(Measured):
        interrupt = 9

        def execute(self, graph, costs, assignment):
            clock[0] += 3.0
            if self.calls == self.interrupt:
                raise KeyboardInterrupt
            return super().execute(graph, costs, assignment)

    executor = Slow()
    config = replace(CONFIG, imitation=0, simulated=16, real=120, real_minutes=1.0)
    with pytest.raises(KeyboardInterrupt, match="go on with --resume"):
        train([fork], PLANNED, tmp_path / "run", config, executor=executor)
    assert clock[0] == 30.0
    executor.interrupt = -1
    clock[0] = 1000.0  # the time between does not count
    result = train([fork], PLANNED, tmp_path / "run", config, executor=executor, resume=True)["fork"]
    # One round of 8 runs, 24 s, was saved: 36 s are left, 12 runs.
    assert clock[0] - 1000.0 <= 36.0 + 3.0
    assert 17 <= result["measured"]["runs"] <= 21


@pytest.mark.thorough
def test_several_graphs_share_the_stage(fork, tmp_path, chains):
    executor = Measured()
    result = train([fork, chains(2)], PLANNED, tmp_path / "run", replace(CONFIG, imitation=0, simulated=64, real=16), executor=executor)
    measured = [result[name]["measured"] for name in ("fork", "chains")]
    assert sum(m["runs"] for m in measured) == executor.calls <= 32
    assert min(m["runs"] for m in measured) >= 12
    # A policy is judged by all graphs together: it may lose a little on one where it gains much on another.
    assert sum(m["greedy_s"] for m in measured) <= 1.1 * sum(m["before_s"] for m in measured)


def test_the_order_counts_where_it_is_the_priority(fork):
    """Equal devices in another order are another assignment; that of a heuristic is in the order of its own run."""
    costs = build_costs(fork, PLANNED)
    first, second = np.array([0, *range(1, 7), 7], np.int32), np.array([0, *range(6, 0, -1), 7], np.int32)
    device = np.array([0, 0, 0, 0, 1, 1, 1, 0], np.int32)
    for dispatch, different in (("auto", [0, 1]), ("fifo", [0])):
        task = Task.of([fork], [costs], replace(CONFIG, dispatch=dispatch))
        order, devices = task.padded(0, np.stack([first, second, first]), np.stack([device[first], device[second], device[first]]))
        assert task.different(0, order, devices).tolist() == different
    task = Task.of([fork], [costs], CONFIG)
    given = Assignment(device, first, "by hand", "order", priority=np.arange(8.0)[::-1].copy())
    episode = task.as_episode(0, given)
    assert episode.makespan_s == simulate(fork, costs, given).makespan_s
    started = task.assignment(0, episode).order.tolist()
    assert [v for v in started if 0 < v < 4] == [3, 2, 1]
    assert [v for v in started if 3 < v < 7] == [6, 5, 4]
