"""`features.graph_arrays` in TensorFlow, from plain tensors of any size: the features of a graph in a served model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from agents.episodes.episode import NEVER, PaddedGraphs
from agents.episodes.features import CLUSTER_SCALES, LARGEST, NO_LINK, ROW_WIDTHS, identity_features
from doppler_tf.errors import CostError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph

# Of so many vertices and devices a served model knows the identities that `features.graph_arrays` gives them.
MOST_VERTICES, MOST_DEVICES = 1 << 17, 1 << 10
# To the policies, longer times are as long as this, and more bytes as many. Sums of more would be infinite, and features no numbers.
_MOST_S, _MOST_BYTES, _LEAST_BANDWIDTH = 1e250, 1e100, 1e-100


class Problem(NamedTuple):
    """A graph on a topology: N vertices (inputs, which are never assigned, left out), E edges, D devices.

    Attributes:
      exec_s: float64 [N, D], infinite where the device cannot run the vertex.
      edges: int32 [E, 2], source and target.
      edge_bytes: float64 [E]; transfer_s: float64 [E], explicit seconds, or NaN: latency + bytes / bandwidth of the link.
      latency_s, bandwidth_bytes_per_s: float64 [D, D]; the diagonal is not read. A bandwidth of 0: there is no link.
      output_bytes: float64 [N]; memory_bytes: float64 [D], infinite where there is no limit.
    """

    exec_s: tf.Tensor
    edges: tf.Tensor
    edge_bytes: tf.Tensor
    transfer_s: tf.Tensor
    latency_s: tf.Tensor
    bandwidth_bytes_per_s: tf.Tensor
    output_bytes: tf.Tensor
    memory_bytes: tf.Tensor

    @property
    def other(self) -> tf.Tensor:
        """bool [D, D]: between different devices."""
        return ~tf.eye(tf.shape(self.memory_bytes)[0], dtype=tf.bool)

    @property
    def links(self) -> tf.Tensor:
        """bool [D, D]: there is a link, between different devices."""
        return self.other & (self.bandwidth_bytes_per_s > 0)

    @property
    def explicit(self) -> tf.Tensor:
        """bool [E]: the seconds are given."""
        return ~tf.math.is_nan(self.transfer_s)


PROBLEM = tuple(tf.TensorSpec(shape, tf.int32 if name == "edges" else tf.float64, name) for name, shape in zip(
    Problem._fields, ([None, None], [None, 2], [None], [None], [None, None], [None, None], [None], [None]), strict=True))


def problem_of(graph: DataflowGraph, costs: CostModel) -> Problem:
    """A graph and its costs as NumPy arrays; vertices are `graph.work_vertices` in order. Raises CostError for pins, colocation groups,
    devices with several slots and operations of several outputs, of which a served model does not know."""
    work, edges = graph.work_vertices, graph.work_edges
    unpinned = all(graph.pin[v] is None for v in work.tolist())
    for holds, what in ((unpinned, "pins"), ((costs.colocate[work] < 0).all(), "colocation groups"),
                        ((costs.slots == 1).all(), "devices of several slots"), (graph.single_outputs, "operations of several outputs")):
        if not holds:
            raise CostError(f"{graph.name}: expected a graph that a served model can place, got one with {what}; place it with `place`")
    local = np.full(graph.num_vertices, -1, np.int32)
    local[work] = np.arange(work.size)
    ends = np.stack([local[graph.sources[edges]], local[graph.targets[edges]]], axis=1).astype(np.int32)
    topology = costs.topology
    exec_s = np.where(costs.eligible, costs.exec_s, np.inf)[work]
    return Problem(exec_s, ends, costs.edge_bytes[edges], costs.explicit_transfer_s[edges], topology.latency_s,
                   topology.bandwidth_bytes_per_s, costs.output_bytes[work], costs.memory_bytes)


class Identities(tf.Module):
    """The random features that tell vertices and devices apart, or zeros where a policy was trained without."""

    def __init__(self, identity: bool):
        super().__init__(name="identities")
        self.vertex, self.device = (tf.Variable(own * identity, trainable=False) for own in identity_features(MOST_VERTICES, MOST_DEVICES))


def graphs_of_problem(problem: Problem, identities: Identities) -> PaddedGraphs:
    """This one graph, padded as `features.padded_sizes` pads."""
    eligible = tf.math.is_finite(problem.exec_s)
    problem = _limited(problem)
    exec_s, (source, target) = tf.reduce_mean(problem.exec_s, axis=1), tf.unstack(problem.edges, axis=1)
    count, devices, edges = (tf.shape(t)[0] for t in (exec_s, problem.memory_bytes, source))
    size, edge_size = _bucket(count + 1), tf.bitwise.left_shift(1, _bit_length(edges))
    null = size - 1
    transfer_s = _mean_transfer_s(problem)
    scale = tf.reduce_sum(exec_s) / tf.cast(devices, tf.float64)
    scale = tf.where(scale > 0, scale, 1.0)
    depth = _depth(source, target, count)
    below, b_next = _levels(depth, source, target, transfer_s, exec_s, tf.zeros_like(exec_s), exec_s, null)
    above, t_next = _levels(depth, target, source, transfer_s, tf.zeros_like(exec_s), exec_s, exec_s, null)
    longest = tf.maximum(tf.reduce_max(below), 1e-30)
    columns = exec_s, below, above, tf.math.unsorted_segment_sum(transfer_s, target, count), tf.math.unsorted_segment_sum(
        transfer_s, source, count)
    vertex = tf.concat([_float32(tf.stack(columns, axis=1) / longest), identities.vertex[:count]], axis=1)
    in_edge, in_row = _table(target, size, edge_size)
    out_edge, out_row = _table(source, size, edge_size)
    given = problem.explicit
    fixed_s = tf.where(given, problem.transfer_s, 0.0) / scale
    link_bytes = tf.where(given, tf.zeros_like(problem.edge_bytes), problem.edge_bytes) / 2.0**30
    bandwidth = tf.where(problem.links, problem.bandwidth_bytes_per_s, 1.0)
    latency_s = tf.where(problem.links | ~problem.other, tf.where(problem.links, problem.latency_s, 0.0) / scale, NO_LINK)
    cluster, cluster_s = _clusters(source, target, transfer_s, exec_s, size, devices)
    in_degree = tf.math.bincount(target, minlength=count, maxlength=count)
    groups = _bucket(tf.constant(1))

    def pad(values: tf.Tensor, length: tf.Tensor, fill=0) -> tf.Tensor:
        rest = [[0, length - tf.shape(values)[0]], *[[0, 0]] * (values.shape.rank - 1)]
        return tf.pad(values, rest, constant_values=tf.cast(fill, values.dtype))

    return PaddedGraphs(
        num_work=count[None], vertex=pad(vertex, size), device_identity=identities.device[None, :devices],
        edge=tf.cast(pad(transfer_s / tf.maximum(tf.reduce_max(transfer_s, axis=0), 1e-30), edge_size)[:, None], tf.float32),
        source=pad(source, edge_size, null), target=pad(target, edge_size, null), b_next=pad(b_next, size, null),
        t_next=pad(t_next, size, null), missing=pad(in_degree, size, NEVER)[None], in_row=in_row, out_row=out_row,
        predecessor=_by_slot(source, in_edge, null), successor=_by_slot(target, out_edge, null),
        fixed_s=_float32(_by_slot(fixed_s, in_edge)),
        on_link=_by_slot(tf.cast(~given, tf.float32), in_edge), link_bytes=_float32(_by_slot(link_bytes, in_edge)),
        latency_s=_float32(latency_s)[None],
        s_per_byte=_float32(tf.where(problem.links, 2.0**30 / bandwidth, 0.0) / scale)[None],
        exec_s=tf.cast(pad(problem.exec_s / scale, size), tf.float32), allowed=pad(eligible, size, True),
        group=tf.zeros([size], tf.int32), no_group=tf.fill([1, groups], -1),
        memory=_float32(pad(problem.output_bytes / 2.0**30, size)), memory_left=_float32(problem.memory_bytes / 2.0**30)[None],
        cluster=cluster, cluster_s=tf.cast(cluster_s / scale, tf.float32)[None],
        sibling=pad(_siblings(source, target, exec_s / scale, count, in_degree), size))


def _limited(problem: Problem) -> Problem:
    """What can be summed up; where a device cannot run a vertex, the mean of those that can, as in `CostModel`."""
    eligible = tf.math.is_finite(problem.exec_s)
    seconds, able = tf.where(eligible, tf.minimum(problem.exec_s, _MOST_S), 0.0), tf.cast(eligible, tf.float64)
    mean_s = tf.reduce_sum(seconds, axis=1, keepdims=True) / tf.reduce_sum(able, axis=1, keepdims=True)
    bandwidth = problem.bandwidth_bytes_per_s
    return problem._replace(
        exec_s=tf.where(eligible, seconds, mean_s), latency_s=tf.minimum(problem.latency_s, _MOST_S),
        transfer_s=tf.where(problem.transfer_s > _MOST_S, tf.constant(_MOST_S, tf.float64), problem.transfer_s),
        edge_bytes=tf.minimum(problem.edge_bytes, _MOST_BYTES),
        bandwidth_bytes_per_s=tf.where(bandwidth > 0, tf.maximum(bandwidth, _LEAST_BANDWIDTH), 0.0))


def _mean_transfer_s(problem: Problem) -> tf.Tensor:
    """float64 [E]: as `CostModel.mean_transfer_s`."""
    links = tf.cast(tf.reduce_sum(tf.cast(problem.links, tf.int32)), tf.float64)

    def mean(matrix: tf.Tensor) -> tf.Tensor:
        return tf.math.divide_no_nan(tf.reduce_sum(tf.where(problem.links, matrix, 0.0)), links)

    bandwidth = tf.where(problem.links, problem.bandwidth_bytes_per_s, 1.0)
    cost = tf.where(problem.explicit, problem.transfer_s, mean(problem.latency_s) + problem.edge_bytes * mean(1.0 / bandwidth))
    return tf.where(links > 0, cost, tf.zeros_like(cost))


def _depth(source: tf.Tensor, target: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """How many vertices the longest path has, for as many turns settle all levels. An InvalidArgumentError tells of a cycle."""
    def turn(depth: tf.Tensor, missing: tf.Tensor, ready: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        fed = tf.math.unsorted_segment_sum(tf.cast(tf.gather(ready, source), tf.int32), target, count)
        left = tf.where(ready, -1, missing - fed)
        return depth + 1, left, left == 0

    missing = tf.math.bincount(target, minlength=count, maxlength=count)
    depth, missing, _ = tf.while_loop(lambda depth, missing, ready: tf.reduce_any(ready), turn, (0, missing, missing == 0))
    with tf.control_dependencies([tf.debugging.Assert(
            tf.reduce_all(missing < 0), ["edges: expected a graph without cycles, got one through vertex",
                                         tf.argmax(missing, output_type=tf.int32), "; a graph of operations never waits for itself"])]):
        return tf.identity(depth)


def _levels(depth: tf.Tensor, near: tf.Tensor, far: tf.Tensor, transfer_s: tf.Tensor, own: tf.Tensor, through: tf.Tensor, like: tf.Tensor,
            null: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """float64 [N] and int32 [N]: `ranks.b_levels` (`own` is exec, `through` zero) or `t_levels` (the other way round); null ends a path."""
    count = tf.shape(like)[0]

    def reached(value: tf.Tensor) -> tf.Tensor:
        return transfer_s + tf.gather(value, far) + tf.gather(through, far)

    def best(value: tf.Tensor) -> tf.Tensor:
        return tf.maximum(tf.math.unsorted_segment_max(reached(value), near, count), 0.0)

    value = tf.while_loop(lambda i, _: i < depth, lambda i, value: (i + 1, best(value) + own), (0, tf.zeros_like(like)))[1]
    edges = tf.shape(near)[0]
    attains = reached(value) == tf.gather(best(value), near)
    first = tf.math.unsorted_segment_min(tf.where(attains, tf.range(edges), edges), near, count)
    return value, tf.gather(tf.concat([far, null[None]], axis=0), tf.minimum(first, edges))


def _table(keys: tf.Tensor, size: tf.Tensor, edge_size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The edges of each vertex in rows: int32 [R, K] edge in each place (-1: none), int32 [N, 2] first row and count."""
    degree = tf.math.bincount(keys, minlength=size, maxlength=size)
    most = tf.reduce_max(degree)
    width = tf.reduce_min(tf.where(tf.constant(ROW_WIDTHS) >= most, ROW_WIDTHS, ROW_WIDTHS[-1]))
    rows = tf.where(most <= width, size, size + edge_size // width)
    needed = tf.maximum(1, -(-degree // width))
    first = tf.cumsum(needed, exclusive=True)
    by_key = tf.argsort(keys, stable=True)
    keys = tf.gather(keys, by_key)
    place = tf.range(tf.shape(keys)[0]) - tf.gather(tf.cumsum(degree, exclusive=True), keys)
    at = tf.stack([tf.gather(first, keys) + place // width, place % width], axis=1)
    edge = tf.tensor_scatter_nd_update(tf.fill(tf.stack([rows, width]), -1), at, by_key)
    return edge, tf.stack([first, needed], axis=1)


def _by_slot(values: tf.Tensor, edge: tf.Tensor, none=0) -> tf.Tensor:
    """Values of the edges in their places; none where there is no edge."""
    return tf.gather(tf.concat([values, tf.cast(none, values.dtype)[None]], axis=0), tf.where(edge >= 0, edge, tf.shape(values)[0]))


def _siblings(source: tf.Tensor, target: tf.Tensor, exec_s: tf.Tensor, count: tf.Tensor, feeders: tf.Tensor) -> tf.Tensor:
    """float32 [N, 2]: as `GraphArrays.sibling`."""
    own = tf.gather(exec_s, source)
    load = tf.math.unsorted_segment_sum(own, target, count)
    shared = tf.math.unsorted_segment_sum(tf.cast(tf.gather(feeders, target) - 1, tf.float64), source, count)
    weighted = tf.math.unsorted_segment_sum(tf.gather(load, target) - own, source, count)
    return tf.cast(tf.stack([shared, weighted], axis=1), tf.float32)


def _clusters(source: tf.Tensor, target: tf.Tensor, transfer_s: tf.Tensor, exec_s: tf.Tensor, size: tf.Tensor, devices: tf.Tensor
              ) -> tuple[tf.Tensor, tf.Tensor]:
    """int32 [N, L] clusters and float64 [L * N] their exec, by the rules of `heuristics.move_sets.clusters`.

    An edge that could not join its ends once never can, as work only grows; so each turn joins the first edge that can, at every level.
    """
    levels = len(CLUSTER_SCALES)
    by_cost = tf.argsort(transfer_s, direction="DESCENDING", stable=True)
    # One edge that joins nothing stands last, for graphs without edges.
    ends = [tf.concat([tf.gather(end, by_cost), size[None] - 1], axis=0) for end in (source, target)]
    most = tf.reduce_sum(exec_s) / tf.cast(devices, tf.float64) * tf.constant(CLUSTER_SCALES, tf.float64) * (1 + 1e-9)
    load = tf.repeat(tf.pad(exec_s, [[0, size - tf.shape(exec_s)[0]]])[None], levels, axis=0)
    head = tf.repeat(tf.range(size)[None], levels, axis=0)

    def joinable(head: tf.Tensor, load: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        a, b = (tf.gather(head, end, axis=1) for end in ends)
        fits = tf.gather(load, a, batch_dims=1) + tf.gather(load, b, batch_dims=1) <= most[:, None]
        return a, b, (a != b) & fits

    def join(head: tf.Tensor, load: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        a, b, can = joinable(head, load)
        first, any_left = tf.argmax(can, axis=1, output_type=tf.int32), tf.reduce_any(can, axis=1)
        a, b = (tf.gather(end, first, batch_dims=1) for end in (a, b))
        into, gone = tf.minimum(a, b), tf.maximum(a, b)
        added = tf.where(any_left, tf.gather(load, gone, batch_dims=1), 0.0)
        head = tf.where((head == gone[:, None]) & any_left[:, None], into[:, None], head)
        load = tf.tensor_scatter_nd_add(load, tf.stack([tf.range(levels), into], axis=1), added)
        return head, load, tf.reduce_any(any_left)

    head = tf.while_loop(lambda head, load, left: left, join, (head, load, True))[0]
    index = head + tf.range(levels)[:, None] * size
    work = tf.shape(exec_s)[0]
    cluster_s = tf.math.unsorted_segment_sum(tf.tile(exec_s, [levels]), tf.reshape(index[:, :work], [-1]), levels * size)
    return tf.ensure_shape(tf.transpose(index), [None, levels]), cluster_s


def _bit_length(number: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(tf.constant([1 << k for k in range(31)]) <= number, tf.int32))


def _bucket(count: tf.Tensor) -> tf.Tensor:
    """As `features.bucket`."""
    step = tf.maximum(2, tf.bitwise.left_shift(1, tf.maximum(_bit_length(count - 1) - 3, 0)))
    return tf.maximum(8, -(-count // step) * step)


def _float32(values: tf.Tensor) -> tf.Tensor:
    """As in `features`: figures beyond LARGEST are as good as it."""
    return tf.cast(tf.minimum(values, tf.cast(LARGEST, values.dtype)), tf.float32)
