"""Makes a DataflowGraph of a program and a tiling, with shards (one per tile), reduces (one per output tile) and re-tiling vertices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from data.einsum_program import EinsumProgram
from data.steps import Expression, Pad, Use
from data.tiling import Box, Grid, Tiling, check_tiling, grid, overlap, relative, shape, volume
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import collector_paused, graph_from_records

SHARD_NAMES = {"einsum": ".mm", "reduce": ".part", "map": ""}  # "AB.mm[0,1,2]" is then aggregated into "AB.sum[0,1]"


@collector_paused()
def decompose(program: EinsumProgram, tiling: Tiling, dtype_bytes: int = 4, attributes: Mapping | None = None) -> DataflowGraph:
    """The graph that computes `program` tile by tile.

    Each expression becomes one shard vertex per tile of all its labels and, if labels are reduced, one reduce vertex per output tile (even
    for a single partial). A pad becomes one vertex per tile. If one producer's tile contains a box, the box is read by a direct edge with a
    slice. Otherwise one re-tiling vertex assembles it from several tiles, for all consumers of the box. Vertices are in program order,
    shards before reduces, output tiles row-major with the reduced labels fastest. Input tiles come before their first reader.
    A shard that waits for a tensor has an edge of one element from a vertex that a tile of it reaches, and no operand for it.

    Args:
      dtype_bytes: bytes of one element, for `output_bytes` and the edges' `bytes`.
      attributes: graph attributes to keep; `outputs` = {tensor: {shape, tiles: [{vertex, box}]}} is added.

    Raises:
      ConfigError: the tiling does not fit the program.
    """
    check_tiling(program, tiling)
    builder = _Builder(program, tiling, dtype_bytes)
    for expression in program.expressions:
        builder.pad(expression) if isinstance(expression, Pad) else builder.expression(expression)
    outputs = {}
    for tensor in program.outputs:
        outputs[tensor] = {"shape": list(program.shapes[tensor]),
                           "tiles": [{"vertex": vertex, "box": _json(box)} for box, vertex in builder.tiles[tensor].items()]}
    return graph_from_records(builder.nodes, builder.edges, {**(attributes or {}), "outputs": outputs}, "decomposition")


class _Piece(NamedTuple):
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
    """The nodes and edges so far, and the vertex of each box of a tensor."""

    def __init__(self, program: EinsumProgram, tiling: Tiling, dtype_bytes: int) -> None:
        self.program, self.tiling, self.dtype_bytes = program, tiling, dtype_bytes
        self.nodes: list[dict] = []
        self.edges: list[dict] = []
        # A produced tensor has one grid. An input has one for each way of reading it, whose tiles are added when they are read.
        self.grids: dict[str, dict[Grid, None]] = {name: {} for name in program.inputs}
        self.tiles: dict[str, dict[Box, int]] = {name: {} for name in program.inputs}
        self.signal: dict[tuple[str, Box], int] = {}

    def expression(self, e: Expression) -> None:
        """Adds the shards of one expression, then its reduces."""
        reads = [self.reading(use, e) for use in e.operands]
        found: list[dict[tuple[int, ...], _Piece]] = [{} for _ in reads]  # several shards read the same tile
        whole, tiles = (grid(self.program, self.tiling, e.name, labels) for labels in (e.space, e.labels))
        partials: dict[tuple[int, ...], list[_Piece]] = {}
        signals = [] if e.after is None else self.signals(e)
        for i, index in enumerate(whole.indices()):
            pieces = []
            for (tensor, cut, axes), known in zip(reads, found, strict=True):
                at = tuple([index[axis] for axis in axes])
                if at not in known:
                    known[at] = self.fetch(tensor, cut.box(at), e)
                pieces.append(known[at])
            extent = shape(whole.box(index))
            made = extent[:len(e.labels)]
            shard = self.vertex(f"{e.name}{SHARD_NAMES[e.kernel[0]]}[{_label(index)}]", e.kind, e.kernel, pieces, made,
                                e.flops_per_point * math.prod(extent), e.name)
            if signals:
                self.edges.append({"source": signals[i * len(signals) // whole.size], "target": shard, "bytes": self.dtype_bytes})
            partials.setdefault(index[:len(e.labels)], []).append(_Piece(shard, made))
        if e.aggregate:
            self.tiles[e.name] = {
                tiles.box(out): self.vertex(f"{e.name}.{e.aggregate}[{_label(out)}]", "reduce", ("aggregate", {"aggregate": e.aggregate}),
                                            pieces, pieces[0].extent, (len(pieces) - 1) * math.prod(pieces[0].extent), e.name)
                for out, pieces in partials.items()}
        else:
            self.tiles[e.name] = {tiles.box(out): pieces[0].vertex for out, pieces in partials.items()}
        self.grids[e.name] = {tiles: None}

    def signals(self, e: Expression) -> list[int]:
        """A vertex of one element beside each tile of the tensor for which an expression waits. The element says that the tile is made, so
        that the tile itself need not go where that is waited for."""
        [tiles] = self.grids[e.after]
        boxes = [tiles.box(index) for index in tiles.indices()]
        for box in boxes:
            if (e.after, box) not in self.signal:
                corner = _Piece(self.tiles[e.after][box], (1,) * len(box), ((0, 1),) * len(box))
                self.signal[e.after, box] = self.vertex(f"{e.after}.signal[{_label(box)}]", "signal",
                                                        ("pad", {"shape": [], "box": None}), [corner], (), 0, f"{e.after}.signal")
        return [self.signal[e.after, box] for box in boxes]

    def reading(self, use: Use, reader: Expression) -> tuple[str, Grid, tuple[int, ...]]:
        """The tensor behind a use (views resolved), the grid in which it is read, and the reader's axes that index the grid."""
        tensor, start = self.source(use)
        tiles = grid(self.program, self.tiling, reader.name, use.labels).shifted(start)
        if tensor in self.program.inputs:
            self.grids[tensor][tiles] = None
        return tensor, tiles, tuple(reader.space.index(label) for label in use.labels)

    def pad(self, e: Pad) -> None:
        """Adds the tiles of one pad. A tile that the operand does not reach reads one of its elements, for the type alone."""
        tensor, start = self.source(e.operand)
        tiles, filled = grid(self.program, self.tiling, e.name, e.labels), self.program.box(e)
        self.tiles[e.name], self.grids[e.name] = {}, {tiles: None}
        for index in tiles.indices():
            tile = tiles.box(index)
            part = overlap(tile, filled)
            reached = all(a < b for a, b in part)
            read = relative(part, filled) if reached else ((0, 1),) * len(tile)
            piece = self.fetch(tensor, tuple((a + d, b + d) for (a, b), d in zip(read, start, strict=True)), e)
            params = {"shape": list(shape(tile)), "box": _json(relative(part, tile)) if reached else None}
            self.tiles[e.name][tile] = self.vertex(f"{e.name}[{_label(index)}]", e.kind, ("pad", params), [piece], shape(tile), 0, e.name)

    def source(self, use: Use) -> tuple[str, tuple[int, ...]]:
        """The tensor behind a use (views resolved), and where its corner lies."""
        tensor, start = use.tensor, (0,) * len(use.labels)
        while tensor in self.program.views:
            view = self.program.views[tensor]
            tensor, start = view.tensor, tuple(a + b for a, b in zip(start, view.start, strict=True))
        return tensor, start

    def fetch(self, tensor: str, box: Box, reader: Expression | Pad) -> _Piece:
        """The vertex from which `reader` takes a box of a tensor: the first that contains the box, else a new one."""
        tiles = self.tiles[tensor]
        if box not in tiles:
            held = [(tiles[tile], tile) for cut in self.grids[tensor] if (tile := cut.holder(box)) in tiles]
            if held:
                return _piece(*min(held), box)
            tiles[box] = self.input_tile(tensor, box) if tensor in self.program.inputs else self.retile(tensor, box, reader)
        return _Piece(tiles[box], shape(box))

    def input_tile(self, tensor: str, box: Box) -> int:
        """Adds an input vertex. Overlapping input tiles cost nothing, because inputs are free and resident everywhere."""
        self.nodes.append({"id": len(self.nodes), "name": f"{tensor}[{_label(box)}]", "kind": "input", "input": True,
                           "output_bytes": self.dtype_bytes * volume(box),
                           "kernel": {"op": "input", "operands": [], "params": {"tensor": tensor, "box": _json(box)}}})
        return len(self.nodes) - 1

    def retile(self, tensor: str, box: Box, reader: Expression | Pad) -> int:
        """Adds a vertex that assembles a box from several tiles, for all consumers."""
        [tiles] = self.grids[tensor]
        held = [tiles.box(index) for index in tiles.meeting(box)]
        parts = [overlap(tile, box) for tile in held]
        pieces = [_piece(self.tiles[tensor][tile], tile, part) for tile, part in zip(held, parts, strict=True)]
        params = {"shape": list(shape(box)), "boxes": [_json(relative(part, box)) for part in parts]}
        return self.vertex(f"{tensor}.retile[{_label(box)}]", "retile", ("assemble", params), pieces, shape(box), 0,
                           f"{reader.name}.{tensor}")

    def vertex(self, name: str, kind: str, kernel: tuple[str, dict], pieces: list[_Piece], extent: tuple[int, ...], flops: int,
               meta_op: str) -> int:
        """Adds a work vertex, and one edge from each producer that carries all distinct boxes read from it."""
        key, (op, params) = len(self.nodes), kernel
        operands = [{"vertex": piece.vertex, "slice": piece.cut} for piece in pieces]
        self.nodes.append({"id": key, "name": name, "kind": kind, "flops": flops, "output_bytes": self.dtype_bytes * math.prod(extent),
                           "meta_op": meta_op, "role": "reduce" if op == "aggregate" else "shard",
                           "kernel": {"op": op, "operands": operands, "params": params}})
        carried: dict[int, int] = {}
        for piece in dict.fromkeys(pieces):
            carried[piece.vertex] = carried.get(piece.vertex, 0) + self.dtype_bytes * math.prod(piece.extent)
        self.edges += [{"source": source, "target": key, "bytes": count} for source, count in carried.items()]
        return key
