"""The yardstick of `training`: the same networks, trained eagerly.

It trains one episode at a time. The encoder runs once. Then each step is one Python call of both policies, with bookkeeping and features
in NumPy for the chosen vertex. The simulator and one update by GradientTape follow. No work is repeated, so that the ratio shows the gain
of compiling and batching alone.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from agents.config import TrainConfig
from agents.episodes.features import GraphArrays
from agents.policies.networks import DualNetwork, Tables
from doppler_tf.fastsim import FastSimulator

_TINY = 1e-12


class EagerEpisode:
    """One episode of one graph in NumPy, with times in units of `scale_s`, without pins, groups or memory limits."""

    def __init__(self, arrays: GraphArrays):
        count, devices = arrays.num_work, arrays.exec_s.shape[1]
        self._arrays, self._devices = arrays, devices
        self._into, self._out = (_lists(table, rows, count, arrays.num_vertices - 1) for table, rows in
                                 ((arrays.predecessor, arrays.in_row), (arrays.successor, arrays.out_row)))
        self.missing = arrays.in_degree[:count].copy()
        self.candidates = set(np.flatnonzero(self.missing == 0).tolist())
        self._device, self._start, self._end = np.zeros(count, int), np.zeros(count), np.zeros(count)
        self._free_at, self._busy = np.zeros(devices), np.zeros(devices)
        self._cluster, self._fed = np.zeros((len(arrays.cluster_s), devices)), np.zeros((count, devices, 2))

    def features(self, v: int) -> np.ndarray:
        """float32 [D, F], DEVICE_FEATURES["relational"] of every device for vertex v."""
        a, devices = self._arrays, self._devices
        inputs, first = self._into[v], a.in_row[v, 0]
        here, began, ended = self._device[inputs], self._start[inputs], self._end[inputs]
        fixed, on_link, link_bytes = (table[first:first + a.in_row[v, 1]].ravel()[:len(inputs)]
                                      for table in (a.fixed_s, a.on_link, a.link_bytes))
        there = here[:, None] == np.arange(devices)
        transfer = ~there * (fixed[:, None] + on_link[:, None] * a.latency_s[here] + link_bytes[:, None] * a.s_per_byte[here])
        cost = transfer.max(axis=1)
        start = np.maximum(self._free_at, (ended[:, None] + transfer).max(axis=0, initial=0.0))
        least, any_there = start.min(), there.any(axis=0)
        first_start = np.where(there, began[:, None], np.inf).min(axis=0, initial=np.inf)
        last_end = np.where(there, ended[:, None], 0.0).max(axis=0, initial=0.0)
        own = a.exec_s[v].mean() + cost.max(initial=0.0)
        sibling_share = self._fed[self._out[v]].sum(axis=0) / (a.sibling[v] + _TINY)
        cluster_share = self._cluster[a.cluster[v]] / (a.cluster_s[a.cluster[v], None] + _TINY)
        columns = [self._busy - self._busy.min(), _share((there * (ended - began)[:, None]).sum(axis=0)),
                   np.where(any_there, first_start - least, 0.0), np.where(any_there, last_end - least, 0.0), start - least, self._busy,
                   np.tanh((start - least) / (own + _TINY)), _share((there * cost[:, None]).sum(axis=0)), *sibling_share.T,
                   *cluster_share]
        self._earliest = start
        return np.stack(columns, axis=1).astype(np.float32)

    def place(self, v: int, d: int) -> None:
        """Puts v on d. Requires that `features` was last called for v."""
        exec_s = self._arrays.exec_s[v, d]
        self._device[v], self._start[v], self._end[v] = d, self._earliest[d], self._earliest[d] + exec_s
        self._free_at[d] = max(self._free_at[d], self._end[v])
        self._busy[d] += exec_s
        self._cluster[self._arrays.cluster[v], d] += exec_s
        self._fed[self._out[v], d] += (1.0, exec_s)
        self.candidates.remove(v)
        for w in self._out[v]:
            self.missing[w] -= 1
            if self.missing[w] == 0:
                self.candidates.add(int(w))


class EagerTrainer:
    """REINFORCE on one graph."""

    def __init__(self, arrays: GraphArrays, encode, config: TrainConfig):
        """Args: encode: a function network -> Tables for the graph's batch."""
        self._arrays, self._encode = arrays, encode
        self.network = DualNetwork(config.hidden, config.rounds, config.features, config.seed)
        self._simulator = FastSimulator(arrays.graph, arrays.costs)
        self._optimizers = [tf.keras.optimizers.Adam(config.learning_rate) for _ in range(2)]
        self._rng, self._baseline = np.random.default_rng(config.seed), 0.0

    def rollout(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tf.Tensor]]:
        """One sampled episode: int32 [1, T] order and device, [T, D, F] features, log-probabilities [2] by step."""
        tables, episode = self._encode(self.network), EagerEpisode(self._arrays)
        placed = list(tables.plc_empty[0])
        order, device, seen, log_p = [], [], [], []
        for _ in range(self._arrays.num_work):
            v, d, features, chosen = self.step(tables, episode, placed)
            placed[d] = placed[d] + tables.plc_placed[v]
            episode.place(v, d)
            order.append(v)
            device.append(d)
            seen.append(features)
            log_p.append(chosen)
        return np.array([order], np.int32), np.array([device], np.int32), np.array(seen), log_p

    def step(self, tables: Tables, episode: EagerEpisode, placed: list[tf.Tensor]) -> tuple[int, int, np.ndarray, tf.Tensor]:
        """The choices of both policies, PLC's features, and the sum of both log-probabilities."""
        candidates = sorted(episode.candidates)
        sel = tf.nn.log_softmax(tf.gather(tables.sel_logit, candidates))
        at = self._draw(sel)
        v = candidates[at]
        features = episode.features(v)
        plc = tf.nn.log_softmax(self.network.device_logits(tables.plc_vertex[v], tf.stack(placed), tf.constant(features)))
        d = self._draw(plc)
        return v, d, features, sel[at] + plc[d]

    def train_episode(self) -> float:
        """Rollout, simulation and update of one episode; returns its seconds."""
        network = self.network
        with tf.GradientTape() as tape:
            order, device, _, log_p = self.rollout()
            makespan_s = float(self._simulator.makespans(*self._arrays.to_devices(order, device))[0])
            reward = -makespan_s / self._arrays.scale_s
            loss = -(reward - self._baseline) * tf.add_n(log_p) / len(log_p)
        owned = network.parameter_groups
        for optimizer, variables, gradients in zip(self._optimizers, owned, tape.gradient(loss, owned), strict=True):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self._baseline = 0.9 * self._baseline + 0.1 * reward
        return makespan_s

    def _draw(self, log_p: tf.Tensor) -> int:
        return int(np.argmax(log_p.numpy() + self._rng.gumbel(size=log_p.shape)))


def _lists(table: np.ndarray, rows: np.ndarray, count: int, null: int) -> list[np.ndarray]:
    found = [table[first:first + number].ravel() for first, number in rows[:count]]
    return [neighbours[neighbours < null] for neighbours in found]


def _share(amount: np.ndarray) -> np.ndarray:
    return amount / (amount.sum() + _TINY)
