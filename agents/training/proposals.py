"""Training of the network that proposes moves to searches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from doppler_tf.heuristics.search.move_examples import HIDDEN, Examples
from doppler_tf.heuristics.search.proposals import Proposals

EPOCHS, BATCH, RATE = 10, 1024, 4e-3
# Examples of a graph count as if this share of its moves shortened the run, but at most so many times.
_SHORTENING, _MOST_WEIGHT = 0.02, 3.0


def fit(graphs: Sequence[Examples], seed: int = 0) -> Proposals:
    """Trains a network to tell the moves that shorten a run, each graph with about the same weight. (Logistic loss, Adam.)"""
    some = [each for each in graphs if each.shortens.any()]
    x = np.concatenate([each.features for each in some]).astype(np.float64)
    y = np.concatenate([each.shortens for each in some]).astype(np.float32)
    weight = np.concatenate([np.full(len(each.shortens), min(_MOST_WEIGHT, _SHORTENING / each.shortens.mean())) for each in some])
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6
    tf.keras.utils.set_random_seed(seed)
    network = tf.keras.Sequential([*(tf.keras.layers.Dense(HIDDEN, activation="relu") for _ in range(2)), tf.keras.layers.Dense(1)])
    rate = tf.keras.optimizers.schedules.CosineDecay(RATE, EPOCHS * -(-len(x) // BATCH))
    network.compile(tf.keras.optimizers.Adam(rate), tf.keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=True)
    network.fit((x - mean) / deviation, y, sample_weight=weight, epochs=EPOCHS, batch_size=BATCH, verbose=0)
    first, first_bias, second, second_bias, last, _ = [each.astype(np.float64) for each in network.get_weights()]
    first = first / deviation[:, None]  # so that the network takes features as they are
    return Proposals(first, first_bias - mean @ first, second, second_bias, last[:, 0])
