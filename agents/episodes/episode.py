"""One episode as pure functions of tensors: the state, the device features of a vertex, the effect of placing it.

The environment and the fused driver both run these functions, so that they cannot disagree. Batches hold B episodes of G graphs.
Per-vertex tables of the graphs are flat ([G * N, ...]): vertex v of graph g is at g * N + v. Times are in units of each graph's `scale_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.episodes.features import CLUSTER_SCALES, GraphArrays

PAPER_FEATURES = ("busy", "input_exec", "input_first_start", "input_last_end", "earliest_start")
RELATIONAL_FEATURES = ("fair_share", "start_vs_cost", "input_transfer", "siblings", "sibling_exec", "cluster", "half_cluster",
                       "quarter_cluster")
DEVICE_FEATURES = {"paper": PAPER_FEATURES, "relational": PAPER_FEATURES + RELATIONAL_FEATURES}
NEVER = 1 << 20
_TINY, _FAR = 1e-12, 1e9


def extent(tensor: tf.Tensor, axis: int) -> int | tf.Tensor:
    """The size of a tensor along an axis: a number where it is known when a function is traced, else a tensor."""
    return tf.shape(tensor)[axis] if tensor.shape[axis] is None else tensor.shape[axis]


class PaddedGraphs(NamedTuple):
    """G graphs of one padded shape as tensors; fields as in `GraphArrays`, per-vertex ones flat; `no_group` is -1 [G, groups]."""

    num_work: tf.Tensor
    vertex: tf.Tensor
    device_identity: tf.Tensor
    edge: tf.Tensor
    source: tf.Tensor
    target: tf.Tensor
    b_next: tf.Tensor
    t_next: tf.Tensor
    missing: tf.Tensor
    in_row: tf.Tensor
    out_row: tf.Tensor
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
    no_group: tf.Tensor
    memory: tf.Tensor
    memory_left: tf.Tensor
    cluster: tf.Tensor
    cluster_s: tf.Tensor
    sibling: tf.Tensor

    @property
    def num_vertices(self) -> int | tf.Tensor:
        """N, padding included."""
        return extent(self.missing, 1)

    @property
    def num_devices(self) -> int | tf.Tensor:
        """D."""
        return extent(self.exec_s, 1)

    @property
    def padded(self) -> PaddedGraphs:
        """Itself: what every method's form of the graphs has."""
        return self

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
      group_device: int32 [B, groups], device by colocation group, -1 while open.
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


def padded_graphs(arrays: Sequence[GraphArrays]) -> PaddedGraphs:
    """Stacks graphs of one padded shape (see `features.padded_sizes`)."""
    size = arrays[0].num_vertices

    def flat(name: str) -> tf.Tensor:
        return tf.constant(np.concatenate([getattr(a, name) for a in arrays]))

    def offset(name: str) -> tf.Tensor:
        return tf.constant(np.concatenate([getattr(a, name) + g * size for g, a in enumerate(arrays)]).astype(np.int32))

    def stacked(name: str) -> tf.Tensor:
        return tf.constant(np.stack([getattr(a, name) for a in arrays]))

    def rows(name: str, table: str) -> tf.Tensor:
        first = len(getattr(arrays[0], table)) * np.array([1, 0], np.int32)
        return tf.constant(np.concatenate([getattr(a, name) + g * first for g, a in enumerate(arrays)]))

    missing = np.stack([np.where(np.arange(size) < a.num_work, a.in_degree, NEVER) for a in arrays])
    return PaddedGraphs(
        num_work=tf.constant([a.num_work for a in arrays], tf.int32), vertex=flat("vertex"),
        device_identity=stacked("device_identity"), edge=flat("edge"),
        source=offset("source"), target=offset("target"), b_next=offset("b_next"), t_next=offset("t_next"),
        missing=tf.constant(missing, tf.int32), in_row=rows("in_row", "predecessor"), out_row=rows("out_row", "successor"),
        predecessor=flat("predecessor"), successor=flat("successor"), fixed_s=flat("fixed_s"),
        on_link=flat("on_link"), link_bytes=flat("link_bytes"), latency_s=stacked("latency_s"), s_per_byte=stacked("s_per_byte"),
        exec_s=flat("exec_s"), allowed=flat("allowed"), group=flat("group"),
        no_group=tf.fill([len(arrays), arrays[0].num_groups], -1), memory=flat("memory"), memory_left=stacked("memory_left"),
        cluster=flat("cluster"), cluster_s=stacked("cluster_s"), sibling=flat("sibling"))


