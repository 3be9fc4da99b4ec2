"""Reference variables of TensorFlow 1 that a function only reads become resource variables with the values that they have now."""

from __future__ import annotations

import tensorflow as tf

from data.capture.calls.concrete import Concrete
from data.capture.kinds import Kind, kind_of
from data.capture.program import Variable, type_attr
from data.capture.rewriting.effects import RESOURCE
from doppler_tf.errors import ConfigError

_VARIABLES = frozenset(("Variable", "VariableV2"))
# What passes a reference on, and what passes a tensor on in the same way.
_AS_TENSORS = {"RefEnter": "Enter", "RefExit": "Exit", "RefIdentity": "Identity", "RefMerge": "Merge", "RefNextIteration": "NextIteration",
               "RefSwitch": "Switch"}


def read_as_resources(graph: tf.compat.v1.GraphDef, source: Concrete, where: str) -> None:
    """Rewrites the graph, and gives its source the new variables. If the function updates one, nothing is changed.

    Raises:
      ConfigError: a variable has no value yet.
    """
    references = [node for node in graph.node if kind_of(node.op, node.attr) is Kind.REFERENCE]
    variables = {node.name: node for node in references if node.op in _VARIABLES}
    if not variables or any(node.op not in _VARIABLES and node.op not in _AS_TENSORS for node in references):
        return
    reads = {}
    for name, node in variables.items():
        value = _value(node, where)
        variable = tf.Variable(value, trainable=False, name=name)
        source.variables[name] = Variable(name, name, tuple(value.shape), value.dtype)
        source.handles[name] = variable.handle
        reads[name] = graph.node.add(name=f"{name}/as_resource", op="ReadVariableOp", input=[name],
                                     attr={"dtype": type_attr(value.dtype)}).name
        node.op = "Placeholder"
        node.attr.clear()
        node.attr["dtype"].type = RESOURCE
    new = set(reads.values())
    for node in graph.node:
        node.op = _AS_TENSORS.get(node.op, node.op)
        if node.name not in new:
            node.input[:] = [reads.get(text.removesuffix(":0"), text) for text in node.input]


def _value(node: tf.compat.v1.NodeDef, where: str) -> tf.Tensor:
    """TensorFlow finds a reference variable by its name."""
    part = tf.compat.v1.GraphDef(node=[node])
    part.node[0].device = ""
    for key in [key for key in part.node[0].attr if key.startswith("_")]:
        del part.node[0].attr[key]
    part.node.add(name="value", op="Identity", input=[node.name], attr={"T": node.attr["dtype"]})
    try:
        with tf.device("/CPU:0"):
            return tf.compat.v1.wrap_function(lambda: tf.import_graph_def(part, return_elements=["value:0"], name="")[0], [])()
    except tf.errors.FailedPreconditionError as error:
        raise ConfigError(f"{where}: {node.name!r}: expected variables with values, got one that is not initialised; run its initialiser "
                          "before") from error
