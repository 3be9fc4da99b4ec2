"""Sizes of tensors, whether or not they are known when a function is traced."""

from __future__ import annotations

import tensorflow as tf


def extent(tensor: tf.Tensor, axis: int) -> int | tf.Tensor:
    """How long a tensor is along an axis: a number where that is known when a function is traced, else a tensor."""
    return tf.shape(tensor)[axis] if tensor.shape[axis] is None else tensor.shape[axis]