def initial_state(graphs: PaddedGraphs, graph: tf.Tensor) -> EpisodeState:
    """Episodes of the graphs `graph` (int32 [B]) before the first choice."""
    count = extent(graph, 0)
    size, devices = graphs.num_vertices, graphs.num_devices
    return EpisodeState(
        graph=graph, step=tf.zeros([count], tf.int32), missing=tf.gather(graphs.missing, graph),
        device=tf.fill([count, size], -1), start_s=tf.zeros([count, size]), end_s=tf.zeros([count, size]),
        device_end_s=tf.zeros([count, devices]), busy_s=tf.zeros([count, devices]),
        memory_left=tf.gather(graphs.memory_left, graph), group_device=tf.gather(graphs.no_group, graph),
        cluster_s=tf.zeros([count, size * len(CLUSTER_SCALES), devices]), sibling=tf.zeros([count, size, devices, 2]))


def candidates(state: EpisodeState) -> tf.Tensor:
    """bool [B, N]: unassigned vertices whose predecessors are all assigned."""
    return tf.equal(state.missing, 0)


def finished(graphs: PaddedGraphs, state: EpisodeState) -> tf.Tensor:
    """bool [B]: every vertex is assigned."""
    return state.step >= tf.gather(graphs.num_work, state.graph)


def device_options(graphs: PaddedGraphs, state: EpisodeState, vertex: tf.Tensor) -> Options:
    """Features of every device for `vertex` (int32 [B]), DEVICE_FEATURES["relational"] in order; the paper's are the first five.

    Times are relative to the device that is best in this respect, shares are of what is placed so far, so that units cancel.
    """
    row = state.graph * graphs.num_vertices + vertex
    inputs = _inputs(graphs, state, row)
    start = tf.maximum(state.device_end_s, inputs.arrival_s)
    least = tf.reduce_min(start, axis=1, keepdims=True)
    any_there = tf.cast(inputs.first_s < _FAR, tf.float32)
    own = tf.reduce_mean(tf.gather(graphs.exec_s, row), axis=1, keepdims=True) + inputs.largest_s[:, None]
    sibling_share = _fed(graphs, state, row) / (tf.gather(graphs.sibling, row)[:, None, :] + _TINY)
    cluster = tf.gather(graphs.cluster, row)
    cluster_total = tf.gather(tf.gather(graphs.cluster_s, state.graph), cluster, batch_dims=1)
    cluster_share = tf.gather(state.cluster_s, cluster, batch_dims=1) / (cluster_total[..., None] + _TINY)
    features = tf.concat([
        tf.stack([state.busy_s - tf.reduce_min(state.busy_s, axis=1, keepdims=True),
                  _share(inputs.exec_s), any_there * (inputs.first_s - least), any_there * (inputs.last_s - least), start - least,
                  state.busy_s, tf.tanh((start - least) / (own + _TINY)), _share(inputs.transfer_s)], axis=2),
        sibling_share, tf.transpose(cluster_share, [0, 2, 1])], axis=2)
    return Options(features, _device_mask(graphs, state, row, inputs.linked), start)


class _Inputs(NamedTuple):
    """What arrives for one vertex, by device where it would run: float32 [B, D]; `largest_s` [B] is the costliest transfer.

    `arrival_s` is when all inputs are there; the others are of the inputs that were placed there, `first_s` _FAR where none was. `linked`
    (bool): whether a link leads there from every input.
    """

    arrival_s: tf.Tensor
    first_s: tf.Tensor
    last_s: tf.Tensor
    exec_s: tf.Tensor
    transfer_s: tf.Tensor
    largest_s: tf.Tensor
    linked: tf.Tensor


