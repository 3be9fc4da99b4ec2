"""A kernel as one call: what it computes, when it is compiled, who shares it, what refuses it."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from data import assemble_outputs, build_workload, evaluate_program, execute_tiles, fuse, input_tiles, relative_error, workload_program
from doppler_tf.errors import GraphError
from doppler_tf.graph.dataflow import Kernel, Operand
from doppler_tf.graph.records import graph_from_records
from runtime import calls, kernels
from runtime.calls import KernelCall, execute_on
from runtime.graph_calls import kernel_calls

PRODUCT = ("einsum", {"subscripts": "ac,cb->ab"}, (4, 4), (4, 4))
STEPS = [{"op": "map", "params": {"fn": "relu", "subscripts": "ab->ab"}, "operands": [{"from": 1, "slice": None}]},
         {"op": "einsum", "params": {"subscripts": "ac,cb->ab"}, "operands": [{"from": 0, "slice": [[1, 3], [0, 4]]},
                                                                              {"from": 2, "slice": None}]},
         {"op": "reduce", "params": {"fn": "square", "aggregate": "max", "subscripts": "ab->a"}, "operands": [{"from": 3, "slice": None}]}]
OPS = {"product": PRODUCT,
       "batch": ("einsum", {"subscripts": "abc,acd->abd"}, (2, 3, 4), (2, 4, 5)),
       "reduce": ("reduce", {"fn": "mul", "aggregate": "prod", "subscripts": "ab,b->a"}, (4, 4), (4,)),
       "map": ("map", {"fn": "scale", "factor": 0.5, "offset": 2.0, "subscripts": "ab->ba"}, (4, 3)),
       "one": ("aggregate", {"aggregate": "sum"}, (4, 4)),
       "sum": ("aggregate", {"aggregate": "sum"}, (4, 4), (4, 4), (4, 4)),
       "min": ("aggregate", {"aggregate": "min"}, (4, 4), (4, 4)),
       "assemble": ("assemble", {"shape": [4, 2], "boxes": [[[2, 4], [0, 2]], [[0, 2], [0, 2]]]}, (2, 2), (2, 2)),
       "pad": ("pad", {"shape": [4, 5], "box": [[1, 3], [0, 5]]}, (2, 5)),
       "zeros": ("pad", {"shape": [4, 5], "box": None}, (1, 1)),
       "fused": ("fused", {"steps": STEPS}, (4, 4), (4, 4)), "token": ("token", {}, (4, 4), (2,))}


def make(op, params, *shapes, places=None, slices=None):
    """A kernel, whose operands are the vertices `places`, and one tensor for each operand."""
    places, slices = places or range(len(shapes)), slices or [None] * len(shapes)
    drawn = {place: np.random.default_rng(place).normal(size=shape).astype(np.float32) for place, shape in zip(places, shapes, strict=True)}
    kernel = Kernel(op, tuple(Operand(place, part) for place, part in zip(places, slices, strict=True)), params)
    return kernel, [tf.constant(drawn[place]) for place in places]


def specs(tensors):
    return [tf.TensorSpec(x.shape, x.dtype) for x in tensors]


def call_of(kernel, tensors):
    """The call, and the tensors as its operands."""
    vertices = list(dict.fromkeys(operand.vertex for operand in kernel.operands))
    arguments = {operand.vertex: x for operand, x in zip(kernel.operands, tensors, strict=True)}
    moved = Kernel(kernel.op, tuple(Operand(vertices.index(o.vertex), o.slice) for o in kernel.operands), kernel.params)
    return KernelCall("toy", moved, specs(arguments[v] for v in vertices))


def check(kernel, tensors):
    (got,), expected = call_of(kernel, tensors)(tensors, tensors[0].device), kernels.run_kernel(kernel, tensors)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_every_operation_is_tried():
    assert {op for op, *_ in OPS.values()} == kernels.KERNELS.keys()


@pytest.mark.parametrize("name", OPS)
def test_a_call_computes_what_its_kernel_does(name):
    check(*make(*OPS[name]))


@pytest.mark.parametrize("slices", [None, (((0, 2), (1, 3)), ((2, 4), (0, 2)), ((1, 3), (2, 4)))])
@pytest.mark.parametrize("places", [(7, 7, 7), (7, 3, 7), (3, 3, 7), (9, 7, 3)])
def test_operands_may_be_slices_and_the_same_tensor_more_than_once(places, slices):
    joined = {"fn": "sub", "aggregate": "sum", "subscripts": "ac,cb->ab"}
    check(*make("reduce", joined, (4, 4), (4, 4), places=places[:2], slices=slices and slices[:2]))
    check(*make("aggregate", {"aggregate": "sum"}, (4, 4), (4, 4), (4, 4), places=places, slices=slices))


@pytest.mark.parametrize(("operation", "compiled"), [
    (PRODUCT, False), (OPS["batch"], False), (OPS["one"], False), (OPS["sum"], True), (OPS["map"], True), (OPS["fused"], True)])
def test_what_is_compiled(operation, compiled, monkeypatch):
    """A call that is not compiled names TensorFlow's own operation, a compiled one a function."""
    kernel, tensors = make(*operation)
    call, seen = KernelCall("toy", kernel, specs(tensors)), []
    monkeypatch.setattr(calls, "execute_on", lambda device, op, *_: seen.append(op))
    call(tensors, "CPU:0")
    assert [op in ("MatMul", "BatchMatMulV2", "Einsum", "Identity") for op in seen] == [not compiled]


