"""EinDecomp: into how many parts each operation cuts its labels, so that the fewest elements move between tiles.

The method is that of Bourgeois et al., "EinDecomp" (arXiv 2410.02682): every operation is cut into the wanted number of pieces, and the sum
of three costs is least. Let |X| be the elements of a tensor, and d the parts of each label of an operation.

- Join: each piece receives its tile of every operand: |X| times the product of d over the labels that X lacks.
- Aggregation: partial results move to where they are added, all but one: |Z| times (the product of d over summed labels, less 1).
- Re-partition: a consumer's tile is assembled from the producer's tiles. What the tile with the largest overlap lacks moves.

Each sum is over whole grids of tiles, so that it is exact for sizes that do not divide. For equal tiles join and aggregation are the
paper's p (n_X + n_Y) and (p / n_agg) (n_agg - 1) n_Z with n elements of a tile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data.einsum_program import EinsumProgram
from data.elimination import Factor, minimise
from data.steps import Expression, Pad, Use
from data.tiling import bounds
from doppler_tf.errors import ConfigError, field_error

Parts = Mapping[str, int]


@dataclass(frozen=True)
class LabelledTensor:
    """A tensor as one operation reads or writes it.

    Attributes:
      labels: by axis; None: the axis is read or written whole.
      shape: elements by axis. An axis of several elements for each unit of its label is cut between units.
    """

    tensor: Hashable
    labels: tuple[str | None, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class LabelledOperation:
    """What the choice of a tiling needs to know about an operation. Labels that no output has are summed after the pieces.

    Attributes:
      sizes: units by label, which are the most parts.
      reads, writes: operands and outputs. Tensors that no operation writes are inputs.
      whole: labels that are not cut.
      optional: the operation may stay whole where fewer elements move then, because cutting it gains little time.
    """

    name: str
    sizes: Mapping[str, int]
    reads: tuple[LabelledTensor, ...]
    writes: tuple[LabelledTensor, ...]
    whole: frozenset[str] = frozenset()
    optional: bool = False


def eindecomp(operations: Sequence[LabelledOperation], pieces: int, *, most_elements: int | None = None,
              count_inputs: bool = True) -> dict[str, dict[str, int]]:
    """The tiling that moves the fewest elements.

    The costs are of single operations and of pairs of producer and consumer, whose sum `elimination.minimise` makes least. The result is
    optimal on trees, and on all programs in which no elimination needs too large a table.

    Args:
      operations: in topological order.
      pieces: of every operation; an operation that cannot be cut so has the most pieces below.
      most_elements: the limit of a tile of any tensor; an operation is cut into more pieces to keep it.
      count_inputs: whether the join of an input costs; where inputs are on every device, it does not.

    Returns:
      Parts > 1 by label, for every operation.

    Raises:
      ConfigError: pieces < 1, or a tile that no tiling makes small enough.
    """
    if isinstance(pieces, bool) or not isinstance(pieces, int) or pieces < 1:
        raise field_error(ConfigError, "eindecomp", "", "pieces", "an integer >= 1", pieces)
    choices = [_choices(operation, pieces, most_elements) for operation in operations]
    factors = _factors(operations, choices, count_inputs)
    chosen = minimise([len(each) for each in choices], factors)
    return {operation.name: {label: parts for label, parts in each[k].items() if parts > 1}
            for operation, each, k in zip(operations, choices, chosen, strict=True)}


def moved_elements(operations: Sequence[LabelledOperation], tiling: Mapping[str, Parts], count_inputs: bool = True) -> float:
    """The cost that `eindecomp` minimises, of any tiling; labels without an entry stay whole."""
    choices = [[{label: tiling.get(operation.name, {}).get(label, 1) for label in operation.sizes}] for operation in operations]
    return float(sum(table.sum() for _, table in _factors(operations, choices, count_inputs)))


def _choices(operation: LabelledOperation, pieces: int, most_elements: int | None) -> list[dict[str, int]]:
    """The ways to cut an operation: into as many pieces as wanted, else the most below, and twice as many while tiles are too large.

    Those that need fewer sums are first, as they are chosen among equals.
    """
    labels = [label for label in operation.sizes if label not in operation.whole]
    most = tuple(operation.sizes[label] for label in labels)
    whole = dict.fromkeys(operation.sizes, 1)
    summed = operation.sizes.keys() - {label for tensor in operation.writes for label in tensor.labels}
    while True:
        count = min(pieces, math.prod(most))
        while not (factors := _factorisations(count, most)):
            count -= 1
        found = [{**whole, **dict(zip(labels, parts, strict=True))} for parts in factors]
        if most_elements is not None:
            smallest = min(_largest_tile(operation, parts) for parts in found)
            found = [parts for parts in found if _largest_tile(operation, parts) <= most_elements]
        if found:
            break
        if count == math.prod(most):
            raise field_error(ConfigError, "eindecomp", f"operation {operation.name!r}", "most_elements", f"at least {smallest:,}",
                              most_elements, "allow larger tiles")
        pieces *= 2
    found.sort(key=lambda parts: math.prod(parts[label] for label in summed))
    return [*found, whole] if operation.optional and most_elements is None and whole not in found else found


@lru_cache(maxsize=4096)
def _factorisations(count: int, most: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """All ordered factors of `count`, one for each entry of `most` and none above it."""
    if not most:
        return ((),) if count == 1 else ()
    return tuple((first, *rest) for first in range(1, min(count, most[0]) + 1) if count % first == 0
                 for rest in _factorisations(count // first, most[1:]))


def _largest_tile(operation: LabelledOperation, parts: Parts) -> int:
    return max(math.prod(_longest(size, operation.sizes.get(label, 1), parts.get(label, 1))
                         for size, label in zip(tensor.shape, tensor.labels, strict=True))
               for tensor in (*operation.reads, *operation.writes))


def _longest(size: int, units: int, parts: int) -> int:
    return -(-units // parts) * (size // units) if parts > 1 else size


def _factors(operations: Sequence[LabelledOperation], choices: Sequence[Sequence[Parts]],
             count_inputs: bool) -> list[Factor]:
    """The costs as tables: (operations, cost by their choices)."""
    writer = {tensor.tensor: (i, tensor) for i, operation in enumerate(operations) for tensor in operation.writes}
    factors = []
    for i, operation in enumerate(operations):
        own = np.zeros(len(choices[i]))
        for tensor in operation.reads:
            if count_inputs or tensor.tensor in writer:
                own += tensor.elements * _product(choices[i], operation.sizes.keys() - set(tensor.labels))
        for tensor in operation.writes:
            own += tensor.elements * (_product(choices[i], operation.sizes.keys() - set(tensor.labels)) - 1)
        factors.append(((i,), own))
        for tensor in operation.reads:
            if tensor.tensor in writer:
                j, written = writer[tensor.tensor]
                table = _repartition(written, operations[j], choices[j], tensor, operation, choices[i])
                factors.append(((j, i), table))
    return factors


def _product(choices: Sequence[Parts], labels) -> np.ndarray:
    return np.array([math.prod(parts[label] for label in labels) for parts in choices], float)


def _repartition(written: LabelledTensor, producer: LabelledOperation, makes: Sequence[Parts],
                 read: LabelledTensor, consumer: LabelledOperation, takes: Sequence[Parts]) -> np.ndarray:
    """float [producer's choices, consumer's choices]: the elements that a consumer's tiles lack in the tile with the largest overlap."""
    held = np.ones((len(makes), len(takes)))
    for axis, size in enumerate(written.shape):
        one = _axis_parts(written.labels[axis], producer, makes)
        other = _axis_parts(read.labels[axis], consumer, takes)
        made, which = np.unique(one, return_inverse=True)
        taken, where = np.unique(other, return_inverse=True)
        units = producer.sizes.get(written.labels[axis], 1), consumer.sizes.get(read.labels[axis], 1)
        table = np.array([[_held(size, units[0], a, units[1], b) for b in taken.tolist()] for a in made.tolist()], float)
        held *= table[which][:, where]
    return written.elements - held


