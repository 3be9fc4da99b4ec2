"""Which pieces join, and which stay apart so that they can run side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.capture.cuts.grouping import SMALL_BYTES, SMALL_FLOPS, Cost, grouped


def heavy(**more):
    return Cost(flops=1e9, moved_bytes=1e7, taken_bytes=1e6, made_bytes=1e6, light=False, **more)


def light(**more):
    return Cost(flops=1e7, moved_bytes=1e7, taken_bytes=1e6, made_bytes=1e6, light=True, **more)


def small(taken=100.0, made=100.0, **more):
    return Cost(flops=10, moved_bytes=200, taken_bytes=taken, made_bytes=made, light=True, **more)


@pytest.mark.parametrize(("after", "costs", "groups"), [
    ([[], [0], [1], [2]], [heavy(), light(), light(), heavy()], [[0, 1, 2], [3]]),  # what follows a heavy piece joins that one
    ([[], [0]], [heavy(), heavy()], [[0], [1]]),
    ([[], [0], [1]], [light(), light(), heavy()], [[0, 1, 2]]),
    ([[], [0], [0], [0]], [heavy(), light(), heavy(), heavy()], [[0], [1], [2], [3]]),  # three could run side by side
    ([[], [0], [1], [1]], [heavy(), light(), heavy(), heavy()], [[0, 1], [2], [3]]),  # to its producer, once
    ([[], [], [0, 1], [2]], [heavy(), heavy(), small(), heavy()], [[0], [1], [2, 3]]),
    ([[], [], [0, 1], [2], [2]], [heavy(), heavy(), small(), heavy(), heavy()], [[0], [1], [2], [3], [4]]),
    ([[], [0], [0], [1, 2]], [heavy(), small(), small(), heavy()], [[0, 1, 2], [3]]),
    ([[], [0]], [heavy(), light(colocate="w")], [[0], [1]]),  # a heavy piece does not follow a variable
    ([[], [0], [1]], [light(), light(), light(colocate="w")], [[0, 1, 2]]),
    ([[], [], [0, 1]], [light(), light(), light(colocate="w")], [[0, 1, 2]]),
    ([[], [], [0, 1]], [light(), light(), light()], [[0], [1], [2]]),
    ([[], [0]], [small(colocate="v"), small(colocate="w")], [[0, 1]]),
    ([[], [0]], [light(colocate="v"), light(colocate="w")], [[0], [1]]),
])
def test_rules(after, costs, groups):
    assert grouped(after, costs) == groups


def test_a_piece_takes_in_no_more_than_a_small_piece_is():
    fans = 100
    costs = [heavy(), *(Cost(SMALL_FLOPS / 10, SMALL_BYTES / 10, 10, 1, light=True) for _ in range(fans)), heavy()]
    groups = grouped([[], *([0] for _ in range(fans)), [0, *range(1, fans + 1)]], costs)
    assert max(map(len, groups)) <= 22


@given(st.lists(st.tuples(st.sets(st.integers(0, 30)), st.sampled_from((heavy, light, small))), min_size=1, max_size=30))
def test_groups_are_whole_and_make_no_circle(pieces):
    after = [{u for u in before if u < v} for v, (before, _) in enumerate(pieces)]
    groups = grouped(after, [make() for _, make in pieces])
    assert sorted(v for group in groups for v in group) == list(range(len(pieces)))
    number = {v: g for g, group in enumerate(groups) for v in group}
    waiting = {g: {number[u] for v in group for u in after[v]} - {g} for g, group in enumerate(groups)}
    while waiting:
        free = [g for g, before in waiting.items() if not before & waiting.keys()]
        assert free, "a circle"
        for g in free:
            del waiting[g]
    for group in groups:
        assert sum(pieces[v][1] is heavy for v in group) <= 1
