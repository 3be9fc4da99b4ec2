"""How operations of TensorFlow can be cut: the labels of their operands' and outputs' axes, one rule for each kind of operation.

Two axes with one label are cut alike. A label that no output has is summed (or joined otherwise) over the tiles afterwards. An axis
without a label, and every tensor of an operation without a rule, stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from data.capture.operations import ELEMENTWISE

Axes = tuple[str | None, ...]
SUM = "AddN"


@dataclass(frozen=True)
class Labels:
    """How one operation can be cut.

    Attributes:
      inputs: labels by axis, of every input.
      outputs: the same of every output; None: tiles do not make it, so that nothing may use it. Outputs without elements need no labels.
      sizes: units by label. An axis of more elements has the same number of them in each unit.
      joined: the operation that joins what tiles make along a label that no output has.
      shape_input: the input that holds the shape of the first output, which differs from tile to tile.
      attributes: what a tile has in place of the operation's own.
    """

    inputs: tuple[Axes, ...]
    outputs: tuple[Axes | None, ...]
    sizes: Mapping[str, int]
    joined: str = SUM
    shape_input: int | None = None
    attributes: Mapping[str, tf.compat.v1.AttrValue] = field(default_factory=dict)


Rule = Callable[[tf.Operation], Labels | None]


def labels_of(op: tf.Operation) -> Labels | None:
    """How an operation can be cut; None: it stays whole."""
    rule = RULES.get(op.type)
    if rule is None or any(x.shape.rank is None or not x.shape.is_fully_defined() for x in [*op.inputs, *op.outputs]):
        return None
    labels = rule(op)
    if labels is None or not labels.sizes:
        return None
    cut = [x for x, axes in zip([*op.inputs, *op.outputs], [*labels.inputs, *labels.outputs], strict=True) if axes and any(axes)]
    return labels if all(x.shape.num_elements() for x in cut) else None  # of nothing there are no parts


class _Sizes(dict[str, int]):
    """Units by label, as they are named."""

    def axis(self, label: str, size: int) -> str | None:
        """The label; None for an axis of one element, which is broadcast or not worth a label, or of none."""
        if size < 2:
            return None
        self[label] = size
        return label

    def axes(self, shape: Sequence[int], names: Sequence[str | None]) -> Axes:
        """Labels of a whole tensor."""
        return tuple(None if name is None else self.axis(name, size) for name, size in zip(names, shape, strict=True))


    def of(self, tensor: tf.Tensor, whole: Collection[int] = ()) -> Axes:
        """Labels by number of axis; those of `whole` are not cut."""
        return self.axes(_shape(tensor), [None if i in whole else str(i) for i in range(tensor.shape.rank)])


def _shape(tensor: tf.Tensor) -> list[int]:
    return tensor.shape.as_list()


def _uncut(tensor: tf.Tensor) -> Axes:
    return (None,) * tensor.shape.rank


def _broadcast(axes: Axes, shape: Sequence[int]) -> Axes:
    """Labels of an operand of this shape: its last axes are those of the output, which has `axes`."""
    return tuple(label if size > 1 else None for label, size in zip(axes[len(axes) - len(shape):], shape, strict=True))


def _constant(op: tf.Operation, i: int):
    """The value of an input, None where it is not constant."""
    return tf.get_static_value(op.inputs[i])


def _elementwise(op: tf.Operation) -> Labels | None:
    """Inputs are broadcast: their last axes are the output's."""
    shape, sizes = _shape(op.outputs[0]), _Sizes()
    output = sizes.of(op.outputs[0])
    if op.type == "Select" and _shape(op.inputs[0]) != shape:
        return None
    if any(x.shape.rank > len(shape) for x in op.inputs):
        return None
    return Labels(tuple(_broadcast(output, _shape(x)) for x in op.inputs), (output,), sizes)


def _by_last_axis(op: tf.Operation) -> Labels:
    """Softmax: each row by itself."""
    sizes = _Sizes()
    axes = sizes.of(op.outputs[0], [op.outputs[0].shape.rank - 1])
    return Labels((axes,), (axes,), sizes)


def _cross_entropy(op: tf.Operation) -> Labels | None:
    """A loss and a gradient for each row; one operand is indices if the operation is sparse."""
    if _shape(op.inputs[0])[0] != _shape(op.inputs[1])[0]:
        return None
    sizes = _Sizes()
    rows = sizes.axes(_shape(op.inputs[0]), ("0", None))
    return Labels((rows, (rows[0],) if op.inputs[1].shape.rank == 1 else rows), ((rows[0],), rows), sizes)