def test_a_transposed_product_and_its_swapped_operands():
    """Both reach TensorFlow's operation: what is transposed as an attribute, the operands in the order of the subscripts."""
    for subscripts, shapes in (("ca,cb->ab", ((4, 2), (4, 3))), ("ac,bc->ab", ((2, 4), (3, 4))), ("ca,bc->ba", ((4, 2), (3, 4)))):
        check(*make("einsum", {"subscripts": subscripts}, *shapes))


def test_an_error_of_tensorflow_reaches_the_caller_as_usual():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Matrix size-incompatible"):
        execute_on(tf.zeros(1).device, "MatMul", [tf.zeros((2, 3)), tf.zeros((2, 3))],
                   ("transpose_a", False, "transpose_b", False, "T", tf.float32.as_datatype_enum))


def test_output_is_known_beforehand():
    kernel, tensors = make(*OPS["fused"])
    call = KernelCall("toy", kernel, specs(tensors))
    assert (call.outputs, call.output_bytes) == ([tf.TensorSpec((2,), tf.float32)], [8])


def graph_of(*work):
    """A graph of an input x and work vertices (id, op, params, operands)."""
    nodes = [{"id": "x", "input": True}]
    nodes += [{"id": v, "flops": 1, "kernel": {"op": op, "params": params, "operands": [{"vertex": u} for u in operands]}}
              for v, op, params, operands in work]
    edges = [{"source": u, "target": v} for v, _, _, operands in work for u in dict.fromkeys(operands)]
    return graph_from_records(nodes, edges, {"name": "toy"})


def relu(v, operand):
    return v, "map", {"fn": "relu", "subscripts": "ab->ab"}, [operand]


def test_equal_kernels_on_equal_shapes_share_one_call():
    total, add = {"fn": "identity", "aggregate": "sum", "subscripts": "ab->a"}, {"fn": "add", "subscripts": "ab,ab->ab"}
    graph = graph_of(relu("a", "x"), relu("b", "a"), ("t", "reduce", total, ["a"]), ("c", "map", add, ["a", "b"]),
                     ("d", "map", add, ["a", "a"]), ("e", "map", add, ["b", "a"]))
    at = graph.vertex_of
    found = kernel_calls(graph, {at["x"]: tf.TensorSpec((2, 3), tf.float32)})
    assert found[at["a"]] is found[at["b"]]
    assert found[at["c"]] is found[at["e"]]
    assert len({found[at[v]].name for v in "acdt"}) == 4
    assert found[at["t"]].outputs[0].shape == (2,)
    for other in (tf.TensorSpec((3, 2), tf.float32), tf.TensorSpec((2, 3), tf.float64)):
        others = kernel_calls(graph, {at["x"]: other})
        assert not {call.name for call in found.values()} & {call.name for call in others.values()}
        assert others[at["c"]].outputs == [other]


