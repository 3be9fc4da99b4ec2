"""One episode as pure functions of tensors: the state, the device features of a vertex, the effect of placing it.

The environment and the fused driver both run these, so they cannot disagree. Batches hold B episodes of G graphs; per-vertex tables of
the graphs are flat ([G * N, ...]) and an episode of graph g finds vertex v at g * N + v. Times are in units of each graph's `scale_s`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.features import CLUSTER_SCALES, GraphArrays

PAPER_FEATURES = ("busy", "input_exec", "input_first_start", "input_last_end", "earliest_start")
RELATIONAL_FEATURES = ("fair_share", "start_vs_cost", "input_transfer", "siblings", "sibling_exec", "cluster", "half_cluster",
                       "quarter_cluster")
DEVICE_FEATURES = {"paper": PAPER_FEATURES, "relational": PAPER_FEATURES + RELATIONAL_FEATURES}
NEVER = 1 << 20
_TINY = 1e-12


class GraphBatch(NamedTuple):
    """G graphs of one padded shape as tensors; fields as in `GraphArrays`, per-vertex ones flat."""

    num_work: tf.Tensor
    vertex: tf.Tensor
    edge: tf.Tensor
    source: tf.Tensor
    target: tf.Tensor
    b_next: tf.Tensor
    t_next: tf.Tensor
    missing: tf.Tensor
    predecessor: tf.Tensor
    successor: tf.Tensor
    fixed_s: tf.Tensor
    on_link: tf.Tensor
    link_bytes: tf.Tensor
    latency_s: tf.Tensor
    s_per_byte: tf.Tensor
    exec_s: tf.Tensor
    allowed: tf.Tensor
    group: tf.Tensor
    memory: tf.Tensor
    memory_left: tf.Tensor
    cluster: tf.Tensor
    cluster_s: tf.Tensor
    sibling: tf.Tensor

    @property
    def num_vertices(self) -> int:
        """N, padding included."""
        return self.missing.shape[1]

    @property
    def num_devices(self) -> int:
        """D."""
        return self.exec_s.shape[1]

    @property
    def is_real(self) -> tf.Tensor:
        """bool [G, N]: False for padding."""
        return self.missing < NEVER


class EpisodeState(NamedTuple):
    """Where B episodes stand.

    Attributes:
      graph, step: int32 [B].
      missing: int32 [B, N], predecessors not yet assigned; -1 once the vertex itself is.
      device: int32 [B, N], -1 while unassigned; start_s, end_s: float32 [B, N], on the episode's own timeline.
      device_end_s, busy_s, memory_left: float32 [B, D].
      group_device: int32 [B, N], device by colocation group, -1 while open.
      cluster_s: float32 [B, C, D], exec placed by cluster; sibling: float32 [B, N, D, 2], what feeds a vertex from where.
    """

    graph: tf.Tensor
    step: tf.Tensor
    missing: tf.Tensor
    device: tf.Tensor
    start_s: tf.Tensor
    end_s: tf.Tensor
    device_end_s: tf.Tensor
    busy_s: tf.Tensor
    memory_left: tf.Tensor
    group_device: tf.Tensor
    cluster_s: tf.Tensor
    sibling: tf.Tensor


class Options(NamedTuple):
    """What PLC may choose from for one vertex: float32 [B, D, F] features, bool [B, D] mask, float32 [B, D] earliest starts."""

    features: tf.Tensor
    mask: tf.Tensor
    start_s: tf.Tensor


def graph_batch(arrays: Sequence[GraphArrays]) -> GraphBatch:
    """Stacks graphs of one padded shape (see `features.padded_sizes`)."""
    size = arrays[0].num_vertices

    def flat(name: str) -> tf.Tensor:
        return tf.constant(np.concatenate([getattr(a, name) for a in arrays]))

    def offset(name: str) -> tf.Tensor:
        return tf.constant(np.concatenate([getattr(a, name) + g * size for g, a in enumerate(arrays)]).astype(np.int32))

    def stacked(name: str) -> tf.Tensor:
        return tf.constant(np.stack([getattr(a, name) for a in arrays]))

    missing = np.stack([np.where(np.arange(size) < a.num_work, (a.predecessor < size - 1).sum(axis=1), NEVER) for a in arrays])
    return GraphBatch(
        num_work=tf.constant([a.num_work for a in arrays], tf.int32), vertex=flat("vertex"), edge=flat("edge"),
        source=offset("source"), target=offset("target"), b_next=offset("b_next"), t_next=offset("t_next"),
        missing=tf.constant(missing, tf.int32), predecessor=flat("predecessor"), successor=flat("successor"), fixed_s=flat("fixed_s"),
        on_link=flat("on_link"), link_bytes=flat("link_bytes"), latency_s=stacked("latency_s"), s_per_byte=stacked("s_per_byte"),
        exec_s=flat("exec_s"), allowed=flat("allowed"), group=flat("group"), memory=flat("memory"), memory_left=stacked("memory_left"),
        cluster=flat("cluster"), cluster_s=stacked("cluster_s"), sibling=flat("sibling"))


def initial_state(batch: GraphBatch, graph: tf.Tensor) -> EpisodeState:
    """Episodes of the graphs `graph` (int32 [B]) before the first choice."""
    count = graph.shape[0] if graph.shape[0] is not None else tf.shape(graph)[0]
    size, devices = batch.num_vertices, batch.num_devices
    return EpisodeState(
        graph=graph, step=tf.zeros([count], tf.int32), missing=tf.gather(batch.missing, graph),
        device=tf.fill([count, size], -1), start_s=tf.zeros([count, size]), end_s=tf.zeros([count, size]),
        device_end_s=tf.zeros([count, devices]), busy_s=tf.zeros([count, devices]),
        memory_left=tf.gather(batch.memory_left, graph), group_device=tf.fill([count, size], -1),
        cluster_s=tf.zeros([count, size * len(CLUSTER_SCALES), devices]), sibling=tf.zeros([count, size, devices, 2]))


def candidates(state: EpisodeState) -> tf.Tensor:
    """bool [B, N]: unassigned vertices whose predecessors are all assigned."""
    return tf.equal(state.missing, 0)


def finished(batch: GraphBatch, state: EpisodeState) -> tf.Tensor:
    """bool [B]: every vertex is assigned."""
    return state.step >= tf.gather(batch.num_work, state.graph)


def device_options(batch: GraphBatch, state: EpisodeState, vertex: tf.Tensor) -> Options:
    """Features of every device for `vertex` (int32 [B]), DEVICE_FEATURES["relational"] in order; the paper's are the first five.

    Times are relative to the device that is best in this respect, shares are of what is placed so far, so that units cancel.
    """
    row = state.graph * batch.num_vertices + vertex
    devices = batch.num_devices
    inputs = tf.gather(batch.predecessor, row)
    here = tf.gather(state.device, inputs, batch_dims=1)
    began, ended = tf.gather(state.start_s, inputs, batch_dims=1), tf.gather(state.end_s, inputs, batch_dims=1)
    placed = here >= 0
    source = state.graph[:, None] * devices + tf.maximum(here, 0)
    latency = tf.gather(tf.reshape(batch.latency_s, [-1, devices]), source)
    per_byte = tf.gather(tf.reshape(batch.s_per_byte, [-1, devices]), source)
    local = tf.one_hot(here, devices)
    fixed = tf.gather(batch.fixed_s, row)
    transfer = ((fixed[..., None] + tf.gather(batch.on_link, row)[..., None] * latency
                 + tf.gather(batch.link_bytes, row)[..., None] * per_byte) * (1.0 - local))
    arrival = tf.where(placed[..., None], ended[..., None] + transfer, 0.0)
    start = tf.maximum(state.device_end_s, tf.reduce_max(arrival, axis=1))
    least = tf.reduce_min(start, axis=1, keepdims=True)
    on_device = local * tf.cast(placed, tf.float32)[..., None]
    any_there = tf.reduce_max(on_device, axis=1)
    first = tf.reduce_min(tf.where(on_device > 0, began[..., None], 1e9), axis=1)
    last = tf.reduce_max(on_device * ended[..., None], axis=1)
    input_exec = tf.reduce_sum(on_device * (ended - began)[..., None], axis=1)
    cost_of_input = tf.reduce_max(transfer, axis=2)
    input_transfer = tf.reduce_sum(on_device * cost_of_input[..., None], axis=1)
    exec_s = tf.gather(batch.exec_s, row)
    own = tf.reduce_mean(exec_s, axis=1, keepdims=True) + tf.reduce_max(cost_of_input, axis=1, keepdims=True)
    consumers = tf.gather(batch.successor, row)
    fed = tf.gather(state.sibling, consumers, batch_dims=1) * tf.cast(consumers < batch.num_vertices - 1, tf.float32)[..., None, None]
    kin = tf.reduce_sum(fed, axis=1) / (tf.gather(batch.sibling, row)[:, None, :] + _TINY)
    cluster = tf.gather(batch.cluster, row)
    cluster_total = tf.gather(tf.gather(batch.cluster_s, state.graph), cluster, batch_dims=1)
    share = tf.gather(state.cluster_s, cluster, batch_dims=1) / (cluster_total[..., None] + _TINY)
    features = tf.concat([
        tf.stack([state.busy_s - tf.reduce_min(state.busy_s, axis=1, keepdims=True),
                  input_exec / (tf.reduce_sum(input_exec, axis=1, keepdims=True) + _TINY),
                  any_there * (first - least), any_there * (last - least), start - least,
                  state.busy_s, tf.tanh((start - least) / (own + _TINY)),
                  input_transfer / (tf.reduce_sum(input_transfer, axis=1, keepdims=True) + _TINY)], axis=2),
        kin, tf.transpose(share, [0, 2, 1])], axis=2)
    return Options(features, _device_mask(batch, state, row), start)


def _device_mask(batch: GraphBatch, state: EpisodeState, row: tf.Tensor) -> tf.Tensor:
    """Devices that pins and groups allow; among them those with memory for the output, while there are any."""
    group = tf.gather(batch.group, row)
    fixed = tf.gather(state.group_device, group, batch_dims=1)
    free = tf.logical_or(group == 0, fixed < 0)[:, None]
    allowed = tf.gather(batch.allowed, row) & (free | (tf.range(batch.num_devices)[None] == fixed[:, None]))
    fitting = allowed & (state.memory_left >= tf.gather(batch.memory, row)[:, None])
    return tf.where(tf.reduce_any(fitting, axis=1, keepdims=True), fitting, allowed)


def place_vertex(batch: GraphBatch, state: EpisodeState, vertex: tf.Tensor, device: tf.Tensor, start_s: tf.Tensor) -> EpisodeState:
    """The state after `vertex` goes to `device` (int32 [B]) with earliest starts `start_s` [B, D]; finished episodes stay as they are."""
    row = state.graph * batch.num_vertices + vertex
    active = tf.logical_not(finished(batch, state))
    live = tf.cast(active, tf.float32)
    vertex = tf.where(active, vertex, batch.num_vertices - 1)
    episode = tf.range(tf.shape(vertex)[0])
    at_vertex, at_device = tf.stack([episode, vertex], axis=1), tf.stack([episode, device], axis=1)
    start = tf.gather(start_s, device, batch_dims=1)
    exec_s = tf.gather(tf.gather(batch.exec_s, row), device, batch_dims=1) * live
    end = start + exec_s
    consumers = tf.gather(batch.successor, row)
    each = tf.repeat(episode[:, None], consumers.shape[1], axis=1)
    at_consumer = tf.stack([each, consumers], axis=2)
    at_feeding = tf.stack([each, consumers, tf.repeat(device[:, None], consumers.shape[1], axis=1)], axis=2)
    feeding = tf.repeat((tf.stack([tf.ones_like(exec_s), exec_s], axis=1) * live[:, None])[:, None], consumers.shape[1], axis=1)
    clusters = tf.gather(batch.cluster, row)
    levels = clusters.shape[1]
    at_cluster = tf.stack([tf.repeat(episode[:, None], levels, axis=1), clusters, tf.repeat(device[:, None], levels, axis=1)], axis=2)
    # The null vertex stands for "no consumer"; counting it down would make it a candidate after many steps.
    fewer = tf.cast(active[:, None] & (consumers < batch.num_vertices - 1), tf.int32)
    missing = tf.tensor_scatter_nd_sub(state.missing, at_consumer, fewer)
    return state._replace(
        step=state.step + tf.cast(active, tf.int32),
        missing=tf.tensor_scatter_nd_update(missing, at_vertex, tf.where(active, -1, NEVER)),
        device=tf.tensor_scatter_nd_update(state.device, at_vertex, tf.where(active, device, -1)),
        start_s=tf.tensor_scatter_nd_update(state.start_s, at_vertex, start * live),
        end_s=tf.tensor_scatter_nd_update(state.end_s, at_vertex, end * live),
        device_end_s=tf.tensor_scatter_nd_max(state.device_end_s, at_device, end * live),
        busy_s=tf.tensor_scatter_nd_add(state.busy_s, at_device, exec_s),
        memory_left=tf.tensor_scatter_nd_sub(state.memory_left, at_device, tf.gather(batch.memory, row) * live),
        group_device=tf.tensor_scatter_nd_update(state.group_device, tf.stack([episode, tf.gather(batch.group, row)], axis=1),
                                                 tf.where(active, device, -1)),
        cluster_s=tf.tensor_scatter_nd_add(state.cluster_s, at_cluster, tf.repeat(exec_s[:, None], levels, axis=1)),
        sibling=tf.tensor_scatter_nd_add(state.sibling, at_feeding, feeding))