def _matmul(op: tf.Operation) -> Labels:
    sizes, last = _Sizes(), op.type == "MatMul"
    flags = ("transpose_a", "transpose_b") if last else ("adj_x", "adj_y")
    turned = [op.get_attr(flag) for flag in flags]
    left, right, out = map(_shape, (*op.inputs, op.outputs[0]))
    a = sizes.axes(left[-2:], ("k", "i") if turned[0] else ("i", "k"))
    b = sizes.axes(right[-2:], ("j", "k") if turned[1] else ("k", "j"))
    batch = sizes.axes(out[:-2], list(map(str, range(len(out) - 2))))
    before = [_broadcast(batch, mine[:-2]) for mine in (left, right)]
    ends = sizes.axes(out[-2:], ("i", "j"))
    return Labels((before[0] + a, before[1] + b), (batch + ends,), sizes)


def _einsum(op: tf.Operation) -> Labels | None:
    equation = op.get_attr("equation").decode().replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or any(len(set(term)) < len(term) for term in (*terms, right)):
        return None
    sizes = _Sizes()
    inputs = tuple(sizes.axes(_shape(x), tuple(term)) for x, term in zip(op.inputs, terms, strict=True))
    return Labels(inputs, (sizes.axes(_shape(op.outputs[0]), tuple(right)),), sizes)


def _channels_last(op: tf.Operation) -> bool:
    return op.get_attr("data_format").decode() in ("NHWC", "NDHWC")


def _bias(op: tf.Operation) -> Labels | None:
    if not _channels_last(op):
        return None
    sizes = _Sizes()
    axes = sizes.of(op.outputs[0])
    return Labels((axes, axes[-1:]), (axes,), sizes)


def _bias_gradient(op: tf.Operation) -> Labels | None:
    if not _channels_last(op):
        return None
    sizes = _Sizes()
    axes = sizes.of(op.inputs[0])
    return Labels((axes,), (axes[-1:],), sizes)


def _convolution(image: int, kernel: int, gradient: int | None) -> Rule:
    """A convolution or one of its gradients; each number is that of an input, None: it is the output."""
    def rule(op: tf.Operation) -> Labels | None:
        if not _channels_last(op):
            return None
        tensors = {"image": op.outputs[0] if image < 0 else op.inputs[image], "kernel": op.outputs[0] if kernel < 0 else op.inputs[kernel],
                   "result": op.outputs[0] if gradient is None else op.inputs[gradient]}
        shapes, sizes, space = {name: _shape(x) for name, x in tensors.items()}, _Sizes(), [None] * (tensors["image"].shape.rank - 2)
        # In a gradient the operand at the place of what is made holds its shape.
        shape_input = 0 if image < 0 else 1 if kernel < 0 else None
        if op.type.startswith("Depthwise"):
            c = sizes.axis("c", shapes["image"][-1])
            n = sizes.axis("n", shapes["image"][0])
            axes = {"image": (n, *space, c), "kernel": (*space, c, None), "result": (n, *space, c)}
        elif shapes["kernel"][-2] != shapes["image"][-1]:
            return None  # convolutions in groups
        else:
            n, c, o = sizes.axis("n", shapes["image"][0]), sizes.axis("c", shapes["image"][-1]), sizes.axis("o", shapes["kernel"][-1])
            axes = {"image": (n, *space, c), "kernel": (*space, c, o), "result": (n, *space, o)}
        of = {id(tensors[name]): axes[name] for name in axes}
        return Labels(tuple(of.get(id(x), _uncut(x)) for x in op.inputs), (of[id(op.outputs[0])],), sizes, shape_input=shape_input)
    return rule


def _pooling(op: tf.Operation) -> Labels | None:
    """Windows move over the axes between batch and channels; a gradient of the mean takes a shape first."""
    rank = op.outputs[0].shape.rank
    window = op.get_attr("ksize")
    if not _channels_last(op) or window[0] != 1 or window[-1] != 1:
        return None
    sizes, shape = _Sizes(), _shape(op.outputs[0])
    n, c = sizes.axis("n", shape[0]), sizes.axis("c", shape[-1])
    axes = (n, *[None] * (rank - 2), c)
    return Labels(tuple(axes if x.shape.rank == rank else _uncut(x) for x in op.inputs), (axes,), sizes,
                  shape_input=0 if op.type == "AvgPoolGrad" else None)


def _resize(op: tf.Operation) -> Labels:
    sizes, shape = _Sizes(), _shape(op.outputs[0])
    axes = (sizes.axis("n", shape[0]), None, None, sizes.axis("c", shape[-1]))
    return Labels((axes, *map(_uncut, op.inputs[1:])), (axes,), sizes)


