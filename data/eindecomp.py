"""EinDecomp: into how many parts each operation cuts its labels, so that the fewest elements move between tiles.

The method is that of Bourgeois et al., "EinDecomp" (arXiv 2410.02682): every operation is cut into the wanted number of pieces, and the sum
of three costs is least. Let |X| be the elements of a tensor, and d the parts of each label of an operation.

- Join: each piece receives its tile of every operand: |X| times the product of d over the labels that X lacks.
- Aggregation: the partial results of all but one piece move to where they are added: |Z| times (the product of d over summed labels, less 1).
- Re-partition: a consumer's tile is assembled from the producer's tiles, and what the tile with the largest overlap lacks moves.

Each sum is over whole grids of tiles, so that it is exact for sizes that do not divide. For equal tiles join and aggregation are the
paper's p (n_X + n_Y) and (p / n_agg) (n_agg - 1) n_Z with n elements of a tile.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from data.einsum_program import FUNCTIONS, EinsumProgram, Use
from data.tiling import bounds
from doppler_tf.errors import ConfigError, field_error

# Entries of the largest table that the elimination may make: it takes about a millisecond.
_MOST_ENTRIES = 1 << 18
# Turns without a gain, each with other operations fixed, after which the search ends.
_IDLE_TURNS = 3
Parts = Mapping[str, int]
# Costs by the choices of some operations, which are named by their numbers.
Factor = tuple[tuple[int, ...], np.ndarray]


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
      whole: labels that are not cut; divisible: labels that are cut into equal parts alone.
    """

    name: str
    sizes: Mapping[str, int]
    reads: tuple[LabelledTensor, ...]
    writes: tuple[LabelledTensor, ...]
    whole: frozenset[str] = frozenset()
    flops: float = 0.0
    divisible: frozenset[str] = frozenset()


