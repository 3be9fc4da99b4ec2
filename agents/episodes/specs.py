"""Tensors that come from outside, such as actions and trajectories: what does not fit its spec is told in one line."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.util import nest

from doppler_tf.errors import ConfigError, Described, field_error, shown


def fitting(value: Any, specs: Any, where: str, *outer: str | int) -> Any:
    """What the specs name of a value, as tensors of their types.

    Args:
      value: may hold more than the specs name.
      outer: dimensions that stand before those of the specs: sizes, or letters where any size will do.

    Raises:
      ConfigError: something is missing, or is of another kind of numbers or of another shape.
    """
    expected = nest.flatten_with_joined_string_paths(specs)
    try:
        given = dict(nest.flatten_with_joined_string_paths(value))
    except (TypeError, ValueError):  # what cannot be taken apart
        given = {}
    if any(path not in given for path, _ in expected):
        names = ", ".join(path for path in given if path) or shown(value)
        raise field_error(ConfigError, where, "", "structure", ", ".join(path or "a tensor" for path, _ in expected), Described(names))
    return tf.nest.pack_sequence_as(specs, [_as(given[path], spec, where, path, outer) for path, spec in expected])


def _as(value: Any, spec: tf.TensorSpec, where: str, path: str, outer: tuple[str | int, ...]) -> tf.Tensor:
    shape = tf.TensorShape([size if isinstance(size, int) else None for size in outer] + spec.shape.as_list())
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        tensor = None
    if tensor is None or _numbers(tensor.dtype) != _numbers(spec.dtype) or not shape.is_compatible_with(tensor.shape):
        sizes = ", ".join(str(size) for size in (*outer, *spec.shape.as_list()))
        got = shown(value) if tensor is None else f"{tensor.dtype.name} of shape {tensor.shape}"
        raise field_error(ConfigError, where, "", path or "type", f"{spec.dtype.name} of shape [{sizes}]", Described(got))
    return tf.cast(tensor, spec.dtype)


def _numbers(dtype: tf.DType) -> tuple[bool, bool, bool]:
    return dtype.is_bool, dtype.is_integer, dtype.is_floating
