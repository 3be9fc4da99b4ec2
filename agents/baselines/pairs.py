"""Features of every vertex on every device, updated step by step, for the joint policy.

`episode.device_options` looks at one vertex; a policy over pairs needs all candidates in every step. What a placement changes for each
other vertex is added up here in dense arrays over all vertices, from tables over pairs of vertices, which limits their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.episodes.episode import EpisodeState, PaddedGraphs, candidates, padded_graphs, place_vertex
from agents.episodes.features import GraphArrays
from doppler_tf.errors import ConfigError

MOST_VERTICES = 2048
_TINY, _FAR = 1e-12, 1e9


class PairedGraphs(NamedTuple):
    """G graphs and what joins their vertices.

    Attributes:
      relation: float32 [G * N, N, 5], of a vertex for every other: whether it feeds that one, the transfer's fixed seconds, whether it
        has the link's latency, its GiB (as `GraphArrays` has them), and how many consumers the two share.
    """

    padded: PaddedGraphs
    relation: tf.Tensor


class Seen(NamedTuple):
    """The relation of all vertices of B episodes to the placed ones (see `episode.device_options`).

    Attributes:
      arrival_s, first_s, last_s, exec_s, transfer_s: float32 [B, N, D], of a vertex's placed inputs; all there if it ran on the device;
        first start (_FAR: none), last end, exec and transfers of those on the device.
      largest_s: float32 [B, N], its costliest transfer; fed: float32 [B, N, D, 2], number and exec of those that feed its consumers;
        linked: bool [B, N, D], whether a link leads there from all of them.
    """

    arrival_s: tf.Tensor
    first_s: tf.Tensor
    last_s: tf.Tensor
    exec_s: tf.Tensor
    transfer_s: tf.Tensor
    largest_s: tf.Tensor
    fed: tf.Tensor
    linked: tf.Tensor


def paired_graphs(arrays: Sequence[GraphArrays]) -> PairedGraphs:
    """Raises ConfigError for graphs whose pairs of vertices would not fit in memory."""
    relation = []
    for a in arrays:
        if a.num_work > MOST_VERTICES:
            raise ConfigError(f"joint: graph {a.graph.name}: expected at most {MOST_VERTICES:,} vertices, as it keeps all pairs of them, "
                              f"got {a.num_work:,}; choose another method")
        # The rows of the table of predecessors belong to vertices in turn; the rest are empty.
        owner = np.full(len(a.predecessor), a.num_vertices - 1)
        owner[:a.in_row[:, 1].sum()] = np.repeat(np.arange(a.num_vertices), a.in_row[:, 1])
        pairs = np.zeros((a.num_vertices, a.num_vertices, 5), np.float32)
        for field, values in enumerate((1.0, a.fixed_s, a.on_link, a.link_bytes)):
            pairs[a.predecessor, owner[:, None], field] = values
        pairs[-1] = 0.0
        feeds = pairs[..., 0]
        pairs[..., 4] = (feeds @ feeds.T) * ~np.eye(a.num_vertices, dtype=bool)
        relation.append(pairs)
    return PairedGraphs(padded_graphs(arrays), tf.constant(np.concatenate(relation)))


def nothing_seen(graphs: PairedGraphs, graph: tf.Tensor) -> Seen:
    """At the start of episodes of the graphs `graph` (int32 [B])."""
    zero = tf.zeros([tf.shape(graph)[0], graphs.padded.num_vertices, graphs.padded.num_devices])
    return Seen(zero, zero + _FAR, zero, zero, zero, zero[..., 0], tf.stack([zero, zero], axis=3), zero == 0.0)


def place_pair(graphs: PairedGraphs, state: EpisodeState, seen: Seen, vertex: tf.Tensor, device: tf.Tensor) -> tuple[EpisodeState, Seen]:
    """State and view after `vertex` goes to `device` (int32 [B]); the null vertex, "chosen" after the end, changes nothing."""
    padded, devices = graphs.padded, graphs.padded.num_devices
    row = state.graph * padded.num_vertices + vertex
    start_s = tf.maximum(state.device_end_s, tf.gather(seen.arrival_s, vertex, batch_dims=1))
    begin = tf.gather(start_s, device, batch_dims=1)[:, None, None]
    exec_s = tf.gather(tf.gather(padded.exec_s, row), device, batch_dims=1)[:, None, None]
    source = state.graph * devices + device
    latency, per_byte = (tf.gather(tf.reshape(table, [-1, devices]), source)[:, None] for table in (padded.latency_s, padded.s_per_byte))
    linked, latency = latency >= 0.0, tf.maximum(latency, 0.0)
    feeds, fixed, on_link, link_bytes, shared = (tf.gather(graphs.relation[..., field], row)[..., None] for field in range(5))
    local = tf.one_hot(device, devices)[:, None]
    here = feeds * local
    transfer = (1.0 - local) * (fixed + on_link * latency + link_bytes * per_byte)
    cost = tf.reduce_max(transfer, axis=2, keepdims=True)
    count = shared * local
    after = Seen(
        tf.maximum(seen.arrival_s, feeds * (begin + exec_s + transfer)), tf.minimum(seen.first_s, tf.where(here > 0, begin, _FAR)),
        tf.maximum(seen.last_s, here * (begin + exec_s)), seen.exec_s + here * exec_s, seen.transfer_s + here * cost,
        tf.maximum(seen.largest_s, cost[..., 0]), seen.fed + tf.stack([count, count * exec_s], axis=3),
        seen.linked & (linked | (feeds == 0.0)))
    return place_vertex(padded, state, vertex, device, start_s), after


def pair_features(graphs: PairedGraphs, state: EpisodeState, seen: Seen) -> list[tf.Tensor]:
    """DEVICE_FEATURES["relational"] in order, each float32 [B, N, D], and last how much later than the first candidate each could start."""
    padded, size = graphs.padded, graphs.padded.num_vertices

    def of_graph(table: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.reshape(table, [-1, size, *table.shape[1:]]), state.graph)

    start = tf.maximum(state.device_end_s[:, None], seen.arrival_s)
    least = tf.reduce_min(start, axis=2, keepdims=True)
    any_there = tf.cast(seen.first_s < _FAR, tf.float32)
    own = tf.reduce_mean(of_graph(padded.exec_s), axis=2, keepdims=True) + seen.largest_s[..., None]
    busy = tf.zeros_like(start) + state.busy_s[:, None]
    sibling_share = seen.fed / (of_graph(padded.sibling)[:, :, None] + _TINY)
    cluster = of_graph(padded.cluster)
    total = tf.gather(tf.gather(padded.cluster_s, state.graph), cluster, batch_dims=1)
    cluster_share = tf.gather(state.cluster_s, cluster, batch_dims=1) / (total[..., None] + _TINY)
    soonest = tf.reduce_min(tf.where(candidates(state)[..., None], least, _FAR), axis=1, keepdims=True)
    wait = tf.where(soonest < _FAR, least - soonest, 0.0)
    return [busy - tf.reduce_min(busy, axis=2, keepdims=True), _share(seen.exec_s), any_there * (seen.first_s - least),
            any_there * (seen.last_s - least), start - least, busy, tf.tanh((start - least) / (own + _TINY)), _share(seen.transfer_s),
            *tf.unstack(sibling_share, axis=3), *tf.unstack(cluster_share, axis=2), tf.tanh(wait / (own + _TINY)) + tf.zeros_like(start)]


def pair_mask(graphs: PairedGraphs, state: EpisodeState, seen: Seen) -> tf.Tensor:
    """bool [B, N, D]: candidates on devices that can run them, and that pins and groups allow; among these those with links from all
    inputs, then those with memory, while there are any."""
    padded, size, devices = graphs.padded, graphs.padded.num_vertices, graphs.padded.num_devices
    group = tf.gather(tf.reshape(padded.group, [-1, size]), state.graph)
    fixed = tf.where(group > 0, tf.gather(state.group_device, group, batch_dims=1), -1)[..., None]
    allowed = tf.gather(tf.reshape(padded.allowed, [-1, size, devices]), state.graph) & ((fixed < 0) | (tf.range(devices) == fixed))
    memory = tf.gather(tf.reshape(padded.memory, [-1, size]), state.graph)[..., None]
    for wanted in (seen.linked, state.memory_left[:, None] >= memory):
        allowed = tf.where(tf.reduce_any(allowed & wanted, axis=2, keepdims=True), allowed & wanted, allowed)
    return allowed & candidates(state)[..., None]


def _share(amount: tf.Tensor) -> tf.Tensor:
    return amount / (tf.reduce_sum(amount, axis=2, keepdims=True) + _TINY)