def _normalisation(op: tf.Operation) -> Labels | None:
    """In training, and for a gradient, the moments are of all but the channels. Else the outputs behind the first only repeat inputs."""
    sizes, shape = _Sizes(), _shape(op.inputs[0])
    channels = len(shape) - 1 if _channels_last(op) else 1
    training, gradient = op.get_attr("is_training"), op.type == "FusedBatchNormGradV3"
    if gradient and not training:
        return None
    axes = sizes.of(op.inputs[0], [i for i in range(len(shape)) if i != channels] if training else ())

    def of(tensor: tf.Tensor) -> Axes:
        mine = _shape(tensor)
        return axes if mine == shape else (axes[channels],) if mine == [shape[channels]] else _uncut(tensor)

    return Labels(tuple(map(of, op.inputs)), (of(op.outputs[0]), *(of(x) if training else None for x in op.outputs[1:])), sizes)


def _reduction(joined: str | None) -> Rule:
    """Args: joined: what joins the results of tiles; None: what is reduced stays whole."""
    def rule(op: tf.Operation) -> Labels | None:
        over = _constant(op, 1)
        if over is None:
            return None
        rank = op.inputs[0].shape.rank
        reduced = {int(axis) % rank for axis in over.reshape(-1)} if rank else set()
        sizes = _Sizes()
        axes = sizes.of(op.inputs[0], () if joined else reduced)
        left = [label for i, label in enumerate(axes) if i not in reduced]
        if "keep_dims" in op.node_def.attr and op.get_attr("keep_dims"):
            left = [None if i in reduced else label for i, label in enumerate(axes)]
        return Labels((axes, _uncut(op.inputs[1])), (tuple(left),), sizes, joined or SUM)
    return rule


def _transpose(op: tf.Operation) -> Labels | None:
    order = _constant(op, 1)
    if order is None:
        return None
    sizes = _Sizes()
    axes = sizes.of(op.inputs[0])
    return Labels((axes, _uncut(op.inputs[1])), (tuple(axes[i] for i in order.tolist()),), sizes)


def _reshape(op: tf.Operation) -> Labels | None:
    """Axes that are merged or split keep the label of their outermost units."""
    before, after, sizes = _shape(op.inputs[0]), _shape(op.outputs[0]), _Sizes()
    if 0 in before:
        return None
    axes, made = [None] * len(before), [None] * len(after)
    i = j = 0
    while i < len(before) and j < len(after):
        first, other, one, two = i, j, before[i], after[j]
        while one != two:
            if one < two:
                i += 1
                one *= before[i]
            else:
                j += 1
                two *= after[j]
        start = next((k for k in range(first, i + 1) if before[k] > 1), None)
        end = next((k for k in range(other, j + 1) if after[k] > 1), None)
        if start is not None and end is not None:
            axes[start] = made[end] = sizes.axis(str(len(sizes)), math.gcd(before[start], after[end]))
        i, j = i + 1, j + 1
    attributes = {}
    if op.type == "Squeeze":  # a tile may have more axes of one element than the whole
        squeezed = op.get_attr("squeeze_dims") or [k for k, size in enumerate(before) if size == 1]
        attributes["squeeze_dims"] = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=squeezed))
    return Labels((tuple(axes), *map(_uncut, op.inputs[1:])), (tuple(made),), sizes, shape_input=1 if op.type == "Reshape" else None,
                  attributes=attributes)


def _concatenation(op: tf.Operation) -> Labels | None:
    axis = _constant(op, len(op.inputs) - 1)
    if axis is None:
        return None
    rank, sizes = op.outputs[0].shape.rank, _Sizes()
    axes = sizes.of(op.outputs[0], [int(axis) % rank])
    return Labels((*[axes] * (len(op.inputs) - 1), ()), (axes,), sizes)


def _split(op: tf.Operation) -> Labels | None:
    """The axis is the first input, or the third where sizes are given."""
    value, at = (1, 0) if op.type == "Split" else (0, 2)
    axis = _constant(op, at)
    if axis is None:
        return None
    rank, sizes = op.inputs[value].shape.rank, _Sizes()
    axes = sizes.of(op.inputs[value], [int(axis) % rank])
    return Labels(tuple(axes if i == value else _uncut(x) for i, x in enumerate(op.inputs)), (axes,) * len(op.outputs), sizes)


