"""Operations of a captured program are cut into tiles: each becomes one operation for each tile, and tensors become grids of tiles.

What follows (pieces, grouping, kernels, export) sees operations of TensorFlow as before. Results keep their values up to rounding: sums
over tiles are added in another order.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from data.capture.cuts.flops import PRODUCTS
from data.capture.cuts.labels import Labels, labels_of
from data.capture.program import SHAPES, Node, Program, Tensor, constant, tensor_of, type_attr, unique
from data.eindecomp import LabelledOperation, LabelledTensor, eindecomp
from data.tiling import Box, Grid, bounds, overlap, relative, shape

# Parts by label, for each operation that is cut.
Tilings = Mapping[str, Mapping[str, int]]
# They make no work: constants, arguments, values of variables.
_GIVEN = ("Const", "Placeholder", "ReadVariableOp")


def cut_program(program: Program, pieces: int) -> Program:
    """The program with each product and convolution cut into pieces, and whatever else is cut then, so that few elements move."""
    labels = find_labels(program)
    operations = labelled_operations(program, labels)
    return cut_by(program, labels, eindecomp(operations, pieces, count_inputs=False))


def find_labels(program: Program) -> dict[str, Labels]:
    """How each operation can be cut; those that stay whole are missing."""
    graph, used = program.imported(), {x for node in program.nodes.values() for x in node.inputs} | {*program.outputs}
    found = {}
    for name, node in program.nodes.items():
        if node.op in _GIVEN or node.controls:
            continue
        labels = labels_of(graph.get_operation_by_name(name))
        if labels is not None and not any(axes is None and (name, k) in used for k, axes in enumerate(labels.outputs)):
            found[name] = labels
    return found


def labelled_operations(program: Program, labels: Mapping[str, Labels]) -> list[LabelledOperation]:
    """The operations as the choice of a tiling sees them. Weights, arguments and constants are inputs."""
    graph, operations = program.imported(), []
    for name, node in program.nodes.items():
        if node.op in _GIVEN:
            continue
        op, mine = graph.get_operation_by_name(name), labels.get(name)
        inputs = [(x, None if mine is None else mine.inputs[i]) for i, x in enumerate(op.inputs)]
        outputs = [(x, None if mine is None else mine.outputs[k]) for k, x in enumerate(op.outputs)]
        operations.append(LabelledOperation(name, {} if mine is None else mine.sizes, _labelled(inputs), _labelled(outputs),
                                            optional=node.op not in PRODUCTS))
    return operations


def _labelled(tensors: Sequence[tuple[tf.Tensor, tuple[str | None, ...] | None]]) -> tuple[LabelledTensor, ...]:
    """Tensors with elements; of unknown shapes nothing can be said."""
    return tuple(LabelledTensor(x.name, (None,) * x.shape.rank if axes is None else axes, tuple(x.shape.as_list()))
                 for x, axes in tensors if x.shape.rank is not None and x.shape.is_fully_defined() and x.shape.num_elements())


def cut_by(program: Program, labels: Mapping[str, Labels], tilings: Tilings) -> Program:
    """The program with each operation cut as its tiling says."""
    return _Cutter(program).cut(labels, tilings)


class _Cutter:
    """The operations so far, and for each tensor the boxes of it that exist."""

    def __init__(self, program: Program):
        self._program, self._graph = program, program.imported()
        self._nodes: dict[str, Node] = {}
        self._taken = ChainMap(self._nodes, program.nodes)
        self._tiles: dict[Tensor, tuple[Grid, dict[Box, Tensor]]] = {}
        self._boxes: dict[tuple[Tensor, Box], Tensor] = {}

    def cut(self, labels: Mapping[str, Labels], tilings: Tilings) -> Program:
        """The whole program."""
        for name, node in self._program.nodes.items():
            parts = {label: count for label, count in tilings.get(name, {}).items() if count > 1}
            if parts:
                self._cut(node, labels[name], parts)
            else:
                inputs = [self._whole(x) for x in node.inputs]
                self._nodes[name] = node if inputs == node.inputs else replace(node, inputs=inputs)
        return replace(self._program, nodes=self._nodes, outputs=tuple(map(self._whole, self._program.outputs)))

    def _cut(self, node: Node, labels: Labels, parts: Mapping[str, int]) -> None:
        op = self._graph.get_operation_by_name(node.name)
        cuts = {label: bounds(labels.sizes[label], parts.get(label, 1)) for label in labels.sizes}
        made: list[dict[Box, list[Tensor]]] = [{} for _ in op.outputs]
        attributes = {key: value for key, value in {**node.attr, **labels.attributes}.items() if key != SHAPES}
        for index in itertools.product(*(range(count) for count in parts.values())):
            at = dict(zip(parts, index, strict=True))
            ranges = {label: (cut[at.get(label, 0)], cut[at.get(label, 0) + 1]) for label, cut in cuts.items()}
            boxes = [None if axes is None else _box(x, axes, ranges, labels) for x, axes in zip(op.outputs, labels.outputs, strict=True)]
            inputs = [self._fetch(x, _box(tensor, axes, ranges, labels), node)
                      for x, tensor, axes in zip(node.inputs, op.inputs, labels.inputs, strict=True)]
            if labels.shape_input is not None:
                dtype = op.inputs[labels.shape_input].dtype
                inputs[labels.shape_input] = self._constant(f"{node.name}/shape", np.array(shape(boxes[0]), dtype.as_numpy_dtype), node)
            tile = self._add(f"{node.name}/tile_{'_'.join(map(str, index))}", node.op, inputs, attributes, node)
            for k, box in enumerate(boxes):
                if box is not None:
                    made[k].setdefault(box, []).append((tile, k))
        for k, (x, axes) in enumerate(zip(op.outputs, labels.outputs, strict=True)):
            if axes is None:
                continue
            grid = Grid(tuple(_bounds(size, label, cuts, labels) for size, label in zip(x.shape.as_list(), axes, strict=True)))
            empty = not x.shape.num_elements()
            self._tiles[node.name, k] = grid, {box: tiles[0] if empty else self._joined(tiles, labels.joined, x.dtype, node)
                                               for box, tiles in made[k].items()}

    def _joined(self, tiles: list[Tensor], how: str, dtype: tf.DType, node: Node) -> Tensor:
        """What tiles along labels that no output has make together."""
        if len(tiles) == 1:
            return tiles[0]
        kind = {} if how.startswith("Logical") else {"T": type_attr(dtype)}
        if how == "AddN":
            return self._add(f"{node.name}/sum", how, tiles, {**kind, "N": tf.compat.v1.AttrValue(i=len(tiles))}, node), 0
        result = tiles[0]
        for tile in tiles[1:]:
            result = self._add(f"{node.name}/{how}", how, [result, tile], kind, node), 0
        return result

    def _whole(self, x: Tensor) -> Tensor:
        if x not in self._tiles:
            return x
        grid, _ = self._tiles[x]
        return self._fetch(x, tuple((axis[0], axis[-1]) for axis in grid.bounds), self._program.nodes[x[0]])

    def _fetch(self, x: Tensor, box: Box, reader: Node) -> Tensor:
        """The tensor that holds a box of another: a tile, a part of one, or several parts put together for all readers."""
        if x not in self._tiles:
            source = self._program.nodes[x[0]]
            if source.op in _GIVEN:  # it is everywhere
                source = replace(source, scopes=reader.scopes)
            extent = tensor_of(self._graph, x).shape
            return self._part(x, tuple((0, size) for size in extent.as_list()), box, x, source) if extent.rank else x
        grid, tiles = self._tiles[x]
        if box in tiles:
            return tiles[box]
        if (x, box) not in self._boxes:
            held = grid.holder(box)
            self._boxes[x, box] = (self._part(tiles[held], held, box, x, self._program.nodes[x[0]]) if held is not None
                                   else self._assembled(x, grid, tiles, box))
        return self._boxes[x, box]

    def _part(self, x: Tensor, held: Box, box: Box, whole: Tensor, node: Node) -> Tensor:
        """A box of a tensor that holds another box of the whole."""
        if held == box:
            return x
        if (x, box) not in self._boxes:
            inside = relative(box, held)
            if node.op == "Const":
                value = tf.make_ndarray(node.attr["value"].tensor)
                self._boxes[x, box] = self._constant(f"{node.name}/part", value[tuple(slice(*ends) for ends in inside)], node)
            else:
                begin, size = ([start for start, _ in inside], list(shape(inside)))
                inputs = [x, *(self._constant(f"{node.name}/{name}", np.array(values, np.int32), node)
                               for name, values in (("begin", begin), ("size", size)))]
                kind = {"T": self._type(whole), "Index": type_attr(tf.int32)}
                self._boxes[x, box] = self._add(f"{node.name}/part", "Slice", inputs, kind, node), 0
        return self._boxes[x, box]

    def _assembled(self, x: Tensor, grid: Grid, tiles: Mapping[Box, Tensor], box: Box) -> Tensor:
        """Parts of several tiles, put together axis by axis, the last axis first."""
        node = self._program.nodes[x[0]]
        level = {}
        for index in grid.meeting(box):
            tile = grid.box(index)
            level[index] = self._part(tiles[tile], tile, overlap(tile, box), x, node)
        for axis in reversed(range(len(grid.bounds))):
            rows: dict[tuple[int, ...], list[Tensor]] = {}
            for index in sorted(level):
                rows.setdefault(index[:axis], []).append(level[index])
            level = {index: self._concatenated(parts, axis, x, node) for index, parts in rows.items()}
        return level[()]

    def _concatenated(self, parts: list[Tensor], axis: int, x: Tensor, node: Node) -> Tensor:
        if len(parts) == 1:
            return parts[0]
        kind = {"T": self._type(x), "Tidx": type_attr(tf.int32), "N": tf.compat.v1.AttrValue(i=len(parts))}
        return self._add(f"{node.name}/joined", "ConcatV2", [*parts, self._constant(f"{node.name}/axis", np.array(axis, np.int32), node)],
                         kind, node), 0

    def _type(self, x: Tensor) -> tf.compat.v1.AttrValue:
        return type_attr(tensor_of(self._graph, x).dtype)

    def _constant(self, name: str, value: np.ndarray, node: Node) -> Tensor:
        fresh = unique(name, self._taken)
        self._nodes[fresh] = constant(fresh, value, None, node.origin)
        return fresh, 0

    def _add(self, name: str, kind: str, inputs: list[Tensor], attributes: Mapping, node: Node) -> str:
        fresh = unique(name, self._taken)
        self._nodes[fresh] = Node(fresh, kind, inputs, [], attributes, node.origin, node.scopes)
        return fresh



def _box(tensor: tf.Tensor, axes: Sequence[str | None], ranges: Mapping[str, tuple[int, int]], labels: Labels) -> Box:
    """The part of a tensor that belongs to a tile."""
    return tuple((0, size) if label is None else tuple(bound * (size // labels.sizes[label]) for bound in ranges[label])
                 for size, label in zip(tensor.shape.as_list(), axes, strict=True))


def _bounds(size: int, label: str | None, cuts: Mapping[str, tuple[int, ...]], labels: Labels) -> tuple[int, ...]:
    return (0, size) if label is None else tuple(bound * (size // labels.sizes[label]) for bound in cuts[label])
