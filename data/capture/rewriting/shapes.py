"""Shapes that TensorFlow cannot infer through loops and branches, found by running the function twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf

from data.capture.operations import CONTROL_FLOW
from data.capture.program import SHAPES, Program, Tensor, node_def, reached, shape_attr, tensor_of
from data.capture.rewriting.effects import Library

# Behind these, TensorFlow may not know shapes that are fixed all the same. What a normalisation keeps for its gradient is one of them.
_OPAQUE = CONTROL_FLOW | {"FusedBatchNormV3"}
# Their outputs' shapes depend on the values of their inputs.
_BY_VALUE = ("Where", "Unique", "ListDiff", "DynamicPartition", "NonMaxSuppression", "Ragged", "Sparse", "StringSplit", "SetOperation")
# They make values of shapes, and so the shapes of what is made to such a size.
_SIZES = ("Shape", "ShapeN", "Size", "Rank")
_TYPELESS = (tf.variant, tf.resource, tf.string)


def with_found_shapes(program: Program) -> Program:
    """The program with the shapes that two runs on different random inputs agree on.

    Runs are made only if loops, branches or lists of tensors hide shapes that inputs of fixed shapes decide. Tensors whose shapes depend
    on values keep what is known of them.
    """
    graph = program.imported()
    wanted = _hidden(program, graph)
    if not wanted:
        return program
    first, second = (_shapes(program, wanted, seed) for seed in (0, 1))
    found = {x: shape for x, shape, again in zip(wanted, first, second, strict=True) if shape == again}
    nodes = dict(program.nodes)
    for name in {name for name, _ in found}:
        outputs = graph.get_operation_by_name(name).outputs
        shapes = [found.get((name, k), x.shape) for k, x in enumerate(outputs)]
        nodes[name] = replace(nodes[name], attr={**nodes[name].attr, SHAPES: shape_attr(shapes)})
    return program.with_nodes(nodes)


def _hidden(program: Program, graph: tf.Graph) -> list[Tensor]:
    """Tensors of unknown shape that follow from hidden shapes and from nothing else."""
    library, by_value, sizes, wanted = Library(program.library), set[str](), set[str](), []

    def is_known(x: Tensor) -> bool:
        tensor = tensor_of(graph, x)
        return tensor.dtype in _TYPELESS or tensor.shape.is_fully_defined()

    for name, node in program.nodes.items():
        if node.op in _SIZES and not all(map(is_known, node.inputs)) and not any(x in by_value for x, _ in node.inputs):
            sizes.add(name)
        elif any(x in sizes for x, _ in node.inputs) and all(x in sizes or program.nodes[x].op == "Const" for x, _ in node.inputs):
            sizes.add(name)  # computed from sizes alone
        outputs = graph.get_operation_by_name(name).outputs
        unknown = [(name, k) for k in range(len(outputs)) if not is_known((name, k))]
        if not unknown:
            continue
        hidden = (node.op in _OPAQUE or node.op.startswith("TensorList")
                  or any(x[0] in sizes or not is_known(x) for x in node.inputs))
        if (not hidden or any(x in by_value for x, _ in node.inputs)
                or any(op.startswith(_BY_VALUE) for op in (node.op, *library.operations(node)))):
            by_value.add(name)
        else:
            wanted += unknown
    return wanted


def _shapes(program: Program, wanted: list[Tensor], seed: int) -> list[list[int]]:
    """The shapes in a run on random inputs and weights."""
    rng = np.random.default_rng(seed)
    part = tf.compat.v1.GraphDef()
    part.CopyFrom(program.library)
    nodes = reached(program.nodes, [name for name, _ in wanted])
    part.node.extend(map(node_def, nodes.values()))
    with tf.device("/CPU:0"):
        variables = {name: tf.Variable(_draw(rng, v.shape, v.dtype)) for name, v in program.variables.items() if name in nodes}
        graph = program.imported()
        arguments = {name: tf.constant(_draw(rng, x.shape.as_list(), x.dtype), x.dtype) for name in program.arguments if name in nodes
                     for x in graph.get_operation_by_name(name).outputs}

        def run() -> list[tf.Tensor]:
            capture = tf.compat.v1.get_default_graph().capture
            feeds = {name: capture(value) for name, value in {**arguments, **{key: v.handle for key, v in variables.items()}}.items()}
            return [tf.shape(x) for x in tf.import_graph_def(part, feeds, [f"{name}:{k}" for name, k in wanted], name="")]

        return [shape.numpy().tolist() for shape in tf.compat.v1.wrap_function(run, [])()]


def _draw(rng: np.random.Generator, shape, dtype: tf.DType) -> tf.Tensor:
    return tf.cast(tf.constant(rng.uniform(0, 2, shape)), dtype)