@pytest.mark.parametrize(("op", "params", "reason"), [
    ("einsum", {"subscripts": "ac,cb->ab"}, "ValueError: Dimensions must be equal"), ("map", {"subscripts": "ab,ab->ab"}, "KeyError: 'fn'"),
    ("map", {"fn": "tan", "subscripts": "ab,ab->ab"}, "KeyError: 'tan'"), ("map", {"fn": "relu"}, "KeyError: 'subscripts'"),
    ("conv", {}, "ExecutionError: kernel: op: expected one of einsum, .*, got 'conv'"),
    ("fused", {"steps": [{"op": "conv", "params": {}, "operands": []}]}, "ExecutionError: kernel: op: .* got 'conv'")])
def test_a_kernel_that_cannot_run_is_refused_with_its_vertex(op, params, reason):
    graph = graph_of(relu("a", "x"), ("bad", op, params, ["a", "a"]))
    expected = rf"^toy: vertex 'bad': kernel: expected one that fits its operands, got {op} of shapes \(2, 3\), \(2, 3\) \({reason}"
    with pytest.raises(GraphError, match=expected):
        kernel_calls(graph, {0: tf.TensorSpec((2, 3), tf.float32)})


def test_a_call_warms_once_a_device(four_devices, monkeypatch):
    kernel, tensors = make(*OPS["sum"])
    call, seen = KernelCall("toy", kernel, specs(tensors)), []
    monkeypatch.setattr(KernelCall, "__call__", lambda self, operands, device: seen.append([device, *[x.device for x in operands]]))
    for device in (*four_devices[:2], *four_devices[:2]):
        call.warm(device)
    assert [{name[-5:] for name in names} for names in seen] == [{device[-5:]} for device in four_devices[:2]]


@pytest.mark.parametrize("name", ["product", "sum", "fused"])
def test_two_threads_on_two_devices(name, four_devices):
    """Each has its own numbers, and its results where it is."""
    kernel, drawn = make(*OPS[name])
    call = call_of(kernel, drawn)

    def work(device):
        with tf.device(four_devices[device]):
            for trial in range(50):
                rng = np.random.default_rng([device, trial])
                tensors = [tf.constant(rng.normal(size=shape).astype(np.float32)) for shape in OPS[name][2:]]
                (got,) = call(tensors, four_devices[device])
                assert got.device == tensors[0].device
                np.testing.assert_allclose(got, kernels.run_kernel(kernel, tensors), rtol=1e-5, atol=1e-6)
        return got.device

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(work, range(2)))) == 2


def test_a_fused_workload_call_by_call():
    graph = fuse(build_workload("llama_layer", 2, "small", tokens=24, dim=32, heads=4, ffn=44, vocab=50))
    program = workload_program(graph.attributes["workload"])
    tensors = program.draw_inputs(0)
    values = {v: tf.constant(x) for v, x in input_tiles(graph, tensors).items()}
    found = kernel_calls(graph, {v: tf.TensorSpec(x.shape, x.dtype) for v, x in values.items()})
    for v in graph.topological_order.tolist():
        if not graph.is_input[v]:
            (values[v],) = found[v]([values[operand.vertex] for operand in graph.kernel[v].operands], tf.zeros(1).device)
            assert found[v].outputs == [tf.TensorSpec(values[v].shape, values[v].dtype)]
    got = assemble_outputs(graph, {v: x.numpy() for v, x in values.items()})
    assert relative_error(got, evaluate_program(program, tensors)) <= 1e-5
    assert relative_error(got, execute_tiles(graph, tensors)) <= 1e-5