def _axis_parts(label: str | None, operation: LabelledOperation, choices: Sequence[Parts]) -> np.ndarray:
    return np.array([1 if label is None else parts[label] for parts in choices])


@lru_cache(maxsize=1 << 16)
def _held(size: int, made_units: int, made: int, taken_units: int, taken: int) -> int:
    """Along one axis, the largest overlaps of each consumer's interval with a producer's interval, added up."""
    if made == 1:
        return size
    makes = [bound * (size // made_units) for bound in bounds(made_units, made)]
    takes = [bound * (size // taken_units) for bound in bounds(taken_units, taken)] if taken > 1 else [0, size]
    return sum(max(min(stop, b) - max(start, a) for a, b in itertools.pairwise(makes)) for start, stop in itertools.pairwise(takes))


def labelled(program: EinsumProgram) -> list[LabelledOperation]:
    """The expressions of a program. A view is read as the tensor behind it, whole along axes that it cuts; a pad reads alike."""
    def read(use: Use, reader: Expression | Pad) -> LabelledTensor:
        tensor, labels = use.tensor, list(use.labels)
        if isinstance(reader, Pad):
            labels = [label if label is not None and program.sizes[label] == size else None
                      for label, size in zip(reader.labels, program.shapes[tensor], strict=True)]
        while (view := program.views.get(tensor)) is not None:
            tensor = view.tensor
            whole = program.shapes[tensor]
            labels = [label if label is not None and program.sizes[label] == size else None
                      for label, size in zip(labels, whole, strict=True)]
        return LabelledTensor(tensor, tuple(labels), program.shapes[tensor])

    return [LabelledOperation(
        e.name, {label: program.sizes[label] for label in e.space}, tuple(read(use, e) for use in e.operands),
        (LabelledTensor(e.name, e.labels, program.shapes[e.name]),),
        frozenset(e.whole)) for e in program.expressions]
