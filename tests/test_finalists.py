"""Sequential halving, when a difference is more than noise, what is always a finalist, who is chosen, and where a run's time went."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from doppler_tf.finalists import (
    BRIEFLY,
    Finalist,
    baselines,
    choose,
    clearly_faster,
    finalists_of,
    halve,
    narrowed,
    spent,
    what_runs,
    why_one_device,
)
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology, ideal
from doppler_tf.heuristics import Problem
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.simulator import Simulator


@pytest.fixture
def diamond():
    """Two independent vertices of 2 s, which an input feeds and one of 1 s joins; a transfer takes 1 s."""
    nodes = [{"id": "x", "input": True}, {"id": "a", "exec_s": 2}, {"id": "b", "exec_s": 2}, {"id": "c", "exec_s": 1}]
    edges = [{"source": "x", "target": "a"}, {"source": "x", "target": "b"}, {"source": "a", "target": "c", "transfer_s": 1},
             {"source": "b", "target": "c", "transfer_s": 1}]
    return graph_from_records([{"output_bytes": 4, **node} for node in nodes], edges, {"name": "diamond"})


def on(memory_bytes: list[int]) -> Topology:
    devices = [{"name": f"d{i}", "memory_bytes": size} for i, size in enumerate(memory_bytes)]
    return Topology.from_json({"devices": devices, "links": {"bandwidth_bytes_per_s": 4.0}})


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


def test_halving_drops_nobody_unseen_while_there_are_runs_for_all():
    assert halve(4, (3,), 4, lambda c: [4.0, 1.0, 2.0, 9.0][c]) == [[4.0], [1.0], [2.0], [9.0]]


def test_baselines_are_different_and_one_device_is_one_that_fits(diamond):
    found = baselines(Problem(diamond, build_costs(diamond, ideal(2)), "auto"))
    assert next(iter(found)) == "one_device"
    assert {name: a.method for name, a in found.items()} == {name: name for name in found}
    assert found["one_device"].device.tolist() == [-1, 0, 0, 0]
    assert found["round_robin"].device.tolist() == [-1, 0, 1, 0]  # 4 s, which no other assignment beats
    devices = [tuple(a.device.tolist()) for a in found.values()]
    assert len(set(devices)) == len(devices)
    pair = graph_from_records([{"id": v, "exec_s": 1, "output_bytes": 4} for v in range(2)], [])  # outputs that nothing uses stay
    assert baselines(Problem(pair, build_costs(pair, on([7, 8])), "auto"))["one_device"].device.tolist() == [1, 1]
    assert "one_device" not in baselines(Problem(pair, build_costs(pair, on([7, 7])), "auto"))
    assert baselines(Problem(pair, build_costs(pair, on([3, 3])), "auto")) == {}
    assert list(baselines(Problem(diamond, build_costs(diamond, ideal(1)), "auto"))) == ["one_device"]


def test_finalists_are_the_baselines_and_the_best_other_members(diamond):
    placed = place(diamond, build_costs(diamond, ideal(4)))
    always = {"one_device": placed.assignments["one_device"], "partition": placed.assignments["random"]}
    other = {f"m{i}": Assignment(np.array([-1, i, i, 3], np.int32)) for i in range(1, 3)}
    members = {**other, "partition": Assignment(np.array([-1, 3, 2, 1], np.int32)), "unfit": Assignment(np.array([-1, 3, 3, 1], np.int32)),
               "again": placed.assignments["one_device"]}
    makespans_s = {"m1": 7.0, "m2": 5.0, "partition": 6.0, "unfit": math.inf, "again": 4.0}
    found = finalists_of(replace(placed, assignments=members, makespans_s=makespans_s), always)
    assert list(found) == ["one_device", "partition", "m2", "partition (placed)", "m1"]
    assert found["partition (placed)"] is members["partition"]
    many = {f"n{i}": Assignment(np.array([-1, *divmod(i, 4), 2], np.int32)) for i in range(12)}
    crowd = finalists_of(replace(placed, assignments=many, makespans_s={name: float(i) for i, name in enumerate(many)}), {})
    assert list(crowd) == [f"n{i}" for i in range(8)]
    # The winner comes first even if noise has chosen it before faster ones.
    winner = replace(many["n11"], method="n11")
    seconds = {name: float(i) for i, name in enumerate(many)}
    steady = finalists_of(replace(placed, assignment=winner, assignments=many, makespans_s=seconds), {})
    assert list(steady) == ["n11", *(f"n{i}" for i in range(7))]


def test_what_runs_tells_rules_and_priorities_apart():
    device, order = np.array([0, 1], np.int32), np.array([1, 0], np.int32)
    plain = Assignment(device, order)
    assert what_runs(plain) == what_runs(replace(plain, method="other", order=None))  # under `fifo` the order does not count
    by_order = replace(plain, dispatch="order")
    others = [plain, replace(plain, dispatch="b_level"), by_order, replace(by_order, priority=np.array([2.0, 1.0]))]
    assert len({what_runs(a) for a in others}) == 4


def test_the_lowest_median_is_chosen_of_those_that_ran_often():
    takes = {"base": [3.0], "slow": [9.0], "found": [2.0, 2.5, 2.0], "lucky": [2.2], "fails": [math.nan]}
    calls = dict.fromkeys(takes, 0)

    def run(name):
        calls[name] += 1
        return takes[name][calls[name] % len(takes[name])]

    choice = choose(dict.fromkeys(takes, 1.0), ["base", "slow"], 60, run)
    assert choice.chosen == "found"
    assert sum(calls.values()) <= 60
    assert calls["base"] == calls["slow"] == calls["found"] == max(calls.values()) > calls["lucky"]
    assert choice.finalists["fails"].to_json() == {"median_s": None, "low_s": None, "high_s": None, "runs": 0, "simulated_s": 1.0}
    assert choice.finalists["base"].to_json() == {"median_s": 3.0, "low_s": 3.0, "high_s": 3.0, "runs": calls["base"], "simulated_s": 1.0}


def test_few_runs_go_to_the_baselines_and_one_run_compares_nothing():
    simulated_s = {"found": 1.0, "other": 2.0, "base": 3.0}

    def names(runs):
        ran = []
        choice = choose(simulated_s, ["base", "found"], runs, lambda name: ran.append(name) or simulated_s[name])
        return ran, choice.chosen

    assert names(0) == names(1) == ([], None)
    assert names(2) == (["base", "found"], "found")
    assert names(3) == (["base", "found", "other"], "found")
    assert choose({"all": 1.0}, ["all"], 1, lambda name: 2.0).chosen == "all"
    assert choose(simulated_s, ["base"], 30, lambda name: math.nan).chosen is None
    assert choose({}, [], 30, lambda name: 1.0).chosen is None


@pytest.mark.parametrize(("found", "chosen"), [((2.9, 3.0, 2.7), "base"), ((2.1, 2.2, 1.9), "found")])
def test_a_finalist_must_be_clearly_faster_than_the_baselines(found, chosen):
    """Their medians are 3.0 and its 2.9 or 2.1; runs of one finalist differ by 0.3."""
    takes, calls = {"base": (3.0, 3.3, 2.7), "slow": (9.0,), "found": found}, dict.fromkeys(("base", "slow", "found"), 0)

    def run(name):
        calls[name] += 1
        return takes[name][calls[name] % len(takes[name])]

    assert choose(dict.fromkeys(takes, 1.0), ["base", "slow"], 30, run).chosen == chosen


@pytest.mark.parametrize("seed", range(10))
def test_a_choice_among_noisy_runs_is_not_slower_than_a_baseline(seed):
    """In truth the baselines are the fastest but for one; noise of 5%, of which a median of 10 runs keeps less than 3%."""
    rng = np.random.default_rng(seed)
    true_s = {"one_device": 1.0, "round_robin": 1.4, "critical_path": 1.02, **{f"m{i}": 1.0 + 0.03 * i for i in range(-1, 7)}}
    choice = choose(dict.fromkeys(true_s, 0.5), list(true_s)[:3], 150, lambda name: true_s[name] * rng.lognormal(0.0, 0.05))
    medians = {name: finalist.median_s for name, finalist in choice.finalists.items()}
    assert medians[choice.chosen] <= min(medians[name] for name in list(true_s)[:3])
    assert true_s[choice.chosen] <= 1.03 * min(true_s[name] for name in list(true_s)[:3])


def test_where_the_time_of_a_run_went(diamond):
    costs = build_costs(diamond, ideal(2))
    # Device 0: a until 2, waits for b's copy until 3, c until 4; device 1: b until 2, nothing more.
    trace = Simulator().execute(diamond, costs, Assignment(np.array([-1, 0, 1, 0], np.int32)))
    assert spent(diamond, trace) == (2, 5.0, 2.5, 1.5, 0.0)
    # The same, but c starts half a second late.
    late = (trace.vertex == 3) * 0.5
    assert spent(diamond, replace(trace, start_s=trace.start_s + late, end_s=trace.end_s + late)) == (2, 5.0, 2.5, 1.75, 0.25)
    alone = spent(diamond, Simulator().execute(diamond, costs, Assignment(np.array([-1, 1, 1, 1], np.int32))))
    assert alone == (1, 5.0, 5.0, 0.0, 0.0)
    slow = spent(diamond, trace)._replace(vertices_s=10.0, overhead_s=0.002)
    runs = {"one_device": [alone], "heft": [slow], "etf": [slow], "peft": []}
    finalists = {name: Finalist(4.0, (seconds,)) for name, seconds in (("one_device", 3.0), ("heft", 4.0), ("etf", 5.0))}
    assert why_one_device("heft", runs, finalists) is None
    assert why_one_device("one_device", {"one_device": [alone]}, finalists) is None
    assert why_one_device("one_device", runs, finalists) == (
        "On one device the vertices ran in 5.00 s, on 2 devices at best (heft) in 4.00 s. Beside others a vertex took 2.00 times as long, "
        "and each device waited 1.50 s for transfers and other devices and lost 2.00 ms between vertices (0.00 ms on one device).")


def test_ways_are_dropped_as_soon_as_they_are_hopeless():
    """b takes 2.5 times as long as a and is told before c is made; d fails; c is left behind after three turns, e runs to the end."""
    takes_s, told, dropped = {"a": 1.0, "b": 2.5, "c": 1.4, "d": math.nan, "e": 1.05}, [], []

    def run(name: str) -> float:
        told.append((name, tuple(dropped)))
        return takes_s[name]

    found = narrowed(list(takes_s), run, dropped.append)
    assert {name: len(seconds) for name, seconds in found.items()} == {"a": 23, "b": 1, "c": 3, "d": 0, "e": 23}
    assert dropped == ["b", "d", "c"]
    assert told[:3] == [("a", ()), ("b", ()), ("c", ("b",))]
    assert {name: len(seconds) for name, seconds in narrowed(list(takes_s), run, dropped.append, BRIEFLY).items()} == {
        "a": 7, "b": 1, "c": 3, "d": 0, "e": 7}


def test_slow_ways_run_less_often(monkeypatch):
    """Each look at the clock is a second later: after the first three turns, four more within 5 s."""
    clock = iter(range(100))
    monkeypatch.setattr("doppler_tf.finalists.perf_counter", lambda: float(next(clock)))
    found = narrowed(["a", "b"], {"a": 1.0, "b": 1.01}.get, lambda name: None)
    assert {name: len(seconds) for name, seconds in found.items()} == {"a": 8, "b": 8}
