"""GraphDefs of many kinds, and the ways in which they get odd: what a test feeds to captures."""

from __future__ import annotations

import functools
import itertools
import random

import networkx as nx
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

Spec = tf.TensorSpec
X = Spec([3, 4])
# Loops that these steer end; what has another kind of end never might.
KEPT = ("counter", "while", "most")
OPERATIONS = ("Abs", "Neg", "Sigmoid", "Identity", "Shape", "Size", "Rank", "Sum", "MatMul", "AddV2", "Cast", "Unique", "Where", "Reshape",
              "ConcatV2", "Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "ReadVariableOp", "AssignVariableOp",
              "VarHandleOp", "VariableV2", "HashTableV2", "ReadFile", "CheckNumerics", "Empty", "StringLength", "AsString", "NoOp", "Const",
              "Placeholder", "PartitionedCall", "If", "NoSuchOperation", "Softmax", "Split", "Pack", "TensorListReserve", "IteratorV2",
              "Timestamp")
TYPES = (tf.float32, tf.float64, tf.int32, tf.int64, tf.bool, tf.string, tf.resource, tf.variant, tf.float16)


def plain(x, w):
    y = tf.nn.relu(x @ w) + tf.constant([1.0, 2.0, 3.0, 4.0])
    parts = tf.split(y, 2, axis=1)
    rows = tf.shape(x)[0]
    return tf.concat([parts[1], tf.tanh(parts[0])], 1), tf.reshape(y, [rows * 2, -1]), tf.reduce_mean(tf.nn.softmax(y), 1)


def updated(x, w):
    first = x @ w
    with tf.control_dependencies([first, tf.debugging.assert_less(tf.reduce_sum(x), 1000.0)]):
        update = tf.raw_ops.AssignAddVariableOp(resource=w.handle, value=tf.ones([4, 4]))
    with tf.control_dependencies([update]):
        return first, x @ w, tf.debugging.check_numerics(tf.gather(x, [1, 0]), "numbers")


def functional(x, w):
    @tf.function
    def inner(y):
        return tf.sigmoid(y) * 2.0

    y = inner(x)
    z = tf.cond(tf.reduce_sum(x) > 0.0, lambda: y @ w, lambda: inner(y) - 1.0)
    most = tf.constant(3, name="most")
    return z, tf.while_loop(lambda i, v: i < most, lambda i, v: (i + 1, tf.tanh(v)), (tf.constant(0, name="counter"), z))[1]


def switches(x, w):
    def nested():
        return tf.compat.v1.cond(x[0, 0] > 0.0, lambda: x * 2.0, lambda: x - 1.0)

    return tf.compat.v1.cond(tf.reduce_sum(x) > 0.0, nested, lambda: x @ w), tf.exp(x)


def circles(x, w):
    loop = tf.compat.v1.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, tf.tanh(v @ w)), (tf.constant(0, name="counter"), x))
    return loop[1] + 1.0, tf.reduce_max(x, 0)


def lists(x, w):
    array = tf.TensorArray(tf.float32, 3).unstack(x)
    return array.write(1, w[0]).stack() * 2.0, tf.reduce_sum(tf.cast(tf.unique(tf.cast(x[0], tf.int32))[0], tf.float32))


BASES = (plain, updated, functional, switches, circles, lists)


@functools.cache
def base(make) -> tuple[tf.compat.v1.GraphDef, tuple[str, ...]]:
    """A GraphDef with placeholders x and w (a variable's resource), and the names of its outputs."""
    def traced(x, w):
        return make(x, _Handle(w))

    if make in (switches, circles):
        tf.compat.v1.disable_control_flow_v2()
    try:
        function = tf.compat.v1.wrap_function(traced, [Spec(X.shape, X.dtype, "x"), Spec([], tf.resource, "w")])
    finally:
        tf.compat.v1.enable_control_flow_v2()
    graph = function.graph.as_graph_def()
    names = dict(zip((x.op.name for x in function.inputs), ("x", "w"), strict=True))
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        node.input[:] = [names.get(text, text) for text in node.input]
    return graph, tuple(x.name for x in function.outputs)


class _Handle:
    """A variable by its resource."""

    def __init__(self, handle):
        self.handle = handle

    def read(self):
        value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)
        value.set_shape([4, 4])
        return value

    def __rmatmul__(self, other):
        return other @ self.read()

    def __getitem__(self, key):
        return self.read()[key]


