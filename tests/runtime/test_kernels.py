"""The TensorFlow kernels compute what the NumPy ones do."""

import numpy as np
import pytest
import tensorflow as tf

from data import build_workload, input_tiles, numpy_kernels, workload_program
from data.steps import AGGREGATES, FUNCTIONS
from doppler_tf.errors import ExecutionError
from doppler_tf.graph.dataflow import Kernel, Operand
from runtime import kernels


def both(op, params, operands, slices=None):
    """The kernel's result in TensorFlow and in NumPy."""
    slices = slices or [None] * len(operands)
    kernel = Kernel(op, tuple(Operand(v, cut) for v, cut in enumerate(slices)), params)
    return (kernels.run_kernel(kernel, [tf.constant(x) for x in operands]).numpy(), numpy_kernels.run_kernel(kernel, operands))


def check(op, params, operands, slices=None):
    got, expected = both(op, params, operands, slices)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_one_vocabulary():
    assert kernels.KERNELS.keys() == numpy_kernels.KERNELS.keys()
    assert kernels.FUNCTIONS.keys() == numpy_kernels.FUNCTIONS.keys() == FUNCTIONS.keys()
    assert kernels.REDUCTIONS.keys() == kernels.PAIRWISE.keys() == numpy_kernels.AGGREGATES.keys() == set(AGGREGATES)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_functions(fn, dtype, rng):
    params = {"fn": fn, **dict.fromkeys(FUNCTIONS[fn].params, 0.5)}
    if FUNCTIONS[fn].arity == 1:
        check("map", {**params, "subscripts": "ab->ab"}, [rng.uniform(0.1, 2, (3, 4)).astype(dtype)])
    else:
        check("map", {**params, "subscripts": "ba,c->abc"}, [rng.normal(size=(4, 3)).astype(dtype), rng.uniform(1, 2, 5).astype(dtype)])


@pytest.mark.parametrize("subscripts", ["ac,cb->ab", "ca,cb->ba", "abd,dbc->bac", "abc,c->ab", "ab,cd->ad", "a,a->", "ab,ab->ab"])
def test_einsum(subscripts, rng):
    sizes = dict(zip("abcd", (2, 3, 4, 5), strict=True))
    operands = [rng.normal(size=[sizes[x] for x in term]) for term in subscripts.split("->")[0].split(",")]
    check("einsum", {"subscripts": subscripts}, operands)
    np.testing.assert_allclose(both("einsum", {"subscripts": subscripts}, operands)[1], np.einsum(subscripts, *operands), rtol=1e-10)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_reductions_and_aggregates(aggregate, rng):
    x, y = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 5)).astype(np.float32)
    check("reduce", {"fn": "identity", "aggregate": aggregate, "subscripts": "ba->a"}, [x])
    check("reduce", {"fn": "add", "aggregate": aggregate, "subscripts": "ac,cb->ab"}, [x, y])
    for count in (1, 2, 5):
        check("aggregate", {"aggregate": aggregate}, [rng.normal(size=(2, 3)) for _ in range(count)])


def test_slices_and_assemble(rng):
    x = rng.normal(size=(6, 5))
    boxes = [((4, 6), (0, 2)), ((0, 4), (2, 5)), ((0, 4), (0, 2)), ((4, 6), (2, 5))]
    params = {"shape": [6, 5], "boxes": [list(map(list, box)) for box in boxes]}
    got, expected = both("assemble", params, [x] * 4, boxes)
    assert np.array_equal(got, x)
    assert np.array_equal(expected, x)


def test_pads(rng):
    x = rng.normal(size=(2, 3))
    got, expected = both("pad", {"shape": [4, 3], "box": [[1, 3], [0, 3]]}, [x])
    assert np.array_equal(got, [[0] * 3, *x, [0] * 3])
    assert np.array_equal(expected, got)
    for zeros in both("pad", {"shape": [2, 5], "box": None}, [x[:1]]):
        assert np.array_equal(zeros, np.zeros((2, 5)))
        assert zeros.dtype == np.float64


def test_unknown_operation_and_wrong_operands_say_so():
    with pytest.raises(ExecutionError, match=r"op: expected one of einsum, .* got 'conv'"):
        kernels.run_kernel(Kernel("conv", (), {}), [])
    with pytest.raises(ExecutionError, match=r"operands: expected 1 tensors, got 2"):
        kernels.run_kernel(Kernel("map", (Operand(0),), {"fn": "relu", "subscripts": "a->a"}), [tf.zeros(1)] * 2)


@pytest.mark.parametrize(("name", "sizes"), [("chainmm", {"n": 48}), ("ffnn", {"batch": 64, "hidden": 64}),
                                             ("llama_layer", {"tokens": 24, "dim": 32, "heads": 4, "ffn": 44, "vocab": 50})])
def test_every_vertex_of_a_workload(name, sizes):
    graph = build_workload(name, 3, "small", **sizes)
    tensors = workload_program(graph.attributes["workload"]).draw_inputs(0)
    values = input_tiles(graph, tensors)
    for v in graph.topological_order.tolist():
        if graph.is_input[v]:
            continue
        kernel = graph.kernel[v]
        operands = [values[operand.vertex] for operand in kernel.operands]
        values[v] = numpy_kernels.run_kernel(kernel, operands)
        got = kernels.run_kernel(kernel, [tf.constant(x) for x in operands]).numpy()
        assert got.shape == values[v].shape
        np.testing.assert_allclose(got, values[v], rtol=2e-5, atol=2e-5, err_msg=graph.names[v])
