"""EinDecomp: costs by hand, and tilings as good as the best of all."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from data import (
    LabelledOperation,
    LabelledTensor,
    contract,
    eindecomp,
    elementwise,
    labelled,
    moved_elements,
    reduction,
    tensor_input,
    view,
)
from data.einsum_program import EinsumProgram
from data.tiling import check_tiling
from doppler_tf.errors import ConfigError
from tests.messages import assert_says, refusal


def product(n=8):
    """A B in n x n."""
    return labelled(EinsumProgram({"i": n, "j": n, "k": n}, {"A": tensor_input("i k"), "B": tensor_input("k j")},
                                  (contract("AB", "i k, k j -> i j", "A", "B"),)))


@pytest.mark.parametrize(("parts", "moved"), [
    ({"i": 4}, 64 + 4 * 64),  # rows: B goes to each of 4 pieces
    ({"i": 2, "j": 2}, 2 * 64 + 2 * 64),  # 2-D: each operand is read twice
    ({"k": 4}, 64 + 64 + 3 * 64),  # sums: three of four partial results move
    ({"i": 2, "k": 2}, 64 + 2 * 64 + 64)])
def test_join_and_aggregation_by_hand(parts, moved):
    assert moved_elements(product(), {"AB": parts}) == moved


def test_four_pieces_of_a_product_are_two_by_two():
    assert eindecomp(product(), 4) == {"AB": {"i": 2, "j": 2}}


@pytest.mark.parametrize(("made", "taken", "moved"), [
    ({"i": 2}, {"i": 2}, 0), ({"i": 2}, {"i": 4}, 0),  # a consumer's tile lies in one of the producer's
    ({"i": 4}, {"i": 2}, 8 * 6 / 2), ({"i": 2}, {"j": 2}, 8 * 6 / 2), ({}, {"j": 2}, 0),
    ({"i": 3}, {"i": 2}, 6 * 3),  # rows 3 + 3 + 2 against 4 + 4: the largest overlaps are 3 and 2
])
def test_repartition_by_hand(made, taken, moved):
    program = EinsumProgram({"i": 8, "j": 6}, {"x": tensor_input("i j")},
                            (elementwise("a", "relu", "i j -> i j", "x"), elementwise("b", "relu", "i j -> i j", "a")))
    operations = labelled(program)
    assert moved_elements(operations, {"a": made, "b": taken}) - 2 * 48 == moved


def test_inputs_that_are_everywhere_cost_nothing():
    assert moved_elements(product(), {"AB": {"i": 4}}, count_inputs=False) == 0
    assert moved_elements(product(), {"AB": {"k": 4}}, count_inputs=False) == 3 * 64


def test_limits_are_kept():
    short = product(3)
    assert math.prod(eindecomp(short, 16)["AB"].values()) == 12  # 16 = 4 x 4 has no room; 12 = 3 x 2 x 2 below it has
    assert math.prod(eindecomp(product(), 7)["AB"].values()) == 7
    x, y = (LabelledTensor(name, ("i", "j"), (6, 12)) for name in "xy")
    tall = LabelledOperation("f", {"i": 6, "j": 6}, (x,), (y,), whole=frozenset("i"))
    assert eindecomp([tall], 4) == {"f": {"j": 4}}
    assert eindecomp([tall], 100) == {"f": {"j": 6}}
    # 6 x 12 elements in 4 pieces of j, whose units have two elements: the largest has 24.
    assert eindecomp([tall], 1, most_elements=24) == {"f": {"j": 4}}
    assert_says(refusal(ConfigError, eindecomp, [tall], 2, most_elements=11), "operation 'f': most_elements: expected at least 12, got 11")
    assert_says(refusal(ConfigError, eindecomp, [tall], 0), "pieces: expected an integer >= 1, got 0")


def test_an_operation_that_may_stay_whole_does_so_where_it_saves():
    def of(optional):
        light = LabelledOperation("light", {"i": 8}, (LabelledTensor("x", ("i",), (8,)),), (LabelledTensor("y", ("i",), (8,)),),
                                  optional=optional)
        loop = LabelledOperation("loop", {}, (LabelledTensor("y", (None,), (8,)),), (LabelledTensor("z", (None,), (8,)),))
        return eindecomp([light, loop], 2)
    assert of(False) == {"light": {"i": 2}, "loop": {}}
    assert of(True) == {"light": {}, "loop": {}}


def test_many_operations_that_are_not_cut_may_read_one_tensor():
    made = LabelledTensor("x", ("i",), (8,))
    readers = [LabelledOperation(f"r{k}", {}, (LabelledTensor("x", (None,), (8,)),), (LabelledTensor(f"y{k}", (None,), (8,)),))
               for k in range(60)]
    assert eindecomp([LabelledOperation("f", {"i": 8}, (), (made,)), *readers], 2)["f"] == {"i": 2}


def test_views_and_functions_that_need_an_axis_whole():
    program = EinsumProgram({"t": 6, "d": 4, "u": 1}, {"x": tensor_input("t d")},
                            (elementwise("turned", "rotate_half", "t d -> t d", "x"), view("last", "u d", "turned", u=5),
                             reduction("total", "sum", "u d -> u", "last")))
    turned, total = labelled(program)
    assert turned.whole == {"d"}
    assert total.reads == (LabelledTensor("turned", (None, "d"), (6, 4)),)
    check_tiling(program, eindecomp([turned, total], 4))


def random_operations(rng, count, tree):
    """Operations on two operands with random labels; in a tree each tensor is read once."""
    operations, free, known = [], [], []
    for i in range(count):
        sizes, reads = {}, []
        for k in range(int(rng.integers(1, 3))):
            pool = [t for t in (free if tree else known) if t.tensor not in [r.tensor for r in reads]]
            source = pool[rng.integers(len(pool))] if pool and rng.random() < 0.8 else LabelledTensor(
                ("input", i, k), (), tuple(rng.integers(1, 30, 2).tolist()))
            if source in free:
                free.remove(source)
            labels = []
            for size in source.shape:
                alike = [label for label, known_size in sizes.items() if known_size == size and label not in labels]
                label = alike[0] if alike and rng.random() < 0.7 else "abcdefgh"[len(sizes)]
                sizes[label] = size
                labels.append(label)
            reads.append(LabelledTensor(source.tensor, tuple(labels), source.shape))
        out = [label for label in sizes if rng.random() < 0.7] or [next(iter(sizes))]
        made = LabelledTensor(("made", i), tuple(out), tuple(sizes[label] for label in out))
        operations.append(LabelledOperation(str(i), sizes, tuple(reads), (made,)))
        free.append(made)
        known.append(made)
    return operations


def all_choices(operation, pieces):
    """Every way to cut an operation into so many pieces, else into the most below: by trying all."""
    found = {}
    for parts in itertools.product(*(range(1, min(size, pieces) + 1) for size in operation.sizes.values())):
        found.setdefault(math.prod(parts), []).append(dict(zip(operation.sizes, parts, strict=True)))
    return found[max(count for count in found if count <= pieces)]


def as_good_as_the_best(seed):
    rng = np.random.default_rng(seed)
    pieces, count_inputs = int(rng.integers(2, 9)), bool(rng.integers(2))
    operations = random_operations(rng, int(rng.integers(2, 9)), seed % 2 == 0)
    choices = [all_choices(operation, pieces) for operation in operations]
    if math.prod(map(len, choices)) > 3_000:
        return False
    best = min(moved_elements(operations, {o.name: parts for o, parts in zip(operations, chosen, strict=True)}, count_inputs)
               for chosen in itertools.product(*choices))
    found = eindecomp(operations, pieces, count_inputs=count_inputs)
    assert moved_elements(operations, found, count_inputs) == pytest.approx(best, rel=1e-12)
    return True


def test_nothing_is_better():
    assert sum(map(as_good_as_the_best, range(24))) >= 6


@pytest.mark.thorough
def test_nothing_is_better_200_times():
    tried = map(as_good_as_the_best, range(10_000))
    assert sum(itertools.islice(filter(None, tried), 200)) == 200


def test_where_tables_grow_too_large_the_search_ends_near_the_best(monkeypatch):
    """A grid of products, whose exact elimination is compared with one that keeps many choices."""
    steps, known = [], {}
    for i in range(4):
        for j in range(4):
            left = known.get((i - 1, j), "A")
            right = known.get((i, j - 1), "B")
            steps.append(contract(f"p{i}{j}", "x z, z y -> x y", left, right))
            known[i, j] = f"p{i}{j}"
    program = EinsumProgram({"x": 12, "y": 12, "z": 12}, {"A": tensor_input("x z"), "B": tensor_input("z y")}, tuple(steps))
    operations = labelled(program)
    exact = moved_elements(operations, eindecomp(operations, 8))
    monkeypatch.setattr("data.elimination._MOST_ENTRIES", 200)
    assert exact <= moved_elements(operations, eindecomp(operations, 8)) <= 1.1 * exact