tf.register_tensor_conversion_function(_Handle, lambda value, dtype=None, name=None, as_ref=False: value.read())


def imported(graph: tf.compat.v1.GraphDef, outputs, variable: tf.Variable):
    """A Python function of x that imports the graph."""
    for node in graph.node:  # what is fed is there before all else
        node.input[:] = [text for text in node.input if text not in ("^x", "^w")]

    def function(x):
        handle = tf.compat.v1.get_default_graph().capture(variable.handle)
        feeds = {f"{name}:0": value for name, value in (("x", x), ("w", handle)) if any(node.name == name for node in graph.node)}
        return tf.import_graph_def(graph, feeds, list(outputs), name="")
    return function


def in_order(graph: tf.compat.v1.GraphDef, resource: str) -> bool:
    """Whether each update of the variable has its place among the operations that take it, so that TensorFlow has no choice."""
    edges = nx.DiGraph((text.removeprefix("^").partition(":")[0], node.name) for node in graph.node for text in node.input)
    users = [node for node in graph.node if any(text.partition(":")[0] == resource for text in node.input)]
    return all(nx.has_path(edges, one.name, other.name) or nx.has_path(edges, other.name, one.name)
               for one in users if one.op not in ("ReadVariableOp", "Identity") for other in users if one is not other)


def crashing(graph: tf.compat.v1.GraphDef) -> str:
    """The first function that TensorFlow cannot read, or constant of two types, or "": running one, TensorFlow crashes the process."""
    for node in itertools.chain(graph.node, *(function.node_def for function in graph.library.function)):
        if node.op == "Const" and node.attr["value"].tensor.dtype != node.attr["dtype"].type:
            return node.name or "constant"
    with tf.Graph().as_default():
        try:
            tf.import_graph_def(tf.compat.v1.GraphDef(library=graph.library, versions=graph.versions), name="")
            for function in graph.library.function:
                body, names = function_def_to_graph.function_def_to_graph_def(function)
                tf.import_graph_def(body, name=function.signature.name)
                if not {arg.name for arg in function.signature.output_arg} <= {key for key, text in function.ret.items() if text in names}:
                    return function.signature.name
        except (ValueError, KeyError, RuntimeError, tf.errors.OpError):
            return function.signature.name if graph.library.function else "library"
    return ""


def mark_functions(graph: tf.compat.v1.GraphDef, mark: str) -> None:
    """Puts a mark behind the names of all functions: a process knows each name once."""
    for function in graph.library.function:
        function.signature.name += mark
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for value in (value for node in nodes for value in node.attr.values() if value.HasField("func")):
            value.func.name += mark