def _inputs(graphs: PaddedGraphs, state: EpisodeState, row: tf.Tensor) -> _Inputs:
    devices = graphs.num_devices
    zero = tf.zeros_like(state.busy_s)

    def fold(at: tf.Tensor, so_far: _Inputs) -> _Inputs:
        inputs = tf.gather(graphs.predecessor, at)
        here = tf.gather(state.device, inputs, batch_dims=1)
        began, ended = tf.gather(state.start_s, inputs, batch_dims=1), tf.gather(state.end_s, inputs, batch_dims=1)
        source = state.graph[:, None] * devices + tf.maximum(here, 0)
        latency = tf.gather(tf.reshape(graphs.latency_s, [-1, devices]), source)
        linked = (latency >= 0.0) | (here < 0)[..., None]
        latency = tf.maximum(latency, 0.0)
        per_byte = tf.gather(tf.reshape(graphs.s_per_byte, [-1, devices]), source)
        local = tf.one_hot(here, devices)
        transfer = (1.0 - local) * (tf.gather(graphs.fixed_s, at)[..., None] + tf.gather(graphs.on_link, at)[..., None] * latency
                                    + tf.gather(graphs.link_bytes, at)[..., None] * per_byte)
        arrival = tf.where((here >= 0)[..., None], ended[..., None] + transfer, 0.0)
        cost = tf.reduce_max(transfer, axis=2)
        return _Inputs(
            tf.maximum(so_far.arrival_s, tf.reduce_max(arrival, axis=1)),
            tf.minimum(so_far.first_s, tf.reduce_min(tf.where(local > 0, began[..., None], _FAR), axis=1)),
            tf.maximum(so_far.last_s, tf.reduce_max(local * ended[..., None], axis=1)),
            so_far.exec_s + tf.reduce_sum(local * (ended - began)[..., None], axis=1),
            so_far.transfer_s + tf.reduce_sum(local * cost[..., None], axis=1),
            tf.maximum(so_far.largest_s, tf.reduce_max(cost, axis=1)),
            so_far.linked & tf.reduce_all(linked, axis=1))

    nothing = _Inputs(zero, zero + _FAR, zero, zero, zero, zero[:, 0], zero == 0.0)
    return over_rows(state.graph, tf.gather(graphs.in_row, row), graphs.predecessor, graphs, fold, nothing)


def _fed(graphs: PaddedGraphs, state: EpisodeState, row: tf.Tensor) -> tf.Tensor:
    """float32 [B, D, 2]: what already feeds the vertex's consumers, number and exec by device."""
    def fold(at: tf.Tensor, so_far: tuple[tf.Tensor]) -> tuple[tf.Tensor]:
        consumers = tf.gather(graphs.successor, at)
        real = tf.cast(consumers < graphs.num_vertices - 1, tf.float32)[..., None, None]
        return (so_far[0] + tf.reduce_sum(tf.gather(state.sibling, consumers, batch_dims=1) * real, axis=1),)

    nothing = (tf.zeros([tf.shape(row)[0], graphs.num_devices, 2]),)
    return over_rows(state.graph, tf.gather(graphs.out_row, row), graphs.successor, graphs, fold, nothing)[0]


def over_rows(graph: tf.Tensor, rows: tf.Tensor, table: tf.Tensor, graphs: PaddedGraphs, fold: Callable, start: tuple) -> tuple:
    """`start` after `fold(row of each episode, ...)` over the rows of neighbours of one vertex an episode.

    A single call where no vertex of the graphs has more than one row (the table then has as many rows as there are vertices), so
    that only graphs with vertices of large degree pay for the loop; a vertex costs as many turns as it has rows.

    Args:
      graph: int32 [B]; rows: int32 [B, 2], first row and count; table: [G * R, K].
    """
    by_graph = extent(table, 0) // graphs.missing.shape[0]
    if isinstance(by_graph, int) and by_graph == graphs.num_vertices:
        return fold(rows[:, 0], start)
    empty = (graph + 1) * by_graph - 1

    def turn(i: tf.Tensor, so_far: tuple) -> tuple:
        return i + 1, fold(tf.where(i < rows[:, 1], rows[:, 0] + i, empty), so_far)

    return tf.while_loop(lambda i, _: i < tf.reduce_max(rows[:, 1]), turn, (tf.constant(0), start))[1]


def _share(amount: tf.Tensor) -> tf.Tensor:
    return amount / (tf.reduce_sum(amount, axis=1, keepdims=True) + _TINY)


