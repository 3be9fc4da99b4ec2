"""The networks: a TF-GNN encoder that runs once a graph, and the heads of SEL and PLC."""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf
import tensorflow_gnn as tfgnn

from agents.episodes.episode import DEVICE_FEATURES, PaddedGraphs, extent
from agents.episodes.features import IDENTITY, VERTEX_WIDTH

SEL_LOGIT_LIMIT = 10.0
_VERTEX, _EDGE = "vertex", "tensor"
_MOST_DOUBLINGS = 20  # for paths of a million vertices, where a graph's size is not known when a function is traced


# What each of the two optimizers trains: the variables of SEL and of PLC, or of two parts of a network with one policy.
ParameterGroups = tuple[list[tf.Variable], list[tf.Variable]]


class Tables(NamedTuple):
    """What one encoding yields for G graphs; constant within an episode.

    Attributes:
      sel_logit: float32 [G * N].
      plc_vertex: float32 [G * N, hidden], the vertex's part of PLC's first layer.
      plc_empty: float32 [G, D, hidden], the first layer's sum for each device before any vertex goes there.
      plc_placed: float32 [G * N, hidden], what a vertex adds to the sum for the device it goes to.
    """

    sel_logit: tf.Tensor
    plc_vertex: tf.Tensor
    plc_empty: tf.Tensor
    plc_placed: tf.Tensor


def dense(width: int, seed: int, activation=None, use_bias: bool = True, scale: float = 1.0) -> tf.keras.layers.Layer:
    """A dense layer of float32, whatever Keras's global policy."""
    initializer = tf.keras.initializers.VarianceScaling(scale, "fan_avg", "uniform", seed=seed)
    return tf.keras.layers.Dense(width, activation, use_bias, kernel_initializer=initializer, dtype=tf.float32)


def trainable(*layers: tf.Module) -> list[tf.Variable]:
    """Their trainable variables, in this order."""
    return [variable for layer in layers for variable in layer.trainable_variables]


def temperatures() -> tf.Variable:
    """By what the logits of vertices and of devices (or of pairs) are divided: float32 [2], steered by the trainer, not trained."""
    return tf.Variable([1.0, 1.0], trainable=False, name="temperature")


