"""Structures of tensors as TensorFlow nests them: the path of each leaf, the parts of composite tensors, and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.util import nest

from doppler_tf.errors import ConfigError, field_error

# The parts of composite tensors, in TensorFlow's order.
_PARTS = {"IndexedSlices": ("values", "indices", "dense_shape"), "SparseTensor": ("indices", "values", "dense_shape")}
_TENSORS = (tf.Tensor, tf.Variable, tf.TypeSpec, np.ndarray)


def leaves(structure: Any) -> list[tuple[str, Any]]:
    """The path of each leaf, as "d/zeta", and the leaf, in TensorFlow's order; a composite tensor is one leaf."""
    found = []
    for keys, leaf in nest.flatten_with_tuple_paths(structure):
        names, at = [], structure
        for key in keys:
            name, at = _child(at, key)
            names.append(name)
        found.append(("/".join(names), leaf))
    return found


def _child(at: Any, key: Any) -> tuple[str, Any]:
    if isinstance(at, Mapping):
        return str(key), at[key]
    if isinstance(key, str):
        return key, getattr(at, key)
    if not hasattr(at, "__tf_flatten__"):
        return str(key), at[key]
    components = at.__tf_flatten__()[1]
    child, fields = components[key], dataclasses.fields(at) if dataclasses.is_dataclass(at) else ()
    same = [field.name for field in fields if getattr(at, field.name) is child]  # one object may stand in several fields
    before = sum(each is child for each in components[:key])
    return same[before] if before < len(same) else str(key), child


def is_composite(leaf: Any) -> bool:
    """Whether a leaf is a composite tensor, or the spec of one."""
    return isinstance(leaf, tf.__internal__.CompositeTensor) or (isinstance(leaf, tf.TypeSpec) and not isinstance(leaf, tf.TensorSpec))


def kind(leaf: Any) -> str:
    """The type of a composite tensor, given it or its spec."""
    return (leaf.value_type if isinstance(leaf, tf.TypeSpec) else type(leaf)).__name__


def parts(path: str, leaf: Any) -> list[tuple[str, Any]]:
    """The tensors or TensorSpecs of which a composite tensor or its spec consists, each with its path; of a plain tensor, itself."""
    if not is_composite(leaf):
        return [(path, leaf)]
    flat = nest.flatten(leaf, expand_composites=True)
    splits = ("row_splits",) if len(flat) == 2 else tuple(f"row_splits_{i}" for i in range(len(flat) - 1))
    names = ("flat_values", *splits) if kind(leaf) == "RaggedTensor" else _PARTS.get(kind(leaf), ())
    names = names if len(names) >= len(flat) else tuple(map(str, range(len(flat))))
    return [(f"{path}/{name}" if path else name, part) for name, part in zip(names, flat, strict=False)]


def adopt_dataclasses(structure: Any) -> None:
    """Makes dataclasses that hold tensors structures by TensorFlow's own protocol, unless they follow it already.

    Raises ConfigError: TensorFlow has met the class before, and remembers that it is no structure.
    """
    for value in _dataclasses(structure):
        cls = type(value)
        if not hasattr(cls, "__tf_flatten__") and _holds_tensors(value):
            cls.__tf_flatten__, cls.__tf_unflatten__ = _flatten, classmethod(_unflatten)
            if not nest.is_nested(value):
                raise field_error(ConfigError, cls.__name__, "", "dataclass", "one that TensorFlow takes apart", "one that it met before as"
                                  " one value, which it remembers", "give the class __tf_flatten__ and __tf_unflatten__, or capture "
                                  "before tf.nest first sees it")


def _flatten(self) -> tuple[tuple, tuple]:
    return (), tuple(getattr(self, field.name) for field in dataclasses.fields(self))


def _unflatten(cls, metadata: tuple, components: tuple):
    made = object.__new__(cls)
    for field, value in zip(dataclasses.fields(cls), components, strict=True):
        object.__setattr__(made, field.name, value)  # of frozen ones, too
    return made


def _inside(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (getattr(value, field.name) for field in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return iter(value.values())
    return iter(value) if isinstance(value, list | tuple) else iter(())


def _dataclasses(value: Any) -> Iterator[Any]:
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, *_TENSORS)):
        yield value
    for child in _inside(value):
        yield from _dataclasses(child)


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, _TENSORS) or is_composite(value) or any(map(_holds_tensors, _inside(value)))