def _device_mask(graphs: PaddedGraphs, state: EpisodeState, row: tf.Tensor, linked: tf.Tensor) -> tf.Tensor:
    """Devices that can run the vertex, and that pins and groups allow; among them those with links from all inputs, then those with memory
    for the output, while there are any."""
    group = tf.gather(graphs.group, row)
    fixed = tf.gather(state.group_device, group, batch_dims=1)
    free = tf.logical_or(group == 0, fixed < 0)[:, None]
    allowed = tf.gather(graphs.allowed, row) & (free | (tf.range(graphs.num_devices)[None] == fixed[:, None]))
    for wanted in (linked, state.memory_left >= tf.gather(graphs.memory, row)[:, None]):
        allowed = tf.where(tf.reduce_any(allowed & wanted, axis=1, keepdims=True), allowed & wanted, allowed)
    return allowed


def place_vertex(graphs: PaddedGraphs, state: EpisodeState, vertex: tf.Tensor, device: tf.Tensor, start_s: tf.Tensor) -> EpisodeState:
    """The state after `vertex` goes to `device` (int32 [B]) with earliest starts `start_s` [B, D]; finished episodes stay as they are."""
    row = state.graph * graphs.num_vertices + vertex
    active = tf.logical_not(finished(graphs, state))
    live = tf.cast(active, tf.float32)
    vertex = tf.where(active, vertex, graphs.num_vertices - 1)
    episode = tf.range(tf.shape(vertex)[0])
    at_vertex, at_device = tf.stack([episode, vertex], axis=1), tf.stack([episode, device], axis=1)
    start = tf.gather(start_s, device, batch_dims=1)
    exec_s = tf.gather(tf.gather(graphs.exec_s, row), device, batch_dims=1) * live
    end = start + exec_s
    clusters = tf.gather(graphs.cluster, row)
    levels = clusters.shape[1]
    at_cluster = tf.stack([tf.repeat(episode[:, None], levels, axis=1), clusters, tf.repeat(device[:, None], levels, axis=1)], axis=2)
    missing, sibling = _feed(graphs, state, row, device, exec_s, active)
    return state._replace(
        step=state.step + tf.cast(active, tf.int32),
        missing=tf.tensor_scatter_nd_update(missing, at_vertex, tf.where(active, -1, NEVER)),
        device=tf.tensor_scatter_nd_update(state.device, at_vertex, tf.where(active, device, -1)),
        start_s=tf.tensor_scatter_nd_update(state.start_s, at_vertex, start * live),
        end_s=tf.tensor_scatter_nd_update(state.end_s, at_vertex, end * live),
        device_end_s=tf.tensor_scatter_nd_max(state.device_end_s, at_device, end * live),
        busy_s=tf.tensor_scatter_nd_add(state.busy_s, at_device, exec_s),
        memory_left=tf.tensor_scatter_nd_sub(state.memory_left, at_device, tf.gather(graphs.memory, row) * live),
        group_device=tf.tensor_scatter_nd_update(state.group_device, tf.stack([episode, tf.gather(graphs.group, row)], axis=1),
                                                 tf.where(active, device, -1)),
        cluster_s=tf.tensor_scatter_nd_add(state.cluster_s, at_cluster, tf.repeat(exec_s[:, None], levels, axis=1)),
        sibling=sibling)


def _feed(graphs: PaddedGraphs, state: EpisodeState, row: tf.Tensor, device: tf.Tensor, exec_s: tf.Tensor, active: tf.Tensor
          ) -> tuple[tf.Tensor, tf.Tensor]:
    """`missing` and `sibling` once the vertex at `row` feeds its consumers from `device`."""
    added = tf.stack([tf.ones_like(exec_s), exec_s], axis=1) * tf.cast(active, tf.float32)[:, None]
    width = extent(graphs.successor, 1)
    episode = tf.repeat(tf.range(tf.shape(row)[0])[:, None], width, axis=1)
    there, added = tf.repeat(device[:, None], width, axis=1), tf.repeat(added[:, None], width, axis=1)

    def fold(at: tf.Tensor, so_far: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        consumers = tf.gather(graphs.successor, at)
        # The null vertex stands for "no consumer"; counting it down would make it a candidate after many steps.
        fewer = tf.cast(active[:, None] & (consumers < graphs.num_vertices - 1), tf.int32)
        return (tf.tensor_scatter_nd_sub(so_far[0], tf.stack([episode, consumers], axis=2), fewer),
                tf.tensor_scatter_nd_add(so_far[1], tf.stack([episode, consumers, there], axis=2), added))

    return over_rows(state.graph, tf.gather(graphs.out_row, row), graphs.successor, graphs, fold, (state.missing, state.sibling))
