"""What TensorFlow checks while it runs and XLA does not, such as an index beyond its table or an integer division by zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from runtime.models.captured import CapturedModel

# Operations with a table and indices into one of its axes as their first operands; and what checks its second one where that is an integer.
_TABLES = frozenset(("Gather", "GatherV2", "ResourceGather"))
_BY_INTEGERS = frozenset(("Div", "FloorDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod", "Pow"))
# These check more than a range of the operand at a position, unless that is constant. (What makes NaN under XLA, as a class that does not
# exist in a loss, shows itself.)
_OTHERS = dict.fromkeys(("GatherNd", "ResourceGatherNd", "TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMax",
                         "TensorScatterMin", "ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate", "ResourceScatterMul",
                         "ResourceScatterDiv", "ResourceScatterMax", "ResourceScatterMin", "ResourceScatterNdAdd", "ResourceScatterNdSub",
                         "ResourceScatterNdUpdate", "SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd",
                         "SegmentSumV2", "SegmentMaxV2", "SegmentMinV2", "SegmentProdV2", "UnsortedSegmentSum", "UnsortedSegmentMax",
                         "UnsortedSegmentMin", "UnsortedSegmentProd", "Slice", "StridedSlice", "ReverseSequence"), 1)
_OTHERS |= dict.fromkeys(("ScatterNd", "Bincount", "DenseBincount", "InvertPermutation"), 0)


class Check(NamedTuple):
    """A tensor of which all elements must be in [0, below), or, where `below` is None, not 0."""

    tensor: str
    below: int | None

    def holds(self, value: tf.Tensor) -> tf.Tensor:
        """Whether it is so: a bool tensor."""
        return tf.reduce_all(value != 0 if self.below is None else (value >= 0) & (value < tf.cast(self.below, value.dtype)))


def checks(model: CapturedModel) -> list[Check] | None:
    """What has to be looked at beside a function that XLA compiles; None where that is not enough."""
    bodies = ({node.name: node for node in function.node_def} for function in model.library.library.function)
    if any(True for body in bodies for _ in _checking(body)):
        return None
    found = []
    for node in _checking(model.nodes):
        if node.op in _OTHERS or node.op == "Pow":
            return None
        operation = model.graph.get_operation_by_name(node.name)
        below = None
        if node.op in _TABLES:
            below = _rows(model, operation)
            if below is None:
                return None
        found.append(Check(operation.inputs[1].name, below))
    return found


def _checking(nodes: Mapping[str, Any]) -> Iterator[Any]:
    """The operations of a graph or function that look at values which are no constants."""
    for node in nodes.values():
        looked_at = 1 if node.op in _TABLES or (node.op in _BY_INTEGERS and tf.as_dtype(node.attr["T"].type).is_integer) else _OTHERS.get(
            node.op)
        if looked_at is not None:
            source = nodes.get(node.input[looked_at].partition(":")[0])
            if source is None or source.op != "Const":
                yield node


def _rows(model: CapturedModel, operation: tf.Operation) -> int | None:
    """The size of the axis that indices are for; None: unknown."""
    if operation.type == "ResourceGather":
        variable = next((x for x in model.meta["variables"].values() if x["placeholder"] == operation.inputs[0].op.name), None)
        return None if variable is None or operation.get_attr("batch_dims") else variable["shape"][0]
    axis = 0 if operation.type == "Gather" else tf.get_static_value(operation.inputs[2])
    shape = operation.inputs[0].shape
    return None if axis is None or shape.rank is None else shape[int(axis)]