class DualNetwork(tf.Module):
    """Encoder, SEL head and PLC head (paper section 4). The first layer of MLP(a ‖ b ‖ c) is a sum of dense layers of a, b and c, so that
    each part is computed where it changes: by vertex, by placed vertex, by step."""

    encoder_width = VERTEX_WIDTH

    def __init__(self, hidden: int = 64, rounds: int = 4, features: str = "relational", seed: int = 0):
        """Args: hidden: width of every layer; rounds: of message passing; features: a key of DEVICE_FEATURES; seed: of the weights."""
        super().__init__(name="dual_network")
        self.num_features = len(DEVICE_FEATURES[features])
        self.temperature = temperatures()
        seeds = iter(range(1000 * seed, 1000 * seed + 1000))
        self.encoder = Encoder(hidden, rounds, seeds)
        self.sel = [dense(hidden, next(seeds), "relu"), dense(hidden, next(seeds), "relu"), dense(1, next(seeds), scale=0.01)]
        self.plc_vertex = dense(hidden, next(seeds))
        self.plc_placed = dense(hidden, next(seeds), use_bias=False)
        self.plc_identity = dense(hidden, next(seeds), use_bias=False)
        self.plc_device = dense(hidden, next(seeds), use_bias=False)
        self.plc = [dense(hidden // 2, next(seeds), "relu"), dense(1, next(seeds), scale=0.01)]
        # Variables are made here once, so that no compiled function is traced twice for making them.
        vertex = self.tables(one_edge(), self.encoder(one_edge(self.encoder_width))).plc_vertex
        self.device_logits(vertex, tf.zeros([2, 1, hidden]), tf.zeros([2, 1, self.num_features]))

    def encode(self, graphs: PaddedGraphs) -> Tables:
        """Message passing over all graphs, path sums, and all that the heads need by vertex."""
        return self.tables(graphs, self.encoder(graphs))

    def tables(self, graphs: PaddedGraphs, hidden: tf.Tensor) -> Tables:
        """All that the heads need by vertex; hidden: float32 [G * N, hidden], the encoding."""
        depth = _num_work(graphs)
        logit = vertex_inputs(graphs, hidden)
        for layer in self.sel:
            logit = layer(logit)
        logit = SEL_LOGIT_LIMIT * tf.tanh(logit[:, 0] / SEL_LOGIT_LIMIT)
        return Tables(logit / self.temperature[0], self.plc_vertex(tf.concat([graphs.vertex, hidden], axis=1)),
                      self.plc_identity(graphs.device_identity), self.plc_placed(hidden) * tf.cast(graphs.num_devices, tf.float32) / depth)

    def device_logits(self, plc_vertex: tf.Tensor, placed: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
        """PLC's logits.

        Args:
          plc_vertex: float32 [..., hidden], `Tables.plc_vertex` of the chosen vertices.
          placed: float32 [..., D, hidden], sums of `Tables.plc_placed` over the vertices on each device, and `Tables.plc_empty`.
          features: float32 [..., D, F].

        Returns:
          float32 [..., D].
        """
        hidden = tf.nn.relu(plc_vertex[..., None, :] + placed + self.plc_device(features[..., :self.num_features]))
        for layer in self.plc:
            hidden = layer(hidden)
        return hidden[..., 0] / self.temperature[1]

    @property
    def parameter_groups(self) -> ParameterGroups:
        """Encoder and SEL head; PLC head."""
        plc = self.plc_vertex, self.plc_identity, self.plc_placed, self.plc_device, *self.plc
        return trainable(*self.encoder.layers, *self.sel), trainable(*plc)


class Encoder(tf.Module):
    """TF-GNN message passing: mean over both directions of every edge, with residual updates."""

    def __init__(self, hidden: int, rounds: int, seeds):
        super().__init__(name="encoder")
        self._embed_vertex, self._embed_edge = dense(hidden, next(seeds), "relu"), dense(hidden, next(seeds), "relu")

        def convolution(receiver: int) -> tfgnn.keras.layers.SimpleConv:
            return tfgnn.keras.layers.SimpleConv(dense(hidden, next(seeds), "relu"), "mean", receiver_tag=receiver,
                                                 sender_edge_feature=tfgnn.HIDDEN_STATE, dtype=tf.float32)

        class _BothDirections(tf.keras.layers.Layer):
            """Neighbours along and against one edge set, pooled into one tensor."""

            def __init__(self):
                super().__init__(dtype=tf.float32)
                self._along, self._against = convolution(tfgnn.TARGET), convolution(tfgnn.SOURCE)

            def call(self, graph, edge_set_name):
                return tf.concat([self._along(graph, edge_set_name=edge_set_name),
                                  self._against(graph, edge_set_name=edge_set_name)], axis=-1)

        self._rounds = [
            tfgnn.keras.layers.GraphUpdate(node_sets={_VERTEX: tfgnn.keras.layers.NodeSetUpdate(
                {_EDGE: _BothDirections()}, tfgnn.keras.layers.NextStateFromConcat(dense(hidden, next(seeds), "relu"), dtype=tf.float32),
                dtype=tf.float32)}, dtype=tf.float32)
            for _ in range(rounds)]
        self.layers = [self._embed_vertex, self._embed_edge, *self._rounds]

    def __call__(self, graphs: PaddedGraphs) -> tf.Tensor:
        """float32 [G * N, hidden]; rows of padding are zero."""
        vertices, edges = extent(graphs.vertex, 0), extent(graphs.edge, 0)
        graph = tfgnn.GraphTensor.from_pieces(
            node_sets={_VERTEX: tfgnn.NodeSet.from_fields(features={tfgnn.HIDDEN_STATE: self._embed_vertex(graphs.vertex)},
                                                          sizes=[vertices])},
            edge_sets={_EDGE: tfgnn.EdgeSet.from_fields(
                features={tfgnn.HIDDEN_STATE: self._embed_edge(graphs.edge)}, sizes=[edges],
                adjacency=tfgnn.Adjacency.from_indices(source=(_VERTEX, graphs.source), target=(_VERTEX, graphs.target)))})
        hidden = graph.node_sets[_VERTEX][tfgnn.HIDDEN_STATE]
        for update in self._rounds:
            graph = update(graph)
            hidden = hidden + graph.node_sets[_VERTEX][tfgnn.HIDDEN_STATE]
            graph = graph.replace_features(node_sets={_VERTEX: {tfgnn.HIDDEN_STATE: hidden}})
        real = tf.cast(tf.reshape(graphs.is_real, [-1, 1]), tf.float32)
        return hidden * real / (1.0 + len(self._rounds))


def vertex_inputs(graphs: PaddedGraphs, hidden: tf.Tensor) -> tf.Tensor:
    """float32 [G * N, ...]: features ‖ H ‖ ΣH on the b-path ‖ ΣH on the t-path, what SEL sees of each vertex; hidden: [G * N, h]."""
    size = graphs.num_vertices
    doublings = max(1, math.ceil(math.log2(size))) if isinstance(size, int) else _MOST_DOUBLINGS
    depth = _num_work(graphs)
    return tf.concat([graphs.vertex, hidden, path_sums(hidden, graphs.b_next, doublings) / tf.sqrt(depth),
                      path_sums(hidden, graphs.t_next, doublings) / tf.sqrt(depth)], axis=1)


def path_sums(hidden: tf.Tensor, following: tf.Tensor, doublings: int) -> tf.Tensor:
    """Sums of `hidden` [V, h] along the paths v, following[v], ... (paper section 4.2), by pointer doubling.

    Args:
      following: int32 [V]; paths end in a vertex that follows itself and whose row is zero.
      doublings: covers paths of up to 2 ** doublings vertices.
    """
    total, pointer = hidden, following
    for _ in range(doublings):
        total = total + tf.gather(total, pointer)
        pointer = tf.gather(pointer, pointer)
    return total


def _num_work(graphs: PaddedGraphs) -> tf.Tensor:
    """float32 [G * N, 1]: how many vertices the graph of each row has."""
    return tf.cast(tf.repeat(graphs.num_work, graphs.num_vertices), tf.float32)[:, None]


def one_edge(width: int = VERTEX_WIDTH) -> PaddedGraphs:
    """The smallest graph that all layers can read; width: of the vertices' features."""
    index = tf.constant([1, 1])
    fields = {"num_work": tf.constant([1]), "vertex": tf.zeros([2, width]), "edge": tf.zeros([1, 1]), "source": index[:1],
              "target": index[:1], "b_next": index, "t_next": index, "missing": tf.zeros([1, 2], tf.int32), "exec_s": tf.zeros([2, 1]),
              "device_identity": tf.zeros([1, 1, IDENTITY])}
    return PaddedGraphs(**{**dict.fromkeys(PaddedGraphs._fields), **fields})
