"""What differs between batches of one graph, and what one batch hands to the next: variables whole, or weights tile by tile."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from doppler_tf.errors import GraphError
from doppler_tf.graph.dataflow import DataflowGraph

Box = tuple[tuple[int, int], ...]  # [start, stop) by axis


class Piece(NamedTuple):
    """A box of an input that the next batch takes from a tensor of this one. Attributes: cut: from the tensor, None: all of it; box."""

    tensor: int
    cut: Box | None
    box: Box


class BatchState(NamedTuple):
    """Differences between batches.

    Attributes:
      own: input vertices that differ from batch to batch. All other inputs are shared.
      carried: by input vertex, the tensor whose value the next batch takes in its place, or the pieces of which it is made.
      in_order: vertices that keep a state. Those of a batch run after those of the batch before, and all without a pin on one
        device.
    """

    own: Collection[int] = ()
    carried: Mapping[int, int | tuple[Piece, ...]] = MappingProxyType({})
    in_order: Sequence[int] = ()

    @staticmethod
    def of(graph: DataflowGraph) -> BatchState:
        """As the graph of a captured model or of a training step records it; another graph shares all inputs.

        Raises GraphError: the record is incomplete.
        """
        for key, read, command, what in (("captured", _captured, "capture", "capture the model"),
                                         ("workload", _updated, "workload", "make the graph")):
            record = graph.attributes.get(key)
            if record is not None:
                try:
                    return read(graph, record)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise GraphError(f"{graph.name}: {key}: expected the record that `{command}` writes, got another ({error!r}); {what} "
                                     "again") from None
        return BatchState()


def _captured(graph: DataflowGraph, record: Mapping) -> BatchState:
    index = graph.vertex_of
    weights = {x["variable"]: index[x["vertex"]] for x in record["weights"]}
    carried = {weights[x["variable"]]: int(graph.tensor_ptr[index[x["vertex"]]]) + x.get("output", 0)
               for x in record["updates"] if x["variable"] in weights}
    return BatchState([index[x["vertex"]] for x in record["inputs"]], carried, [index[key] for key in record.get("in_order", ())])


def _updated(graph: DataflowGraph, record: Mapping) -> BatchState:
    """The tiles of a training step's `new_NAME` are the next tiles of its input NAME, however both are cut."""
    if "training" not in record:
        return BatchState()
    index = graph.vertex_of
    carried = {}
    for v, kernel in enumerate(graph.kernel):
        updated = graph.attributes["outputs"].get(f"new_{kernel.params['tensor']}") if graph.is_input[v] else None
        if updated is not None:
            pieces = [_piece(int(graph.tensor_ptr[index[tile["vertex"]]]), tile["box"], kernel.params["box"]) for tile in updated["tiles"]]
            carried[v] = tuple(piece for piece in pieces if piece is not None)
    return BatchState((), carried)


def _piece(tensor: int, tile: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> Piece | None:
    """What an input's box takes from a tile of the updated tensor."""
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(tile, wanted, strict=True)]
    if any(a >= b for a, b in both):
        return None
    cut, box = (tuple((a - start, b - start) for (a, b), (start, _) in zip(both, frame, strict=True)) for frame in (tile, wanted))
    return Piece(tensor, None if both == [(a, b) for a, b in tile] else cut, box)
