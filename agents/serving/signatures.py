"""The policies behind plain tensors, for served models: `place` draws, simulates and ranks assignments; `score` evaluates given ones."""

from __future__ import annotations

import tensorflow as tf

from agents.policies.networks import DualNetwork
from agents.policies.rollout import Rollout, log_probability
from agents.serving.placing import BATCH_BYTES, BYTES_A_CHOICE
from agents.serving.tensor_features import MOST_DEVICES, MOST_VERTICES, PROBLEM, Identities, Problem, graphs_of_problem
from agents.serving.tensor_simulator import makespans

MOST_SAMPLES = 100_000


PLACE = (*PROBLEM, tf.TensorSpec([], tf.int32, "samples"), tf.TensorSpec([], tf.int32, "seed"))
SCORE = (*PROBLEM, tf.TensorSpec([None, None], tf.int32, "device"), tf.TensorSpec([None, None], tf.int32, "order"))


class Server(tf.Module):
    """Functions of plain tensors for graphs of any size on any number of devices.

    Attributes:
      place: PLACE -> `device` int32 [N], `order` int32 [N] (the sequence in which SEL chose), `makespan_s`, of the best of the greedy and
        `samples` - 1 drawn assignments by `tensor_simulator.makespans`, infinity where none can run so; `dispatch`, the rule under which
        they were simulated.
      score: SCORE, assignments by vertex and the orders in which to choose, both [K, N] -> float32 [K] `log_probability` and its parts
        `sel_log_probability` and `plc_log_probability`; `makespan_s` float64 [K].
    """

    def __init__(self, network: DualNetwork, identity: bool, batch_bytes: int = BATCH_BYTES, dispatch: str = "fifo"):
        """Args: identity, dispatch: as the policies were trained (`TrainConfig.identity`, `rule`); batch_bytes: as in `load_policy`."""
        super().__init__(name="server")
        self._network, self._identities, self._batch_bytes = network, Identities(identity), batch_bytes
        self._rollout = Rollout(network, jit_compile=False)
        self._dispatch = dispatch
        self.place = tf.function(self._place, PLACE, autograph=False)
        self.score = tf.function(self._score, SCORE, autograph=False)

    def _place(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        problem, (samples, seed) = _checked(Problem(*tensors[:-2])), tensors[-2:]
        with tf.control_dependencies([_require(samples >= 1, f"samples: expected 1 to {MOST_SAMPLES}, got", samples),
                                      _require(samples <= MOST_SAMPLES, f"samples: expected 1 to {MOST_SAMPLES}, got", samples),
                                      _require(seed >= 0, "seed: expected an integer >= 0, got", seed)]):
            graphs = graphs_of_problem(problem, self._identities)
        count = tf.shape(problem.exec_s)[0]
        choices = tf.cast(graphs.num_vertices, tf.int64) * tf.cast(graphs.num_devices, tf.int64)
        rows = tf.minimum(samples, tf.cast(tf.maximum(self._batch_bytes // (BYTES_A_CHOICE * choices), 1), tf.int32))

        def draw(i: tf.Tensor, best_s: tf.Tensor, device: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor, ...]:
            number = i * rows + tf.range(rows)
            episodes = self._rollout.run(graphs, tf.zeros([rows], tf.int32), tf.stack([seed, i]), number == 0)
            orders = episodes.order[:, :count]
            devices = _by_vertex(orders, episodes.device[:, :count])
            seconds = tf.where(number < samples, self._makespans(problem, devices, orders), float("inf"))
            first = tf.argmin(seconds)
            better = (seconds[first] < best_s) | (i == 0)  # sums that overflow to infinity have an answer too
            return (i + 1, tf.minimum(best_s, seconds[first]), tf.where(better, devices[first], device),
                    tf.where(better, orders[first], order))

        start = 0, tf.constant(float("inf"), tf.float64), tf.zeros([count], tf.int32), tf.zeros([count], tf.int32)
        _, best_s, device, order = tf.while_loop(lambda i, *_: i * rows < samples, draw, start)
        return {"device": device, "order": order, "makespan_s": best_s, "dispatch": tf.constant(self._dispatch)}

    def _makespans(self, problem: Problem, device: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
        if self._dispatch != "order":
            return makespans(problem, device)
        return makespans(problem, device, _by_vertex(order, tf.zeros_like(order) + tf.range(tf.shape(order)[1])))

    def _score(self, *tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        problem, (device, order) = _checked(Problem(*tensors[:-2])), tensors[-2:]
        device, order = _checked_episodes(problem, device, order)
        graphs = graphs_of_problem(problem, self._identities)
        graph, rest = tf.zeros([tf.shape(order)[0]], tf.int32), [[0, 0], [0, graphs.num_vertices - 1 - tf.shape(order)[1]]]
        by_step = tf.pad(tf.gather(device, order, batch_dims=1), rest)
        episodes = self._rollout.replay(graphs, graph, tf.pad(order, rest, constant_values=graphs.num_vertices - 1), by_step)
        *parts, valid = log_probability(self._network, graphs, episodes)
        sel, plc = (tf.reduce_sum(tf.where(valid, part.chosen, 0.0), axis=1) for part in parts)
        return {"log_probability": sel + plc, "sel_log_probability": sel, "plc_log_probability": plc,
                "makespan_s": self._makespans(problem, device, order)}


def _by_vertex(order: tf.Tensor, device: tf.Tensor) -> tf.Tensor:
    """Devices by vertex from devices by step, int32 [B, N]."""
    episode = tf.repeat(tf.range(tf.shape(order)[0])[:, None], tf.shape(order)[1], axis=1)
    return tf.scatter_nd(tf.stack([episode, order], axis=2), device, tf.shape(order))


def _require(holds: tf.Tensor, message: str, *shown: tf.Tensor) -> tf.Operation:
    """An InvalidArgumentError with the message and what came, unless all of `holds` is True."""
    return tf.debugging.Assert(tf.reduce_all(holds), [message, *shown], summarize=8)


def _checked(problem: Problem) -> Problem:
    """The problem, once it makes sense."""
    vertices, devices = (tf.shape(problem.exec_s)[axis] for axis in (0, 1))
    edges = tf.shape(problem.edges)[0]

    def shaped(name: str, *shape: tf.Tensor) -> tf.Operation:
        got = tf.shape(getattr(problem, name))
        return _require(got == tf.stack(shape), f"{name}: expected shape", tf.stack(shape), "got", got)

    def within(name: str, most: int, got: tf.Tensor) -> tf.Operation:
        return _require((got >= 1) & (got <= most), f"exec_s: expected 1 to {most} {name}, got", got)

    shapes = [within("vertices (rows)", MOST_VERTICES, vertices), within("devices (columns)", MOST_DEVICES, devices),
              shaped("edge_bytes", edges), shaped("transfer_s", edges), shaped("latency_s", devices, devices),
              shaped("bandwidth_bytes_per_s", devices, devices), shaped("output_bytes", vertices), shaped("memory_bytes", devices)]
    with tf.control_dependencies(shapes):
        problem = Problem(*map(tf.identity, problem))

    able = tf.math.is_finite(problem.exec_s)

    def finite(name: str, unit: str) -> tf.Operation:
        values = getattr(problem, name)
        return _require(tf.math.is_finite(values) & (values >= 0), f"{name}: expected finite {unit} >= 0, got", values)

    transfer_s = tf.where(problem.explicit, problem.transfer_s, 0.0)
    bandwidth = tf.where(problem.other, problem.bandwidth_bytes_per_s, 1.0)
    with tf.control_dependencies([
            _require((problem.exec_s >= 0) & tf.reduce_any(able, axis=1, keepdims=True), "exec_s: expected seconds >= 0, infinity for a "
                     "device that cannot run a vertex, at least one finite by vertex, got", problem.exec_s),
            finite("edge_bytes", "bytes"), finite("latency_s", "seconds"), finite("output_bytes", "bytes"),
            _require((problem.edges >= 0) & (problem.edges < vertices), "edges: expected vertices from 0 to", vertices - 1, "got",
                     problem.edges),
            _require(tf.math.is_finite(transfer_s) & (transfer_s >= 0),
                     "transfer_s: expected finite seconds >= 0, or NaN for the link's, got", problem.transfer_s),
            _require(bandwidth >= 0, "bandwidth_bytes_per_s: expected numbers >= 0 between devices, 0 for no link, got",
                     problem.bandwidth_bytes_per_s),
            _require(problem.memory_bytes > 0, "memory_bytes: expected numbers > 0, infinity for no limit, got", problem.memory_bytes)]):
        return Problem(*map(tf.identity, problem))


def _checked_episodes(problem: Problem, device: tf.Tensor, order: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Devices and orders [K, N], once they are episodes of the problem."""
    vertices, devices = (tf.shape(problem.exec_s)[axis] for axis in (0, 1))
    shape = tf.stack([tf.shape(device)[0], vertices])
    with tf.control_dependencies([_require(shape[0] >= 1, "device: expected at least one row, got", shape[0]),
                                  _require(tf.shape(device) == shape, "device: expected shape", shape, "got", tf.shape(device)),
                                  _require(tf.shape(order) == shape, "order: expected shape", shape, "got", tf.shape(order))]):
        device, order = tf.identity(device), tf.identity(order)
    sorted_order = tf.sort(order, axis=1)
    with tf.control_dependencies([
            _require((device >= 0) & (device < devices), "device: expected devices from 0 to", devices - 1, "got", device),
            _require(sorted_order == tf.range(vertices), "order: expected each vertex once a row, got", order)]):
        device, order = tf.identity(device), tf.identity(order)
    position = _by_vertex(order, tf.zeros_like(order) + tf.range(vertices))
    source, target = (tf.gather(position, end, axis=1) for end in tf.unstack(problem.edges, axis=1))
    with tf.control_dependencies([_require(source < target, "order: expected each vertex after its producers, got", order)]):
        return tf.identity(device), tf.identity(order)

