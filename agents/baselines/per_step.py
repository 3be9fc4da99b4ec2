"""SEL and PLC with message passing in every step instead of once an episode (ablation of Yao et al. 2026).

The heads and the features of devices are DOPPLER's. The encoder reads besides which vertices are assigned, when they run and where, so that
all it says of a vertex changes from step to step. That takes T encodings of B graphs an episode, where DOPPLER takes one of G.
"""

from __future__ import annotations

import tensorflow as tf

from agents.episodes.episode import EpisodeState, PaddedGraphs, candidates, device_options, initial_state, place_vertex
from agents.episodes.features import IDENTITY, VERTEX_WIDTH
from agents.policies.losses import EpisodeLogProbability, LogProbability, masked_log_probability, step_by_step
from agents.policies.networks import DualNetwork
from agents.policies.rollout import Choice, Episodes, choose_device, choose_vertex, real_steps, record_episodes

PLACEMENT_WIDTH = 3 + IDENTITY


class PerStepNetwork(DualNetwork):
    """Its encoder reads the placement so far among the vertices' features; the heads need not, as theirs are not placed yet."""

    encoder_width = VERTEX_WIDTH + PLACEMENT_WIDTH

    def look(self, graphs: PaddedGraphs, state: EpisodeState) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """All that the heads need of B episodes in `state`; graphs: `by_episode`.

        Returns:
          float32 [B, N] SEL's logits, [B, N, hidden] the vertices' part of PLC's first layer, [B, D, hidden] its sums by device.
        """
        hidden = self.encoder(graphs._replace(vertex=tf.concat([graphs.vertex, placement(graphs, state)], axis=1)))
        tables = self.tables(graphs, hidden)
        sel_logit, plc_vertex, plc_placed = (tf.reshape(table, [-1, graphs.num_vertices, *table.shape[1:]])
                                             for table in (tables.sel_logit, tables.plc_vertex, tables.plc_placed))
        there = tf.one_hot(state.device, graphs.num_devices, axis=1)
        return sel_logit, plc_vertex, tables.plc_empty + tf.matmul(there, plc_placed)


def by_episode(graphs: PaddedGraphs, graph: tf.Tensor) -> PaddedGraphs:
    """The graphs `graph` (int32 [B]) as B graphs in all fields that networks read; the other fields still hold G graphs."""
    move = (tf.range(tf.shape(graph)[0]) - graph)[:, None] * graphs.num_vertices

    def rows(table: tf.Tensor) -> tf.Tensor:
        by_graph = tf.reshape(table, [graphs.missing.shape[0], -1, *table.shape[1:]])
        return tf.reshape(tf.gather(by_graph, graph), [-1, *table.shape[1:]])

    def moved(table: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.gather(tf.reshape(table, [graphs.missing.shape[0], -1]), graph) + move, [-1])

    return graphs._replace(
        num_work=tf.gather(graphs.num_work, graph), vertex=rows(graphs.vertex), edge=rows(graphs.edge), source=moved(graphs.source),
        target=moved(graphs.target), b_next=moved(graphs.b_next), t_next=moved(graphs.t_next), missing=tf.gather(graphs.missing, graph),
        device_identity=tf.gather(graphs.device_identity, graph))


def placement(graphs: PaddedGraphs, state: EpisodeState) -> tf.Tensor:
    """float32 [B * N, PLACEMENT_WIDTH]: whether a vertex is assigned, its start and end, its device's identity; zeros while it is not."""
    assigned = tf.cast(state.device >= 0, tf.float32)
    where = tf.matmul(tf.one_hot(state.device, graphs.num_devices), graphs.device_identity)
    return tf.reshape(tf.concat([tf.stack([assigned, state.start_s, state.end_s], axis=2), where], axis=2), [-1, PLACEMENT_WIDTH])


def per_step_episodes(network: PerStepNetwork, graphs: PaddedGraphs, graph: tf.Tensor, seed: tf.Tensor, greedy: tf.Tensor) -> Episodes:
    """Episodes with an encoding in every step; arguments as `Rollout.run` takes them."""
    copies = by_episode(graphs, graph)

    def step(t: tf.Tensor, state: EpisodeState):
        sel_logit, plc_vertex, placed = network.look(copies, state)
        vertex = choose_vertex(graphs, state, sel_logit, candidates(state), seed, greedy)
        options = device_options(graphs, state, vertex)
        logits = network.device_logits(tf.gather(plc_vertex, vertex, batch_dims=1), placed, options.features)
        choice = Choice(vertex, choose_device(graphs, state, logits, options.mask, seed, greedy), *options)
        return choice, place_vertex(graphs, state, vertex, choice.device, options.start_s)

    return record_episodes(graphs, initial_state(graphs, graph), step)


def per_step_log_probability(network: PerStepNetwork, graphs: PaddedGraphs, episodes: Episodes
                             ) -> EpisodeLogProbability:
    """As `rollout.log_probability`, step by step: what a gradient needs of all encodings at once would take gigabytes."""
    copies, valid = by_episode(graphs, episodes.graph), real_steps(graphs, episodes)

    def log_p(t: tf.Tensor, state: EpisodeState) -> list[tf.Tensor]:
        vertex = episodes.order[:, t]
        sel_logit, plc_vertex, placed = network.look(copies, state)
        sel = masked_log_probability(sel_logit, candidates(state), vertex)
        logits = network.device_logits(tf.gather(plc_vertex, vertex, batch_dims=1), placed, episodes.features[:, t])
        plc = masked_log_probability(logits, episodes.mask[:, t], episodes.device[:, t])
        return [tf.where(valid[:, t], value, 0.0) for value in (*sel, *plc)]

    def place(t: tf.Tensor, state: EpisodeState) -> EpisodeState:
        vertex = episodes.order[:, t]
        return place_vertex(graphs, state, vertex, episodes.device[:, t], device_options(graphs, state, vertex).start_s)

    sel_chosen, sel_entropy, plc_chosen, plc_entropy = step_by_step(log_p, place, initial_state(graphs, episodes.graph), valid)
    return LogProbability(sel_chosen, sel_entropy), LogProbability(plc_chosen, plc_entropy), valid
