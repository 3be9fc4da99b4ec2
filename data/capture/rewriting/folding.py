"""What depends on constants and shapes alone is computed now, since all shapes are known."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from data.capture.kinds import Kind, kind_of
from data.capture.operations import CONTROL_FLOW, SHAPES
from data.capture.program import Node, Program, Tensor, constant, known_bytes, node_def, reached, tensor_of

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
    instead: dict[Tensor, Tensor] = {}
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        made = _shape_values(node, graph) if node.op in SHAPES else None
        if made is None:
            nodes[name] = node
            continue
        dtype = tensor_of(graph, (name, 0)).dtype
        for k, value in enumerate(made):
            nodes |= _constant((name, k), value, dtype, node, instead)
    return program.with_nodes(nodes, instead) if instead else program


def _constant(x: Tensor, value, dtype: tf.DType | None, of: Node, instead: dict[Tensor, Tensor]) -> dict[str, Node]:
    """The constant that stands for a tensor, by its name; the first of an operation takes over that of the operation."""
    name = x[0] if x[1] == 0 else f"{x[0]}/{x[1]}"
    instead[x] = (name, 0)
    return {name: constant(name, value, dtype, of.origin)}


def _shape_values(node: Node, graph: tf.Graph) -> list | None:
    shapes = [tensor_of(graph, x).shape for x in node.inputs]
    if node.op == "Rank":
        return None if shapes[0].rank is None else [shapes[0].rank]
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    return [shapes[0].num_elements()] if node.op == "Size" else [shape.as_list() for shape in shapes]


def _computed(program: Program, graph: tf.Graph) -> Program:
    """Operations on constants alone, by the constants that they make."""
    folded, wanted = foldable(program, {name for name, node in program.nodes.items() if node.op == "Const"}, graph)
    if not folded:
        return program
    values = dict(zip(wanted, values_of(program, wanted, {}), strict=True))
    instead: dict[Tensor, Tensor] = {}
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if name not in folded:
            nodes[name] = node
            continue
        for x in (x for x in wanted if x[0] == name):
            nodes |= _constant(x, values[x].numpy(), None, node, instead)
    return program.with_nodes(nodes, instead)


def foldable(program: Program, known: set[str], graph: tf.Graph) -> tuple[set[str], list[Tensor]]:
    """Operations that depend on known ones alone, and those of their tensors that are needed elsewhere. Args: known: names."""
    known, folded = set(known), set[str]()
    for name, node in program.nodes.items():
        if node.inputs and all(x in known for x, _ in node.inputs) and may_fold(node, graph):
            folded.add(name)
            known.add(name)
    taken = [x for name, node in program.nodes.items() if name not in folded for x in node.inputs if x[0] in folded]
    return folded, list(dict.fromkeys([*taken, *(x for x in program.outputs if x[0] in folded)]))


def may_fold(node: Node, graph: tf.Graph) -> bool:
    """Whether an operation gives the same on every device at every time, and not too much of it."""
    definition = op_def_registry.get(node.op)
    if (definition is None or definition.is_stateful or node.op in CONTROL_FLOW or kind_of(node.op, node.attr) is not Kind.PURE
            or node.op.startswith("StatelessRandom")):
        return False
    outputs = graph.get_operation_by_name(node.name).outputs if _has(graph, node.name) else []
    taken = sum(known_bytes(tensor_of(graph, x)) for x in node.inputs if _has(graph, x[0]))
    return bool(outputs) and all(x.dtype not in (tf.string, tf.variant, tf.resource) and known_bytes(x) <= max(MOST_BYTES, taken)
                                 for x in outputs)


def values_of(program: Program, wanted: list[Tensor], reads: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    """What tensors are, computed now. Args: reads: what operations that read variables give, by name."""
    if not wanted:
        return []
    part = tf.compat.v1.GraphDef(versions=program.library.versions)
    nodes = reached(program.nodes, [name for name, _ in wanted])
    part.node.extend(node_def(node) for name, node in nodes.items() if name not in reads and node.op != "Placeholder")
    given = {name: value for name, value in reads.items() if name in nodes}

    def compute(*tensors: tf.Tensor) -> list[tf.Tensor]:
        feeds = {f"{name}:0": tensor for name, tensor in zip(given, tensors, strict=True)}
        return tf.import_graph_def(part, feeds, [f"{name}:{k}" for name, k in wanted], name="")

    with tf.device("/CPU:0"):
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in given.values()]
        return tf.compat.v1.wrap_function(compute, specs)(*given.values())


def _has(graph: tf.Graph, name: str) -> bool:
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return False
    return True