def eindecomp(operations: Sequence[LabelledOperation], pieces: int, *, most_elements: int | None = None,
              count_inputs: bool = True) -> dict[str, dict[str, int]]:
    """The tiling that moves the fewest elements.

    The costs are of single operations and of pairs of producer and consumer. Operations are eliminated one after another: the best choice of
    one is tabulated for every choice of its neighbours (Bertele and Brioschi, 1972). The result is optimal where no table is too
    large, and always on trees. Elsewhere neighbours keep their present choice while others are eliminated, again and again until nothing
    improves.

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
    chosen = _minimise([len(each) for each in choices], factors)
    return {operation.name: {label: parts for label, parts in each[k].items() if parts > 1}
            for operation, each, k in zip(operations, choices, chosen, strict=True)}


def moved_elements(operations: Sequence[LabelledOperation], tiling: Mapping[str, Parts], count_inputs: bool = True) -> float:
    """The cost that `eindecomp` minimises, of any tiling; labels without an entry stay whole."""
    choices = [[{label: tiling.get(operation.name, {}).get(label, 1) for label in operation.sizes}] for operation in operations]
    return float(sum(table.sum() for _, table in _factors(operations, choices, count_inputs)))


def _choices(operation: LabelledOperation, pieces: int, most_elements: int | None) -> list[dict[str, int]]:
    """The ways to cut an operation: as many pieces as wanted, else the most below, and more where tiles were too large."""
    labels = [label for label in operation.sizes if label not in operation.whole]
    most = [operation.sizes[label] for label in labels]
    largest = math.prod(most)
    below = range(min(pieces, largest), 0, -1)
    above = range(pieces + 1, largest + 1) if most_elements is not None else ()
    for count in itertools.chain(below if most_elements is None else [min(pieces, largest)], above):
        found = [dict(zip(labels, parts, strict=True)) for parts in _factorisations(count, tuple(most))]
        found = [{**dict.fromkeys(operation.sizes, 1), **parts} for parts in found
                 if all(operation.sizes[label] % parts[label] == 0 for label in operation.divisible & parts.keys())]
        if most_elements is not None:
            found = [parts for parts in found if _largest_tile(operation, parts) <= most_elements]
        if found:
            return found
    smallest = _largest_tile(operation, {label: 1 if label in operation.whole else size for label, size in operation.sizes.items()})
    raise field_error(ConfigError, "eindecomp", f"operation {operation.name!r}", "most_elements", f"at least {smallest:,}", most_elements,
                      "allow larger tiles")


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


def _minimise(counts: Sequence[int], factors: Sequence[Factor]) -> list[int]:
    """The choice of every operation for which the sum of all tables is least, or as good as is found."""
    chosen, fixed, idle = _one_by_one(counts, factors), set[int](), 0
    best = _cost(factors, chosen)
    while idle < _IDLE_TURNS:
        found, fixed = _eliminate(counts, factors, chosen, fixed)
        cost = _cost(factors, found)
        idle, best, chosen = (0, cost, found) if cost < best else (idle + 1, best, chosen)
        if not fixed:
            break
    return chosen


def _cost(factors: Sequence[Factor], chosen: Sequence[int]) -> float:
    return sum(float(table[tuple(chosen[i] for i in scope)]) for scope, table in factors)


def _one_by_one(counts: Sequence[int], factors: Sequence[Factor]) -> list[int]:
    """Each operation in turn, as is best behind those before it."""
    mine: list[list[Factor]] = [[] for _ in counts]
    for factor in factors:
        mine[max(factor[0])].append(factor)
    chosen: list[int] = []
    for i, tables in enumerate(mine):
        total = np.zeros(counts[i])
        for scope, table in tables:
            total = total + table[tuple(slice(None) if j == i else chosen[j] for j in scope)]
        chosen.append(int(np.argmin(total)))
    return chosen


def _eliminate(counts: Sequence[int], factors: Sequence[Factor], chosen: Sequence[int], spared: set[int]) -> tuple[list[int], set[int]]:
    """The best choices where some operations keep theirs, so that no table is too large; and these operations, none of `spared` if others do.

    The operation whose table is smallest is eliminated first.
    """
    tables: list[dict[int, Factor]] = [{} for _ in counts]  # of each operation, by number of the factor
    near: list[set[int]] = [set() for _ in counts]
    number = itertools.count()

    def add(scope: tuple[int, ...], table: np.ndarray) -> None:
        key = next(number)
        for i in scope:
            tables[i][key] = scope, table
            near[i].update(scope)
            near[i].discard(i)

    def take(i: int) -> list[Factor]:
        """All tables of an operation, which no other has any longer."""
        taken = tables[i]
        for key, (scope, _) in taken.items():
            for j in scope:
                if j != i:
                    del tables[j][key]
        for j in near[i]:
            near[j].discard(i)
        tables[i] = {}
        return list(taken.values())

    def entries(i: int) -> int:
        return math.prod(counts[j] for j in near[i]) * counts[i]

    for scope, table in factors:
        add(scope, table)
    result, fixed, left = list(chosen), set[int](), set(range(len(counts)))
    waiting = [(entries(i), i) for i in left]
    heapq.heapify(waiting)
    decided: list[tuple[int, list[int], np.ndarray]] = []
    while left:
        size, i = heapq.heappop(waiting)
        if i not in left or size != entries(i):
            continue  # a later entry is right
        if size > _MOST_ENTRIES:
            heapq.heappush(waiting, (size, i))
            i = max(left, key=lambda j: (j not in spared, len(near[j]), j))
            fixed.add(i)
            left.discard(i)
            beside = sorted(near[i])
            for scope, table in take(i):
                if len(scope) > 1:
                    add(tuple(j for j in scope if j != i), table[tuple(result[i] if j == i else slice(None) for j in scope)])
        else:
            left.discard(i)
            beside = sorted(near[i])
            total = np.zeros([counts[j] for j in (*beside, i)])
            for scope, table in take(i):
                total += _spread(scope, table, (*beside, i))
            decided.append((i, beside, total.argmin(axis=-1)))
            if beside:
                add(tuple(beside), total.min(axis=-1))
        for j in beside:
            heapq.heappush(waiting, (entries(j), j))
    for i, beside, best in reversed(decided):
        result[i] = int(best[tuple(result[j] for j in beside)])
    return result, fixed


def _spread(scope: tuple[int, ...], table: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """A table with its axes among `axes`, to be added."""
    order = sorted(range(len(scope)), key=lambda k: axes.index(scope[k]))
    shape = [1] * len(axes)
    for k in order:
        shape[axes.index(scope[k])] = table.shape[k]
    return table.transpose(order).reshape(shape)


def labelled(program: EinsumProgram) -> list[LabelledOperation]:
    """The expressions of a program. A view is read as the tensor behind it, whole along axes that it cuts."""
    def read(use: Use) -> LabelledTensor:
        tensor, labels = use.tensor, list(use.labels)
        while (view := program.views.get(tensor)) is not None:
            tensor = view.tensor
            whole = program.shapes[tensor]
            labels = [label if label is not None and program.sizes[label] == size else None for label, size in zip(labels, whole, strict=True)]
        return LabelledTensor(tensor, tuple(labels), program.shapes[tensor])

    return [LabelledOperation(
        e.name, {label: program.sizes[label] for label in e.space}, tuple(map(read, e.operands)),
        (LabelledTensor(e.name, e.labels, program.shapes[e.name]),),
        frozenset(e.labels[-1:]) if FUNCTIONS[e.fn].whole_last_axis else frozenset(), program.flops(e)) for e in program.expressions]
