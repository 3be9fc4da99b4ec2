"""Functions whose weights never change: small ones become constants, and oneDNN brings large ones into an order of its own once.

TensorFlow has oneDNN do so for constants alone, of which it makes up to sixteen copies while it builds a function. The same kernels do it
for a tensor, if their attribute `is_filter_const` is set, as TensorFlow's mkl_layout_pass.cc does for constants.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.util import _pywrap_util_port

# Operations whose second operand is a filter or a matrix, and oneDNN's kernels that keep it.
_KEEPING = {"Conv2D": "_MklNativeConv2D", "_FusedConv2D": "_MklNativeFusedConv2D", "Conv3D": "_MklNativeConv3D",
            "DepthwiseConv2dNative": "_MklNativeDepthwiseConv2dNative",
            "_FusedDepthwiseConv2dNative": "_MklNativeFusedDepthwiseConv2dNative", "_FusedMatMul": "_MklNativeFusedMatMul"}
# Those that can pad their first operand. The kernels named `PadWith` would tell wrong shapes.
_PADDING = frozenset(("Conv2D", "_FusedConv2D"))
# TensorFlow fuses a product with its bias.
_BECOME = frozenset((*_KEEPING, "MatMul"))
_LOWERED = "_lower_using_switch_merge"
_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def with_constants(function, weights: Sequence[np.ndarray | None], homes: Sequence[str]) -> tf.compat.v1.GraphDef:
    """The operations of a concrete function in which some of its last arguments are constants.

    Args:
      weights: the value of each of these arguments; None: it stays an argument.
      homes: the device of each.
    """
    graph = function.graph.as_graph_def()
    nodes = {node.name: node for node in graph.node}
    for argument, weight, home in zip(function.inputs[len(function.inputs) - len(weights):], weights, homes, strict=True):
        if weight is not None:
            value = tf.make_tensor_proto(weight)
            nodes[argument.op.name].CopyFrom(NodeDef(name=argument.op.name, op="Const", device=home))
            nodes[argument.op.name].attr["dtype"].type = value.dtype
            nodes[argument.op.name].attr["value"].tensor.CopyFrom(value)
    return graph


def with_kept_filters(graph: tf.compat.v1.GraphDef, weights: Iterable[str], wanted: Iterable[str],
                      config: config_pb2.ConfigProto) -> tf.compat.v1.GraphDef:
    """A graph with oneDNN's kernels that keep what the first call gives them.

    It is the graph as given where nothing would be kept, or where TensorFlow leaves oneDNN out.

    Args:
      weights: placeholders that are the same tensors in all calls.
      wanted: tensors and operations that are computed.
      config: how TensorFlow optimizes the graph before.
    """
    if not _pywrap_util_port.IsMklEnabled() or _BECOME.isdisjoint({node.op for node in _all_nodes(graph)}):
        return graph
    found = _optimized(graph, wanted, config)
    if not _keep(found, _constant(found, weights)):
        return graph
    _name_anew(found, {f.signature.name for f in graph.library.function})
    return found


def _optimized(graph: tf.compat.v1.GraphDef, wanted: Iterable[str], config: config_pb2.ConfigProto) -> tf.compat.v1.GraphDef:
    """As TensorFlow optimizes a function: a convolution is fused with its bias and activation. It does so only on named devices.

    Loops and branches stay functions, which they would not with `_LOWERED`.
    """
    meta, lowered = meta_graph_pb2.MetaGraphDef(graph_def=graph), set[str]()
    for node in meta.graph_def.node:
        node.device = node.device or _CPU
    for node in _all_nodes(meta.graph_def):
        if _LOWERED in node.attr and node.attr[_LOWERED].b:
            lowered.add(node.name)
            del node.attr[_LOWERED]
    meta.collection_def["train_op"].node_list.value.extend(wanted)
    small = config_pb2.ConfigProto.FromString(config.SerializeToString())
    small.graph_options.rewrite_options.min_graph_nodes = -1  # small graphs, too
    found = tf_optimizer.OptimizeGraph(small, meta)
    for node in found.node:
        node.device = "" if node.device == _CPU else node.device
    for node in _all_nodes(found):
        if node.name in lowered:
            node.attr[_LOWERED].b = True
    return found


def _all_nodes(graph: tf.compat.v1.GraphDef) -> list[NodeDef]:
    return [node for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes]


def _constant(graph: tf.compat.v1.GraphDef, weights: Iterable[str]) -> set[str]:
    """The operations that compute the same in all calls."""
    found, grows = {*weights}, True
    while grows:
        before = len(found)
        found |= {node.name for node in graph.node if _is_pure(node) and all(text.partition(":")[0] in found for text in node.input)}
        grows = len(found) > before
    return found


def _is_pure(node: NodeDef) -> bool:
    definition = op_def_registry.get(node.op)  # None: a function
    return definition is not None and not definition.is_stateful and (bool(node.input) or node.op == "Const")


def _keep(graph: tf.compat.v1.GraphDef, constant: Collection[str]) -> bool:
    """Replaces operations whose filter is constant. Returns whether there are any."""
    nodes, any_kept = {node.name: node for node in graph.node}, False
    users = Counter(text.lstrip("^").partition(":")[0] for node in graph.node for text in node.input)
    for node in list(graph.node):
        if (node.op not in _KEEPING or "GPU" in node.device or node.input[1].partition(":")[0] not in constant
                or node.attr["T"].type != tf.float32.as_datatype_enum or ("transpose_a" in node.attr and node.attr["transpose_a"].b)):
            continue
        pad = nodes.get(node.input[0])
        if node.op in _PADDING and pad is not None and pad.op == "Pad" and node.attr["padding"].s == b"VALID" and users[pad.name] == 1:
            _pad_itself(node, pad, nodes.get(pad.input[1]))
        node.op = _KEEPING[node.op]
        node.attr["is_filter_const"].b, node.attr["_kernel"].s, any_kept = True, b"MklNameChangeOp", True
        known = {attribute.name for attribute in op_def_registry.get(node.op).attr}
        for name in [name for name in node.attr if name not in known and not name.startswith("_")]:
            del node.attr[name]
    return any_kept


def _pad_itself(node: NodeDef, pad: NodeDef, paddings: NodeDef | None) -> None:
    """Has a convolution pad its operand in height and width, if that is what an operation before it does; nothing needs that one then."""
    if paddings is None or paddings.op != "Const" or ("data_format" in node.attr and node.attr["data_format"].s != b"NHWC"):
        return
    (*batch, _, _, _, _, before, after) = sides = tf.make_ndarray(paddings.attr["value"].tensor).ravel().tolist()
    if not any((*batch, before, after)):
        node.attr["padding"].s = b"EXPLICIT"
        node.attr["explicit_paddings"].list.i[:] = sides
        node.input[0] = pad.input[0]


def _name_anew(graph: tf.compat.v1.GraphDef, known: Collection[str]) -> None:
    """Gives functions that the optimizer made names that no other function has: it names them after operations alone."""
    new = {f.signature.name: f"{f.signature.name}_{uuid.uuid4().hex}" for f in graph.library.function if f.signature.name not in known}
    for function in graph.library.function:
        function.signature.name = new.get(function.signature.name, function.signature.name)
    for node in _all_nodes(graph):
        node.op = new.get(node.op, node.op)
        for value in node.attr.values():
            for named in [value.func] if value.HasField("func") else value.list.func:
                named.name = new.get(named.name, named.name)
