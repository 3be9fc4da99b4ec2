"""A program and a tiling become a DataflowGraph: shards (one a tile), reduces (one an output tile), and re-tiling vertices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from data.einsum_program import EinsumProgram, Expression
from data.tiling import Box, Grid, Tiling, check_tiling, contains, grid, overlap, relative, shape, shift, volume
from doppler_tf.formats.records import graph_from_records
from doppler_tf.graph import DataflowGraph

SHARD_NAMES = {"einsum": ".mm", "reduce": ".part", "map": ""}  # "AB.mm[0,1,2]" is then aggregated into "AB.sum[0,1]"


def decompose(program: EinsumProgram, tiling: Tiling, dtype_bytes: int = 4, attributes: Mapping | None = None) -> DataflowGraph:
    """The graph that computes `program` tile by tile.

    Each expression becomes one shard vertex a tile of all its labels and, where labels are reduced, one reduce vertex an output
    tile (even for a single partial). A box inside one producer's tile is a direct edge with a slice; a re-tiling vertex stands
    where several tiles are assembled, once for all consumers of that box. Vertices stand in program order, shards before reduces,
    output tiles row-major with the reduced labels fastest; input tiles stand before their first reader.

    Args:
      dtype_bytes: bytes of one element, for `output_bytes` and the edges' `bytes`.
      attributes: graph attributes to keep; `outputs` = {tensor: {shape, tiles: [{vertex, box}]}} is added.

    Raises:
      ConfigError: the tiling does not fit the program.
    """
    check_tiling(program, tiling)
    builder = _Builder(program, tiling, dtype_bytes)
    for expression in program.expressions:
        builder.expression(expression)
    outputs = {}
    for tensor in program.outputs:
        tiles = builder.grids[tensor]
        outputs[tensor] = {"shape": list(program.shapes[tensor]),
                           "tiles": [{"vertex": builder.tiles[tensor][i], "box": _json(tiles.box(i))} for i in tiles.indices()]}
    return graph_from_records(builder.nodes, builder.edges, {**(attributes or {}), "outputs": outputs}, "decomposition")


@dataclass(frozen=True)
class _Piece:
    """A box of one vertex's output, in local coordinates (`cut` None: all of it)."""

    vertex: int
    extent: tuple[int, ...]
    cut: Box | None = None


def _json(box: Box) -> list[list[int]]:
    return [list(interval) for interval in box]


def _label(box_or_index: tuple) -> str:
    return ",".join(f"{i[0]}:{i[1]}" if isinstance(i, tuple) else str(i) for i in box_or_index)


def _piece(vertex: int, tile: Box, box: Box) -> _Piece:
    return _Piece(vertex, shape(box), None if tile == box else relative(box, tile))


