"""SEL alone: it chooses the vertices, which go where they start earliest, as the teacher's do (ablation of Yao et al. 2026)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from agents.episode import EpisodeState, GraphBatch, device_options
from agents.losses import LogProbability
from agents.networks import DualNetwork, Tables
from agents.race import Race
from agents.rollout import Choice, Episodes, choose_device, log_probability, next_vertex


class SelNetwork(DualNetwork):
    """PLC's head is there, unused and untrained."""

    @property
    def plc_variables(self) -> list[tf.Variable]:
        """None."""
        return []


def earliest_start(network: DualNetwork, batch: GraphBatch, tables: Tables, state: EpisodeState, placed: tf.Tensor, race: Race) -> Choice:
    """SEL picks a vertex; it goes where it starts earliest, ties at random (the first where the race is greedy)."""
    vertex = next_vertex(batch, state, race)
    options = device_options(batch, state, vertex)
    start = tf.where(options.mask, options.start_s, np.inf)
    first = start <= tf.reduce_min(start, axis=1, keepdims=True)
    return Choice(vertex, choose_device(batch, state, tf.zeros_like(start), first, race.seed, race.greedy), *options)


def sel_log_probability(network: DualNetwork, batch: GraphBatch, episodes: Episodes) -> tuple[LogProbability, LogProbability, tf.Tensor]:
    """As `rollout.log_probability`; devices are no choice."""
    sel, plc, valid = log_probability(network, batch, episodes)
    return sel, LogProbability(*(tf.zeros_like(value) for value in plc)), valid
