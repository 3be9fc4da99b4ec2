"""Decomposed programs compute what the tensor relational algebra says: keys are tiles, a shard joins, a reduce aggregates."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data import build_workload, decompose, execute_tiles, workload_cuts, workload_program
from data.steps import AGGREGATES, FUNCTIONS
from tests.data import tile_relations
from tests.data.differentiable import all_values, is_smooth, programs
from tests.data.test_workloads import TINY
from tests.strategies import examples


def test_every_function_and_aggregate_is_in_the_algebra():
    assert tile_relations.POINTWISE.keys() == FUNCTIONS.keys()
    assert tile_relations.COMBINED.keys() == {*AGGREGATES}


@examples(0.3)
@given(programs(1, 8), st.integers(0, 99))
def test_shards_join_and_reduces_aggregate(case, seed):
    """The vertices are the tuples: as many, with as large tiles, and the same values."""
    program, integers = case
    tensors, rng = program.draw_inputs(seed, np.float64), np.random.default_rng(seed)
    tiling = {e.name: {label: int(rng.integers(1, program.sizes[label] + 1)) for label in e.space if label not in e.whole}
              for e in program.expressions}
    with np.errstate(all="ignore"):
        values = all_values(program, tensors)
        size = max(float(np.abs(x).max(initial=1.0)) for x in values.values())
        assume(np.isfinite(size) and size < 1e8 and (integers or is_smooth(program, values)))
        relations = tile_relations.evaluated(program, tensors, tiling)
    graph = decompose(program, tiling)
    got = execute_tiles(graph, tensors)
    for name, whole in got.items():
        np.testing.assert_allclose(tile_relations.tensor(relations[name]), whole, rtol=1e-9, atol=1e-9 * size)
        tiles = graph.attributes["outputs"][name]["tiles"]
        assert [[b - a for a, b in tile["box"]] for tile in tiles] == [[*relations[name][key].shape] for key in sorted(relations[name])]
    for e in program.expressions:
        last = [v for v in graph.work_vertices if graph.meta_op[v] == e.name and graph.role[v] == ("reduce" if e.aggregate else "shard")]
        assert len(last) == len(relations[e.name])


@pytest.mark.parametrize("tiling", ["published", "tensor", "eindecomp"])
def test_a_training_step_of_a_layer(tiling):
    graph = build_workload("llama_layer", 3, "small", tiling=tiling, optimizer="adam", **{**TINY["llama_layer"], "tokens": 12, "ffn": 20})
    record = graph.attributes["workload"]
    program = workload_program(record)
    tensors = program.draw_inputs(0, np.float64)
    relations = tile_relations.evaluated(program, tensors, workload_cuts(record))
    for name, whole in execute_tiles(graph, tensors).items():
        np.testing.assert_allclose(tile_relations.tensor(relations[name]), whole, rtol=1e-8, atol=1e-12)


def test_a_relation_under_other_keys_is_the_same_tensor():
    array = np.arange(35.0).reshape(5, 7)
    tiles = tile_relations.relation(array, (2, 3))
    assert {key: tile.shape for key, tile in tiles.items()} == {
        (0, 0): (3, 3), (0, 1): (3, 2), (0, 2): (3, 2), (1, 0): (2, 3), (1, 1): (2, 2), (1, 2): (2, 2)}
    again = tile_relations.rekey(tiles, (5, 1))
    assert {*again} == {(i, 0) for i in range(5)}
    np.testing.assert_array_equal(tile_relations.tensor(again), array)