class _Builder:
    """Nodes and edges so far, and which vertex holds which tile."""

    def __init__(self, program: EinsumProgram, tiling: Tiling, dtype_bytes: int) -> None:
        self.program, self.tiling, self.dtype_bytes = program, tiling, dtype_bytes
        self.nodes: list[dict] = []
        self.edges: list[dict] = []
        self.grids: dict[str, Grid] = {}
        self.tiles: dict[str, dict[tuple[int, ...], int]] = {}
        self.inputs: dict[str, dict[Box, int]] = {name: {} for name in program.inputs}
        self.retiled: dict[tuple[str, Box], int] = {}

    def expression(self, e: Expression) -> None:
        """Adds the shards of one expression, then its reduces."""
        tiles, partial = grid(self.program, self.tiling, e.name, e.labels), grid(self.program, self.tiling, e.name, e.reduced)
        op, params = e.kernel
        partials: dict[tuple[int, ...], list[_Piece]] = {}
        for out in tiles.indices():
            for inner in partial.indices():
                space = tiles.box(out) + partial.box(inner)
                at = dict(zip(e.space, space, strict=True))
                pieces = [self.fetch(use.tensor, tuple(at[label] for label in use.labels), e) for use in e.operands]
                extent = shape(tiles.box(out))
                shard = self.vertex(f"{e.name}{SHARD_NAMES[op]}[{_label(out + inner)}]", e.kind, op, params, pieces,
                                    extent, e.flops_per_point * volume(space), e.name, "shard")
                partials.setdefault(out, []).append(_Piece(shard, extent))
        if e.aggregate:
            self.tiles[e.name] = {
                out: self.vertex(f"{e.name}.{e.aggregate}[{_label(out)}]", "reduce", "aggregate", {"aggregate": e.aggregate}, pieces,
                                 pieces[0].extent, (len(pieces) - 1) * volume(tiles.box(out)), e.name, "reduce")
                for out, pieces in partials.items()}
        else:
            self.tiles[e.name] = {out: pieces[0].vertex for out, pieces in partials.items()}
        self.grids[e.name] = tiles

    def fetch(self, tensor: str, box: Box, reader: Expression) -> _Piece:
        """Where `reader` finds a box of a tensor: in an input tile, in a producer's tile, or in a re-tiling vertex."""
        while tensor in self.program.views:
            box = shift(box, self.program.views[tensor].start)
            tensor = self.program.views[tensor].tensor
        if tensor in self.inputs:
            return self.input_tile(tensor, box)
        tiles = self.grids[tensor]
        indices = tiles.meeting(box)
        if len(indices) == 1:
            return _piece(self.tiles[tensor][indices[0]], tiles.box(indices[0]), box)
        if (tensor, box) not in self.retiled:
            parts = [overlap(tiles.box(index), box) for index in indices]
            pieces = [_piece(self.tiles[tensor][i], tiles.box(i), part) for i, part in zip(indices, parts, strict=True)]
            params = {"shape": list(shape(box)), "boxes": [_json(relative(part, box)) for part in parts]}
            self.retiled[tensor, box] = self.vertex(f"{tensor}.retile[{_label(box)}]", "retile", "assemble", params, pieces, shape(box), 0,
                                                    f"{reader.name}.{tensor}", "shard")
        return _Piece(self.retiled[tensor, box], shape(box))

    def input_tile(self, tensor: str, box: Box) -> _Piece:
        """The first input tile that holds the box; one of its own where none does, as inputs are free and resident everywhere."""
        tiles = self.inputs[tensor]
        for tile in (box,) if box in tiles else tiles:
            if contains(tile, box):
                return _piece(tiles[tile], tile, box)
        tiles[box] = len(self.nodes)
        self.nodes.append({"id": tiles[box], "name": f"{tensor}[{_label(box)}]", "kind": "input", "input": True,
                           "output_bytes": self.dtype_bytes * volume(box),
                           "kernel": {"op": "input", "operands": [], "params": {"tensor": tensor, "box": _json(box)}}})
        return _Piece(tiles[box], shape(box))

    def vertex(self, name: str, kind: str, op: str, params: dict, pieces: list[_Piece], extent: tuple[int, ...], flops: int,
               meta_op: str, role: str) -> int:
        """Adds a work vertex and one edge from each producer, which carries every distinct box read from it."""
        key = len(self.nodes)
        operands = [{"vertex": piece.vertex, "slice": None if piece.cut is None else _json(piece.cut)} for piece in pieces]
        self.nodes.append({"id": key, "name": name, "kind": kind, "flops": flops, "output_bytes": self.dtype_bytes * math.prod(extent),
                           "meta_op": meta_op, "role": role, "kernel": {"op": op, "operands": operands, "params": params}})
        carried: dict[int, int] = {}
        for piece in dict.fromkeys(pieces):
            carried[piece.vertex] = carried.get(piece.vertex, 0) + self.dtype_bytes * math.prod(piece.extent)
        self.edges += [{"source": source, "target": key, "bytes": count} for source, count in carried.items()]
        return key
