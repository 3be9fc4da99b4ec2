"""Data and tensor parallel tilings: what they cut is found from the program, and the tiles compute what the program computes."""

from __future__ import annotations

import pytest

from data import (
    WORKLOADS,
    EinsumProgram,
    build_workload,
    contract,
    elementwise,
    evaluate_program,
    execute_tiles,
    relative_error,
    tensor_input,
    view,
    workload_cuts,
    workload_program,
)
from data.parallel import column_labels, parallel, row_labels
from tests.data.test_workloads import TINY


def cuts_of(name, tiling, devices=4, **options):
    cuts = workload_cuts(build_workload(name, devices, tiling=tiling, **options).attributes["workload"])
    return {e: {label: parts for label, parts in each.items() if parts > 1} for e, each in cuts.items()}


def test_data_parallel_cuts_rows_and_leaves_weights_whole():
    """Queries and what follows are cut by t; keys and values, which all rows of queries read, by s. The head reads one row."""
    cuts = cuts_of("llama_layer", "data")
    assert cuts.pop("head") == {}
    assert {tuple(each.items()) for each in cuts.values()} == {(("t", 4),), (("s", 4),)}
    assert {name for name, each in cuts.items() if "s" in each} == {"k", "v", "k_rotary", "k_rotary_turned", "k_rotary_cos", "k_rotary_sin"}
    assert {tuple(each) for each in cuts_of("ffnn", "data").values()} == {("b",)}


def test_tensor_parallel_alternates_columns_and_rows_as_megatron_does():
    cuts = cuts_of("llama_layer", "tensor")
    columns = {"q": "h", "k": "h", "v": "h", "gate": "f", "up": "f", "head": "v"}
    kept = {**dict.fromkeys(("scores", "weights", "mixed", "q_rotary", "max"), "h"), **dict.fromkeys(("silu", "gated"), "f")}
    rows = {"projected": "h", "down": "f"}  # contracted: partial results, which are added
    assert {name: cuts[name] for name in (columns | kept | rows)} == {name: {label: 4} for name, label in (columns | kept | rows).items()}
    assert {tuple(cuts[name].items()) for name in ("norm1", "attended", "norm2", "y", "norm")} == {(("t", 4),)}


def test_gradients_of_weights_are_summed_over_the_rows():
    cuts = cuts_of("llama_layer", "data", optimizer="sgd")
    assert (cuts["d_wq"], cuts["d_wk"], cuts["d_w1"], cuts["d_w2"]) == ({"t": 4}, {"s": 4}, {"t": 4}, {"t": 4})
    cuts = cuts_of("llama_layer", "tensor", optimizer="sgd")
    assert (cuts["d_wq"], cuts["d_w1"], cuts["d_w2"], cuts["d_wo"]) == ({"h": 4}, {"f": 4}, {"f": 4}, {"h": 4})


def test_both_at_once():
    cuts = cuts_of("llama_layer", "mixed", 8)
    assert (cuts["q"], cuts["gate"], cuts["norm1"]) == ({"t": 4, "h": 2}, {"t": 4, "f": 2}, {"t": 8})


def test_a_cut_ends_at_a_view_that_takes_a_part():
    program = EinsumProgram({"r": 8, "u": 1, "i": 4, "o": 6, "p": 3},
                            {"x": tensor_input("r i"), "w": tensor_input("i o"), "v": tensor_input("p o")},
                            (contract("y", "r i, i o -> r o", "x", "w"), view("last", "u o", "y", u=7), view("few", "r p", "y", p=3),
                             contract("z", "u o, p o -> u p", "last", "v"), elementwise("q", "relu", "r p -> r p", "few"),
                             contract("out", "u p, r p -> r u", "z", "q")))
    assert row_labels(program) == {"y": "r", "z": "u", "q": "r", "out": "r"}
    assert column_labels(program) == {"y": "o", "z": "o"}
    assert parallel(program, 2, 2) == {"y": {"r": 2, "o": 2}, "z": {"u": 1, "o": 2}, "q": {"r": 4}, "out": {"r": 4}}


@pytest.mark.parametrize("tiling", ["data", "tensor", "mixed"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_tile_by_tile_equals_unsharded(name, tiling):
    for optimizer in (None, "momentum"):
        graph = build_workload(name, 3, "small", tiling=tiling, optimizer=optimizer, **TINY[name])
        program = workload_program(graph.attributes["workload"])
        tensors = program.draw_inputs(1, "float64")
        assert relative_error(execute_tiles(graph, tensors), evaluate_program(program, tensors)) <= 1e-9
