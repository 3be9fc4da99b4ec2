"""GradientTape on the uncut forward program: what the loss and the gradients of a training step are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from data import EinsumProgram, Training, evaluate_program, relative_error
from data.training import LEARNING_RATES
from data.workloads import forward_program, step_program
from doppler_tf.api.comparison.plain_tensorflow import computed

LOSSES: dict[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "mean_squared_error": lambda x, target: tf.reduce_mean(tf.square(x - target)),
    "softmax_cross_entropy": lambda x, target: tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, x)),
}


def loss_and_gradients(forward: EinsumProgram, training: Training,
                       given: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The loss, and its gradient by weight. Args: given: the inputs of the forward program, and `target`."""
    weights = [name for name in forward.inputs if name not in training.data]
    with tf.GradientTape() as tape:
        tape.watch([given[name] for name in weights])
        loss = LOSSES[training.loss](computed(forward, given)[training.of], given["target"])
    return loss, dict(zip(weights, tape.gradient(loss, [given[name] for name in weights]), strict=True))


def gradient_error(record: Mapping) -> float:
    """How far the uncut program of a training step is from GradientTape, both in float64: the larger relative error of the loss and of all
    gradients as one vector. Args: record: a graph's `workload` attribute."""
    # The first velocity of momentum is the gradient times minus the learning rate, and no digit of it is lost in a sum.
    step, (forward, training) = step_program(record, "momentum"), forward_program(record)
    tensors = step.draw_inputs(record["seed"], np.float64)
    given = {name: tf.constant(tensors[name]) for name in (*forward.inputs, "target")}
    loss, gradients = loss_and_gradients(forward, training, given)
    found = evaluate_program(step, tensors)
    got = [found[f"new_velocity_{name}"].ravel() / -LEARNING_RATES["momentum"] for name in gradients]
    expected = [np.zeros(x.size) if g is None else g.numpy().ravel() for g, x in zip(gradients.values(), got, strict=True)]
    return float(np.max([relative_error({"loss": found["loss"]}, {"loss": loss.numpy()}),
                         relative_error({"all": np.concatenate(got)}, {"all": np.concatenate(expected)})]))
