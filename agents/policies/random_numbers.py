"""Random numbers by hashing: equal op by op, under XLA and on every device.

TensorFlow's stateless generators give other numbers when compiled, so that a compiled run could not be compared with an uncompiled one.
"""

from __future__ import annotations

import tensorflow as tf


def gumbel(seed: tf.Tensor, *index: tf.Tensor) -> tf.Tensor:
    """float32 standard Gumbel numbers, a function of seed (int32 [2]) and index (int32, broadcast together) alone."""
    return _gumbel(_bits(seed, *index))


def exponential(seed: tf.Tensor, *index: tf.Tensor) -> tf.Tensor:
    """float64 exponential numbers of mean 1, a function of seed (int32 [2]) and index (int32, broadcast together) alone."""
    return -tf.math.log(tf.cast(_bits(seed, *index), tf.float64) * 2.0**-32 + 2.0**-33)


def _gumbel(bits: tf.Tensor) -> tf.Tensor:
    # 23 bits and a half: 24 would round up to 1, whose Gumbel number is infinite.
    uniform = tf.cast(tf.bitwise.right_shift(bits, tf.constant(9, tf.uint32)), tf.float32) * 2.0**-23 + 2.0**-24
    return -tf.math.log(-tf.math.log(uniform))


def _bits(seed: tf.Tensor, *index: tf.Tensor) -> tf.Tensor:
    key = _mix(tf.cast(seed[0], tf.uint32) + tf.constant(0x9E3779B9, tf.uint32))
    key = _mix(tf.bitwise.bitwise_xor(key, tf.cast(seed[1], tf.uint32)))
    for part in index:
        key = _mix(key + (tf.cast(part, tf.uint32) + tf.constant(1, tf.uint32)) * tf.constant(0xC2B2AE35, tf.uint32))
    return key


def _mix(bits: tf.Tensor) -> tf.Tensor:
    """A bijection of 32 bits whose every output bit depends on every input bit (finaliser of MurmurHash3, Appleby 2011)."""
    bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(16, tf.uint32))) * tf.constant(0x85EBCA6B, tf.uint32)
    bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(13, tf.uint32))) * tf.constant(0xC2B2AE35, tf.uint32)
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, tf.constant(16, tf.uint32)))
