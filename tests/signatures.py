"""Functions with drawn signatures: nested arguments, defaults, keywords, and results in containers with a composite tensor among them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import attr
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st
from tensorflow.python.util import nest

from data.capture.calls.structure import adopt_dataclasses

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    one: Any
    other: Any


@attr.s(auto_attribs=True)
class Fields:
    left: Any
    right: Any


class Named(dict):
    """A dict of another type."""


adopt_dataclasses(Record(np.zeros(1), None))  # before TensorFlow first sees one, for it remembers what is no structure


# Parameters; which of them are given by position in the example, and which by keyword; and by position in another call.
_HEADS = (("a", "a", "", ""), ("a, b", "a b", "", ""), ("a, flag=2", "a", "", ""), ("a, table=TABLE", "a", "", "a"),
          ("a, flag=2, b=None", "a", "b", ""), ("a, *rest", "a r s", "", "a r s"), ("a, *, only, scale=2.0", "a", "only", ""),
          ("*rest, only=None, **more", "r", "only zeta extra", "r"), ("a, /, b, **more", "a", "b zeta extra", "a"))
_RESULTS = ("twice", "same", "sum", "constant", "number", "none", "slices", "ragged", "sparse")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A function, an example of its arguments, and calls with other numbers: positional arguments and keywords."""

    function: Callable
    example: tuple
    keywords: Mapping[str, Any]
    calls: tuple[tuple[tuple, dict[str, Any]], ...]


def containers(parts: st.SearchStrategy) -> st.SearchStrategy:
    """Every container that TensorFlow nests, around parts; keys are in no order."""
    two = st.tuples(parts, parts)
    return st.one_of(
        st.lists(parts, min_size=1, max_size=3), st.lists(parts, min_size=1, max_size=2).map(tuple), two.map(lambda x: Pair(*x)),
        two.map(lambda x: Record(*x)), two.map(lambda x: Fields(*x)), two.map(lambda x: {"zeta": x[0], "a": x[1]}),
        parts.map(lambda x: {7: x, 3: x}), parts.map(lambda x: Named(z=x)), two.map(lambda x: collections.OrderedDict(y=x[0], b=x[1])))


@st.composite
def functions(draw) -> Drawn:
    """Functions of 1 to 6 tensors, plain ones and tf.functions."""
    head, positional, keywords, again = draw(st.sampled_from(_HEADS))
    leaf = st.sampled_from([(3, 2), (2,), (4, 1)]).map(lambda shape: np.zeros(shape, np.float32))
    structure = st.recursive(leaf, containers, max_leaves=2)
    names = f"{positional} {keywords}".split()
    taken = dict(zip(names, draw(st.tuples(*[structure] * len(names)).filter(_small)), strict=True))
    results = draw(st.recursive(st.sampled_from(_RESULTS), containers, max_leaves=4))
    results = {"all": results, "composite": draw(st.sampled_from(_RESULTS[-3:]))}
    space = {"TABLE": np.full((3, 2), 0.5, np.float32), "made": lambda arguments: _results(arguments, results)}
    exec(f"def drawn({head}):\n    return made(dict(locals()))\n", space)

    def call(seed: int, by_position: str) -> tuple[tuple, dict]:
        rng = np.random.default_rng(seed)
        values = {name: nest.map_structure(lambda x: tf.constant(rng.normal(size=x.shape), tf.float32), x) for name, x in taken.items()}
        return tuple(values.pop(name) for name in by_position.split()), values

    function = tf.function(space["drawn"]) if draw(st.booleans()) else space["drawn"]
    return Drawn(function, *call(0, positional), (call(1, positional), call(2, again)))


def equal(found: Any, expected: Any) -> None:
    """Asserts the same structure, types and values."""
    nest.assert_same_structure(found, expected, expand_composites=True)
    for x, y in zip(nest.flatten(found), nest.flatten(expected), strict=True):
        assert type(x) is type(y)
        for a, b in zip(nest.flatten(x, expand_composites=True), nest.flatten(y, expand_composites=True), strict=True):
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _small(structures: tuple) -> bool:
    return len(nest.flatten(structures)) <= 6


def _results(arguments: Mapping[str, Any], kinds: Any) -> Any:
    taken = [x for _, value in sorted(arguments.items()) for x in nest.flatten(value) if hasattr(x, "shape")]
    factor = float(arguments.get("flag", 2)) * arguments.get("scale", 1.0)
    tensors = [tf.convert_to_tensor(x) for x in taken]
    count = iter(range(100))

    def made(kind: str) -> Any:
        x = tensors[next(count) % len(tensors)]
        rows = int(x.shape[0])
        return {"twice": lambda: x * factor, "same": lambda: x, "sum": lambda: tf.add_n([tf.reduce_sum(each) for each in tensors]),
                "constant": lambda: tf.constant([1, 2]), "number": lambda: 3, "none": lambda: None,
                "slices": lambda: tf.IndexedSlices(x * 2.0, tf.range(rows), tf.constant([rows + 2, *x.shape[1:]])),
                "ragged": lambda: tf.RaggedTensor.from_row_lengths(x * 3.0, [rows - 1, 1]),
                "sparse": lambda: tf.SparseTensor([[0, 1], [1, 0]], tf.reshape(x, [-1])[:2] * 4.0, [2, 3])}[kind]()

    return nest.map_structure(made, kinds)
