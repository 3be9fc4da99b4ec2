"""A captured function as a list of operations: what the other files of this folder read and rewrite."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import networkx as nx
import tensorflow as tf

# An operation's name and the number of one of its outputs.
Tensor = tuple[str, int]
SHAPES = "_output_shapes"


@dataclass
class Node:
    """One operation.

    Attributes:
      inputs: the tensors that it takes, in order.
      controls: names of the operations that must have run before.
      attr: attributes as in a NodeDef.
      origin: the function that holds it in the user's program (None: the captured one itself) and its name there.
      scopes: texts of the `tf.device` scopes that it stands in, merged to one; loops and branches have those of what they run, too.
    """

    name: str
    op: str
    inputs: list[Tensor]
    controls: list[str]
    attr: Mapping[str, tf.compat.v1.AttrValue]
    origin: tuple[str | None, str]
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variable:
    """A variable that the function reads or updates: its name in files, the placeholder of its resource, and its value's type.

    Attributes:
      shape: that of its present value.
      open_shape: whether a value of another shape can be assigned to it.
      frozen: its value is a part of the vertices that read it.
    """

    name: str
    placeholder: str
    shape: tuple[int, ...]
    dtype: tf.DType
    open_shape: bool = False
    frozen: bool = False

    @property
    def size_bytes(self) -> int:
        """Of its present value."""
        return math.prod(self.shape) * self.dtype.size


@dataclass(frozen=True)
class Program:
    """Operations, each after all that it takes.

    Attributes:
      arguments: placeholders of the function's arguments, in order.
      variables: by placeholder.
      outputs: the tensors that the function returns.
      library: the functions that loops and branches call.
      operations: how many it had once calls were inlined.
      line: tells the line of the user's code that made an operation, "" where that is not known.
      weights: the values of frozen variables, by name.
    """

    nodes: dict[str, Node]
    arguments: tuple[str, ...]
    variables: Mapping[str, Variable]
    outputs: tuple[Tensor, ...]
    library: tf.compat.v1.GraphDef
    operations: int
    line: Callable[[Node], str] = field(default=lambda node: "")
    weights: Mapping[str, tf.Tensor] = field(default_factory=dict)

    def with_nodes(self, nodes: dict[str, Node], instead: Mapping[Tensor, Tensor] | None = None) -> Program:
        """The same function by other operations. Args: instead: what is taken in place of a tensor, by operations and as output."""
        if instead:
            nodes = {name: replace(node, inputs=[instead.get(x, x) for x in node.inputs]) for name, node in nodes.items()}
        return replace(self, nodes=nodes, outputs=tuple(instead.get(x, x) for x in self.outputs) if instead else self.outputs)

    def graph_def(self) -> tf.compat.v1.GraphDef:
        """The program as TensorFlow reads it."""
        graph = tf.compat.v1.GraphDef()
        graph.CopyFrom(self.library)
        graph.node.extend(map(node_def, self.nodes.values()))
        return graph

    def imported(self) -> tf.Graph:
        """The program as a TensorFlow graph, which knows shapes as far as they can be inferred."""
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(self.graph_def(), name="")
        return graph


def tensor_of(graph: tf.Graph, x: Tensor) -> tf.Tensor:
    """The tensor in a TensorFlow graph of its program."""
    return graph.get_operation_by_name(x[0]).outputs[x[1]]


def known_bytes(tensor: tf.Tensor) -> int:
    """The size of a tensor; 0 where its shape is unknown."""
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def unique(name: str, taken: Container[str]) -> str:
    """The name, with a number behind it if it is taken."""
    free, count = name, 0
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    return free


def node_def(node: Node) -> tf.compat.v1.NodeDef:
    """The operation as TensorFlow reads it."""
    inputs = [name if not k else f"{name}:{k}" for name, k in node.inputs]
    return tf.compat.v1.NodeDef(name=node.name, op=node.op, input=inputs + [f"^{name}" for name in dict.fromkeys(node.controls)],
                                attr=dict(node.attr))


def parse_inputs(inputs: Iterable[str]) -> tuple[list[Tensor], list[str]]:
    """Tensors and controls of a NodeDef."""
    tensors, controls = [], []
    for text in inputs:
        if text.startswith("^"):
            controls.append(text[1:])
        else:
            name, _, k = text.partition(":")
            tensors.append((name, int(k or 0)))
    return tensors, controls


def in_order(nodes: Mapping[str, Node]) -> dict[str, Node] | None:
    """The operations, each after all that it takes and otherwise as they came; None where they go round in a circle."""
    done: dict[str, Node] = {}
    for start in nodes:
        stack, open_ = [start], set()
        while stack:
            name = stack[-1]
            if name in done:
                stack.pop()
                continue
            missing = [other for other in needed(nodes[name]) if other not in done]
            if not missing:
                done[stack.pop()] = nodes[name]
                continue
            if name in open_:
                return None
            open_.add(name)
            stack += reversed(missing)
    return done


def needed(node: Node) -> list[str]:
    """Names of all operations that must have run before this one."""
    return [name for name, _ in node.inputs] + node.controls


def inseparable(before: Mapping[str, Iterable[str]], together: nx.Graph) -> list[list[str]]:
    """Groups of operations that stay together, and all that lies on a path between two of a group, in the order given.

    Args: before: for each operation, those that must have run before it; together: joins those that cannot be parted.
    """
    either_way = nx.DiGraph(together)  # two that reach each other are in one circle
    either_way.add_nodes_from(before)
    either_way.add_edges_from((x, name) for name, each in before.items() for x in each)
    circle = {name: c for c, members in enumerate(nx.strongly_connected_components(either_way)) for name in members}
    groups: dict[int, list[str]] = {}
    for name in before:
        groups.setdefault(circle[name], []).append(name)
    return list(groups.values())


def reached(nodes: Mapping[str, Node], roots: Iterable[str]) -> dict[str, Node]:
    """The operations that the roots need, themselves included, in the order given."""
    found, stack = set(), list(roots)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += needed(nodes[name])
    return {name: node for name, node in nodes.items() if name in found}


def library_functions(node_attr: Mapping[str, tf.compat.v1.AttrValue]) -> list[str]:
    """Names of the functions that an operation's attributes refer to."""
    return [name for value in node_attr.values()
            for name in ([value.func.name] if value.HasField("func") else [f.name for f in value.list.func])]


def constant(name: str, value, dtype: tf.DType | None, origin: tuple[str | None, str]) -> Node:
    """An operation that makes a constant."""
    tensor = tf.make_tensor_proto(value, dtype)
    attr = {"value": tf.compat.v1.AttrValue(tensor=tensor), "dtype": tf.compat.v1.AttrValue(type=tensor.dtype)}
    return Node(name, "Const", [], [], attr, origin)


def type_attr(dtype: tf.DType) -> tf.compat.v1.AttrValue:
    """A type as an attribute."""
    return tf.compat.v1.AttrValue(type=dtype.as_datatype_enum)


def shape_attr(shapes: Iterable[tf.TensorShape | Iterable[int]]) -> tf.compat.v1.AttrValue:
    """Shapes of outputs, as the attribute that `import_graph_def` heeds."""
    value = tf.compat.v1.AttrValue()
    value.list.shape.extend(tf.TensorShape(shape).as_proto() for shape in shapes)
    return value