def make_odd(graph: tf.compat.v1.GraphDef, rng: random.Random, functions: bool = True) -> list[str]:
    """Changes a GraphDef in one to three ways, and returns which. Args: functions: those of its library, too."""
    ways = [rng.choice(WAYS if functions else WAYS[:-1]) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    for way in ways:
        found = [f for f in graph.library.function if not f.signature.name.startswith(("while_", "__inference_while"))]
        way(rng.choice(found).node_def if functions and found and rng.random() < 0.25 else graph.node, rng, graph)
    return [way.__name__ for way in ways]


def _one(nodes, rng, wanted=lambda node: True):
    """A node that may be changed without a loop that does not end."""
    found = [node for node in nodes if wanted(node) and not any(word in f"{node.name} {' '.join(node.input)}" for word in KEPT)]
    return rng.choice(found) if found else None


def rename(nodes, rng, graph):
    node = _one(nodes, rng)
    if node is not None:
        old, node.name = node.name, rng.choice(["other", "a/b/c", "x", "1st", "with space", "Merge", ""])
        if rng.random() < 0.6:
            for taker in nodes:
                taker.input[:] = [node.name + text[len(old):] if text.partition(":")[0] == old else text for text in taker.input]


def retype(nodes, rng, graph):
    node = _one(nodes, rng)
    if node is not None:
        node.op = rng.choice(OPERATIONS)


def drop(nodes, rng, graph):
    node = _one(nodes, rng)
    if node is not None:
        nodes.remove(node)


def reorder(nodes, rng, graph):
    records = [type(node).FromString(node.SerializeToString()) for node in nodes]
    rng.shuffle(records)
    del nodes[:]
    nodes.extend(records)


def duplicate(nodes, rng, graph):
    node = _one(nodes, rng)
    if node is not None:
        copy = nodes.add()
        copy.CopyFrom(node)
        copy.name += rng.choice(["", "_again"])


def change_attribute(nodes, rng, graph):
    node = _one(nodes, rng, lambda node: len(node.attr))
    if node is None:
        return
    key = rng.choice(sorted(node.attr))
    value = node.attr[key]
    kind = value.WhichOneof("value")
    if rng.random() < 0.15:
        del node.attr[key]
    elif kind == "type":
        value.type = rng.choice(TYPES).as_datatype_enum
    elif kind == "b":
        value.b = not value.b
    elif kind == "i":
        value.i = rng.choice([0, 1, 2, 3, -1, 7])
    elif kind == "func":
        value.func.name = rng.choice(["absent", *(f.signature.name for f in graph.library.function)])
    elif kind == "shape":
        value.shape.CopyFrom(tf.TensorShape(rng.choice([None, [], [3], [None, 4], [4, 3], [0]])).as_proto())
    elif kind == "tensor":
        value.tensor.CopyFrom(tf.make_tensor_proto(rng.choice([2.0, 1, [0, 1], [[1.0]], True, "text", np.zeros([0]), -1])))
    elif kind == "s":
        value.s = rng.choice([b"", b"other", b"\xff"])


def rewire(nodes, rng, graph):
    node = _one(nodes, rng, lambda node: len(node.input))
    if node is not None:
        other = rng.choice(list(nodes)).name
        node.input[rng.randrange(len(node.input))] = rng.choice([other, f"{other}:1", f"^{other}", "absent", f"{other}:output:0", ""])


def add_control(nodes, rng, graph):
    node, other = _one(nodes, rng), rng.choice(list(nodes))
    if node is not None:
        node.input.append(f"^{other.name}")


def drop_input(nodes, rng, graph):
    node = _one(nodes, rng, lambda node: len(node.input))
    if node is not None:
        del node.input[rng.randrange(len(node.input))]


def add_switch(nodes, rng, graph):
    """Parts an edge by a switch whose other side nobody, or a Merge, takes."""
    node = _one(nodes, rng, lambda node: len(node.input) and not node.input[0].startswith("^") and "T" in node.attr)
    if node is not None:
        kind = tf.compat.v1.AttrValue(type=node.attr["T"].type)
        predicate = nodes.add(name="odd/predicate", op="Const", attr={
            "dtype": tf.compat.v1.AttrValue(type=tf.bool.as_datatype_enum),
            "value": tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto(rng.random() < 0.5))})
        at_top = nodes == graph.node  # in functions outputs have names
        switch = nodes.add(name="odd/switch", op="Switch", attr={"T": kind},
                           input=[node.input[0], predicate.name if at_top else f"{predicate.name}:output:0"])
        sides = [f"{switch.name}:{k}" if at_top else f"{switch.name}:output_{('false', 'true')[k]}:0" for k in (0, 1)]
        if rng.random() < 0.6 or not at_top:
            merge = nodes.add(name="odd/merge", op="Merge", input=sides[:rng.randint(1, 2)] if at_top else sides,
                              attr={"T": kind, "N": tf.compat.v1.AttrValue(i=2)})
            merge.attr["N"].i = len(merge.input)
            sides = [merge.name if at_top else f"{merge.name}:output:0"]
        node.input[0] = rng.choice(sides)


def change_library(nodes, rng, graph):
    """Drops a function, or what one returns."""
    if graph.library.function:
        function = rng.choice(list(graph.library.function))
        if rng.random() < 0.4:
            graph.library.function.remove(function)
        elif function.ret and not function.signature.name.startswith(("while_", "__inference_while")):
            key = rng.choice(sorted(function.ret))
            if rng.random() < 0.5:
                del function.ret[key]
            else:
                function.ret[key] = rng.choice(["absent:output:0", *function.ret.values()])


WAYS = (rename, retype, retype, drop, reorder, duplicate, change_attribute, change_attribute, change_attribute, rewire, rewire, add_control,
        drop_input, add_switch, add_switch, change_library)