def _pack(op: tf.Operation) -> Labels:
    rank, sizes = op.outputs[0].shape.rank, _Sizes()
    axis = op.get_attr("axis") % rank
    axes = sizes.of(op.outputs[0], [axis])
    return Labels((axes[:axis] + axes[axis + 1:],) * len(op.inputs), (axes,), sizes)


def _unpack(op: tf.Operation) -> Labels:
    rank, sizes = op.inputs[0].shape.rank, _Sizes()
    axis = op.get_attr("axis") % rank
    axes = sizes.of(op.inputs[0], [axis])
    return Labels((axes,), (axes[:axis] + axes[axis + 1:],) * len(op.outputs), sizes)


def _strided_slice(op: tf.Operation) -> Labels | None:
    """Axes that are taken from end to end by masks, so that their bounds need not be told."""
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask"):
        return None
    strides = _constant(op, 3)
    if strides is None:
        return None
    begin, end, shrink = (op.get_attr(f"{name}_mask") for name in ("begin", "end", "shrink_axis"))
    sizes = _Sizes()

    def taken(i: int) -> bool:
        return i >= len(strides) or bool(begin >> i & 1 and end >> i & 1 and strides[i] == 1 and not shrink >> i & 1)

    axes = sizes.of(op.inputs[0], [i for i in range(op.inputs[0].shape.rank) if not taken(i)])
    left = tuple(label for i, label in enumerate(axes) if i >= len(strides) or not shrink >> i & 1)
    return Labels((axes, *map(_uncut, op.inputs[1:])), (left,), sizes)


def _unchanged_axes(op: tf.Operation) -> Labels:
    """Slices, padding and tiling: axes that are taken as they are. A slice takes its size last."""
    before, after, sizes = _shape(op.inputs[0]), _shape(op.outputs[0]), _Sizes()
    axes = sizes.of(op.inputs[0], [i for i, size in enumerate(before) if after[i] != size])
    return Labels((axes, *map(_uncut, op.inputs[1:])), (axes,), sizes, shape_input=2 if op.type == "Slice" else None)


def _filled(op: tf.Operation) -> Labels:
    """A shape comes first or second; the value is broadcast."""
    at = 0 if op.type == "Fill" else 1
    sizes = _Sizes()
    axes = sizes.of(op.outputs[0])
    mine = _broadcast(axes, _shape(op.inputs[1 - at]))
    return Labels((_uncut(op.inputs[0]), mine) if at == 0 else (mine, _uncut(op.inputs[1])), (axes,), sizes, shape_input=at)


def _gather(op: tf.Operation) -> Labels | None:
    """Look-ups along the first axis: the axes of the indices, and those behind the first of the table."""
    axis = _constant(op, 2)
    if axis is None or int(axis) or op.get_attr("batch_dims"):
        return None
    sizes = _Sizes()
    rows = sizes.of(op.inputs[1])
    columns = sizes.axes(_shape(op.inputs[0])[1:], [f"c{i}" for i in range(op.inputs[0].shape.rank - 1)])
    return Labels(((None, *columns), rows, ()), (rows + columns,), sizes)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys((name for name in ELEMENTWISE if not name.startswith("Assign")), _elementwise),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _by_last_axis),
    **dict.fromkeys(("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), _cross_entropy),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul), "Einsum": _einsum,
    "BiasAdd": _bias, "BiasAddGrad": _bias_gradient,
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), _convolution(0, 1, None)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"), _convolution(-1, 1, 2)),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"), _convolution(0, -1, 2)),
    **dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolGrad", "AvgPoolGrad"), _pooling),
    **dict.fromkeys(("ResizeBilinear", "ResizeNearestNeighbor"), _resize),
    **dict.fromkeys(("FusedBatchNormV3", "FusedBatchNormGradV3"), _normalisation),
    "Sum": _reduction(SUM), "Max": _reduction("Maximum"), "Min": _reduction("Minimum"), "Prod": _reduction("Mul"),
    "All": _reduction("LogicalAnd"), "Any": _reduction("LogicalOr"),
    **dict.fromkeys(("Mean", "ArgMax", "ArgMin", "EuclideanNorm"), _reduction(None)),
    "Transpose": _transpose, **dict.fromkeys(("Reshape", "Squeeze", "ExpandDims"), _reshape),
    "ConcatV2": _concatenation, **dict.fromkeys(("Split", "SplitV"), _split), "Pack": _pack, "Unpack": _unpack,
    "StridedSlice": _strided_slice, **dict.fromkeys(("Slice", "Pad", "PadV2", "MirrorPad", "Tile"), _unchanged_axes),
    **dict.fromkeys(("Fill", "BroadcastTo"), _filled), "GatherV2": _gather,
}
