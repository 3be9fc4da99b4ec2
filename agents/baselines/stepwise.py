"""Log-probabilities of whole episodes whose every step takes much memory: one step at a time, there and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


def step_by_step(log_p: Callable, place: Callable, start, valid: tf.Tensor, tables: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
    """What `log_p` gives by step, each float32 [B, T], differentiable in tables and variables; zeros after the longest episode.

    The episodes are gone through twice, once for the values and once for the gradient, which is summed up step by step and takes the
    forward pass of each anew: memory is that of one step.

    Args:
      log_p: (t, state, *tables) -> float32 [B] each, of step t.
      place: (t, state) -> the state after step t, without a gradient.
      start: the state before the first step, any nest of tensors.
      valid: bool [B, T], False after the end of an episode.
      tables: tensors that every step reads, constant within an episode.
    """
    steps, longest = valid.shape[1], tf.reduce_max(tf.reduce_sum(tf.cast(valid, tf.int32), axis=1))

    def along(turn: Callable, carried):
        def body(t, state, carried):
            return t + 1, place(t, state), turn(t, state, carried)

        return tf.while_loop(lambda t, *_: t < longest, body, (tf.constant(0), start, carried), maximum_iterations=steps)[2]

    @tf.custom_gradient
    def values(*tables):
        def note(t, state, rows: tf.TensorArray) -> tf.TensorArray:
            return rows.write(t, tf.stack(log_p(t, state, *tables)))

        def gradient(above, variables=()):
            sources = [*tables, *variables]

            def add(t, state, sums):
                with tf.GradientTape() as tape:
                    tape.watch(tables)
                    found = tf.stack(log_p(t, state, *tables))
                below = tape.gradient(found, sources, above[t], unconnected_gradients=tf.UnconnectedGradients.ZERO)
                return [total + value for total, value in zip(sums, below, strict=True)]

            sums = along(add, [tf.zeros_like(source) for source in sources])
            return (sums[:len(tables)], sums[len(tables):]) if variables else sums

        return along(note, tf.TensorArray(tf.float32, steps)).stack(), gradient

    return tf.unstack(tf.transpose(values(*tables), [1, 2, 0]))
