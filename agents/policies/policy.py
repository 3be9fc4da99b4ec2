"""The policies of a method as one TF-Agents policy: run in whole episodes, SEL and PLC step by step too."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from agents.episodes.environment import action_spec, observation_spec
from agents.episodes.episode import DEVICE_FEATURES, EpisodeState, PaddedGraphs, candidates, place_vertex
from agents.policies.losses import masked_log_probability
from agents.policies.networks import DualNetwork, Tables
from agents.policies.race import Race, block_size, run_on, start_race
from agents.policies.rollout import Choice, Rollout, after_placing, choose, device_logits
from doppler_tf.errors import ConfigError, shown

NUM_FEATURES = len(DEVICE_FEATURES["relational"])
# From the seed of an episode to that of the next one in its row of a run: far from those that people choose.
_EPISODE = 1_000_003


class EpisodePolicy(tf_policy.TFPolicy):
    """The policies of any method, for whole episodes in `FusedDriver`. A single step raises ConfigError; `DualPolicy` supports steps.

    Random numbers are stateless: run i after `seed.assign([s, i - 1])` makes the choices of seed [s, i].

    Attributes:
      graphs: as the method takes them; rollout: its compiled episodes; greedy: whether it takes the most likely choices.
    """

    def __init__(self, network: tf.Module, graphs: tuple, rollout: Rollout, greedy: bool = False, num_features: int = NUM_FEATURES,
                 state_spec=(), name: str = "episode_policy"):
        """Args: num_features: F, what the rollout records of each device."""
        self._network, self.graphs, self.rollout, self.greedy = network, graphs, rollout, greedy
        self.seed = tf.Variable([0, 0], dtype=tf.int32, trainable=False)
        padded, devices = graphs.padded, graphs.padded.num_devices
        info_spec = {"log_probability": tf.TensorSpec([2], tf.float32), "features": tf.TensorSpec([devices, num_features], tf.float32),
                     "mask": tf.TensorSpec([devices], tf.bool)}
        super().__init__(ts.time_step_spec(observation_spec(padded), tensor_spec.TensorSpec([], tf.float32, "reward")), action_spec(padded),
                         policy_state_spec=state_spec, info_spec=info_spec, clip=False, automatic_state_reset=False, name=name)

    def _variables(self) -> list[tf.Variable]:
        return [variable for group in self._network.parameter_groups for variable in group]

    def _action(self, time_step: ts.TimeStep, policy_state, seed=None) -> policy_step.PolicyStep:
        raise ConfigError(f"policy of {self.name}: expected one that takes single steps, as that of doppler, got one that takes whole "
                          "episodes; run it with agents.policies.driver.FusedDriver")


class DualPolicy(EpisodePolicy):
    """Each action is a vertex (SEL) and its device (PLC).

    The encoder runs in `get_initial_state`, which drivers call once a run, and never in a step.

    The policy info carries `log_probability` [2] (vertex, device), PLC's `features` [D, F] and `mask` [D].
    """

    def __init__(self, network: DualNetwork, graphs: PaddedGraphs, greedy: bool = False, name: str = "dual_policy",
                 rollout: Rollout | None = None):
        """Args: greedy: take the most likely instead of sampling; rollout: runs whole episodes, compiled with XLA if None."""
        tables = network.encode(graphs)
        self._tables = Tables(*(tf.Variable(value, trainable=False) for value in tables))
        blocks = graphs.num_vertices // block_size(graphs.num_vertices)
        state_spec = {"placed": tf.TensorSpec([graphs.num_devices, tables.plc_placed.shape[1]], tf.float32),
                      "seed": tf.TensorSpec([2], tf.int32), "now": tf.TensorSpec([], tf.float64),
                      "end": tf.TensorSpec([blocks, block_size(graphs.num_vertices)], tf.float64),
                      "soonest": tf.TensorSpec([blocks], tf.float64)}
        super().__init__(network, graphs, rollout or Rollout(network), greedy, state_spec=state_spec, name=name)

    def _get_initial_state(self, batch_size: int) -> dict[str, tf.Tensor]:
        for variable, value in zip(self._tables, self._network.encode(self.graphs), strict=True):
            variable.assign(value)
        seed = self.seed.assign_add([0, 1])
        empty = {name: tf.zeros([batch_size, *spec.shape], spec.dtype) for name, spec in self.policy_state_spec.items()}
        return {**empty, "seed": tf.tile(tf.identity(seed)[None], [batch_size, 1])}

    def _action(self, time_step: ts.TimeStep, policy_state: dict[str, tf.Tensor], seed=None) -> policy_step.PolicyStep:
        if not isinstance(policy_state, Mapping):
            raise ConfigError("policy: policy_state: expected what get_initial_state(batch_size) or the step before gave, got "
                              f"{shown(policy_state)}")
        state = EpisodeState(**time_step.observation)
        tables = Tables(*(tf.identity(value) for value in self._tables))
        race, placed = self._taken_up(tables, state, time_step.is_first(), policy_state)
        choice = choose(self._network, self.graphs, tables, state, placed, race)
        info = {"log_probability": self._log_probability(tables, state, placed, choice), "features": choice.features, "mask": choice.mask}
        placed = after_placing(self.graphs, tables, state, placed, choice.vertex, choice.device)
        after = place_vertex(self.graphs, state, choice.vertex, choice.device, choice.start_s)
        race = run_on(self.graphs, tables, after, race, choice.vertex)
        return policy_step.PolicyStep({"vertex": choice.vertex, "device": choice.device},
                                      {"placed": placed, "seed": _next(policy_state["seed"], time_step.is_last()), "now": race.now,
                                       "end": race.end, "soonest": race.soonest}, info)

    def _taken_up(self, tables: Tables, state: EpisodeState, first: tf.Tensor, policy_state: dict[str, tf.Tensor]
                  ) -> tuple[Race, tf.Tensor]:
        """Race and sums after the last step; initial ones where an episode begins."""
        greedy = tf.fill(tf.shape(state.graph), self.greedy)
        seed = tf.transpose(policy_state["seed"])[:, :, None]  # of each row, beside the vertices of a row
        fresh = start_race(self.graphs, tables, state, seed, greedy)
        now, end, soonest, placed = (
            tf.where(tf.reshape(first, [-1] + [1] * (new.shape.rank - 1)), new, policy_state[name]) for name, new in
            (("now", fresh.now), ("end", fresh.end), ("soonest", fresh.soonest), ("placed", tf.gather(tables.plc_empty, state.graph))))
        return fresh._replace(now=now, end=end, soonest=soonest), placed

    def _log_probability(self, tables: Tables, state: EpisodeState, placed: tf.Tensor, choice: Choice) -> tf.Tensor:
        """float32 [B, 2]: of the vertex among all candidates, and of the device."""
        size = self.graphs.num_vertices
        # The null vertex, "chosen" by finished episodes, counts as a candidate, so that no row is fully masked.
        mask = candidates(state) | (tf.range(size)[None] == choice.vertex[:, None])
        sel = masked_log_probability(tf.gather(tf.reshape(tables.sel_logit, [-1, size]), state.graph), mask, choice.vertex)
        logits = device_logits(self._network, self.graphs, tables, state, placed, choice.vertex, choice.features)
        return tf.stack([sel.chosen, masked_log_probability(logits, choice.mask, choice.device).chosen], axis=1)


def _next(seed: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """int32 [B, 2]: the seeds, others where an episode has ended, as drivers go on with the state in the episode after it."""
    return seed + tf.cast(last, tf.int32)[:, None] * tf.constant([_EPISODE, 0])
