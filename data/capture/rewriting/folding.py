"""What depends on constants and shapes alone is computed now, since all shapes are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from data.capture.kinds import Kind, kind_of
from data.capture.operations import CONTROL_FLOW, SHAPES
from data.capture.program import Node, Program, Tensor, constant, node_def, reached

# A constant of more bytes than that is not written into the file, unless what it is made of was as large.
MOST_BYTES = 1 << 16


def fold(program: Program) -> Program:
    """The program with all folded that can be."""
    while True:
        graph = program.imported()
        folded = _computed(_shapes_as_constants(program, graph), graph)
        if folded is program:
            return program
        program = folded


def _shapes_as_constants(program: Program, graph: tf.Graph) -> Program:
    """Shape, Size and Rank of tensors whose shapes are known."""
    source: dict[Tensor, Tensor] = {}
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        made = _shape_values(node, graph) if node.op in SHAPES else None
        if made is None:
            nodes[name] = node
            continue
        dtype = graph.get_operation_by_name(name).outputs[0].dtype
        for k, value in enumerate(made):
            fresh = name if k == 0 else f"{name}/{k}"
            nodes[fresh] = constant(fresh, value, dtype, node.origin)
            source[name, k] = (fresh, 0)
    if not source:
        return program
    moved = {name: replace(node, inputs=[source.get(x, x) for x in node.inputs]) for name, node in nodes.items()}
    return program.with_nodes(moved, [source.get(x, x) for x in program.outputs])


def _shape_values(node: Node, graph: tf.Graph) -> list | None:
    shapes = [_tensor(graph, x).shape for x in node.inputs]
    if node.op == "Rank":
        return None if shapes[0].rank is None else [shapes[0].rank]
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    return [shapes[0].num_elements()] if node.op == "Size" else [shape.as_list() for shape in shapes]


def _computed(program: Program, graph: tf.Graph) -> Program:
    """Operations on constants alone, by the constants that they make."""
    known = {name for name, node in program.nodes.items() if node.op == "Const"}
    folded: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if node.inputs and all(x in known for x, _ in node.inputs) and may_fold(node, graph):
            folded[name] = node
            known.add(name)
    if not folded:
        return program
    taken = [x for name, node in program.nodes.items() if name not in folded for x in node.inputs if x[0] in folded]
    wanted = list(dict.fromkeys([*taken, *(x for x in program.outputs if x[0] in folded)]))
    values = dict(zip(wanted, _values(program, wanted), strict=True)) if wanted else {}
    source: dict[Tensor, Tensor] = {}
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if name not in folded:
            nodes[name] = replace(node, inputs=[source.get(x, x) for x in node.inputs])
            continue
        for x in (x for x in wanted if x[0] == name):
            fresh = name if x[1] == 0 else f"{name}/{x[1]}"
            nodes[fresh] = constant(fresh, values[x], None, node.origin)
            source[x] = (fresh, 0)
    return program.with_nodes(nodes, [source.get(x, x) for x in program.outputs])


def may_fold(node: Node, graph: tf.Graph) -> bool:
    """Whether an operation gives the same on every device at every time, and not too much of it."""
    definition = op_def_registry.get(node.op)
    if (definition is None or definition.is_stateful or node.op in CONTROL_FLOW or kind_of(node.op, node.attr) is not Kind.PURE
            or node.op.startswith("StatelessRandom")):
        return False
    outputs = graph.get_operation_by_name(node.name).outputs if _has(graph, node.name) else []
    taken = sum(_bytes(_tensor(graph, x)) for x in node.inputs if _has(graph, x[0]))
    return bool(outputs) and all(x.dtype not in (tf.string, tf.variant, tf.resource) and _bytes(x) <= max(MOST_BYTES, taken)
                                 for x in outputs)


def _values(program: Program, wanted: list[Tensor]) -> list[np.ndarray]:
    part = tf.compat.v1.GraphDef(versions=program.library.versions)
    part.node.extend(map(node_def, reached(program.nodes, [name for name, _ in wanted]).values()))
    names = [f"{name}:{k}" for name, k in wanted]
    with tf.device("/CPU:0"):
        function = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(part, return_elements=names, name=""), [])
        return [value.numpy() for value in function()]


def _has(graph: tf.Graph, name: str) -> bool:
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True


def _tensor(graph: tf.Graph, x: Tensor) -> tf.Tensor:
    return graph.get_operation_by_name(x[0]).outputs[x[1]]


def _bytes(tensor: tf.Tensor) -> int:
    """0 where the shape is unknown: of constants, small ones are."""
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size
