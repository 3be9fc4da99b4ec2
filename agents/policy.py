"""SEL and PLC together as one TF-Agents policy."""

from __future__ import annotations

import tensorflow as tf
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step
from tf_agents.trajectories import time_step as ts

from agents.driver import after_placing, choose, step_seed
from agents.environment import action_spec, observation_spec
from agents.episode import DEVICE_FEATURES, EpisodeState, GraphBatch
from agents.networks import DualNetwork, Tables


class DualPolicy(tf_policy.TFPolicy):
    """Each action is a vertex (SEL) and its device (PLC).

    The encoder runs in `get_initial_state`, which drivers call once a run, and never in a step. Random numbers are stateless: run i
    after `seed.assign([s, i - 1])` makes the choices that `FusedDriver.run` makes with seed [s, i].

    The policy info carries what an update needs: `log_probability` [2] (vertex, device), PLC's `features` [D, F] and `mask` [D].
    """

    def __init__(self, network: DualNetwork, batch: GraphBatch, temperature: float = 1.0, name: str = "dual_policy"):
        """Args: temperature: 1 samples (collect), 0 takes the most likely (greedy)."""
        self._network, self._batch, self._temperature = network, batch, temperature
        tables = network.encode(batch)
        self._tables = Tables(*(tf.Variable(value, trainable=False) for value in tables))
        self.seed = tf.Variable([0, 0], dtype=tf.int32, trainable=False)
        devices, hidden = batch.num_devices, tables.plc_placed.shape[1]
        state_spec = {"placed": tf.TensorSpec([devices, hidden], tf.float32), "step": tf.TensorSpec([], tf.int32),
                      "seed": tf.TensorSpec([2], tf.int32)}
        super().__init__(ts.time_step_spec(observation_spec(batch), tensor_spec.TensorSpec([], tf.float32, "reward")), action_spec(batch),
                         policy_state_spec=state_spec, info_spec=info_spec(batch), clip=False, automatic_state_reset=False, name=name)

    def _variables(self) -> list[tf.Variable]:
        return self._network.sel_variables + self._network.plc_variables

    def _get_initial_state(self, batch_size: int) -> dict[str, tf.Tensor]:
        for variable, value in zip(self._tables, self._network.encode(self._batch), strict=True):
            variable.assign(value)
        seed = self.seed.assign_add([0, 1])
        placed = tf.zeros([batch_size, *self.policy_state_spec["placed"].shape])
        return {"placed": placed, "step": tf.zeros([batch_size], tf.int32), "seed": tf.tile(tf.identity(seed)[None], [batch_size, 1])}

    def _action(self, time_step: ts.TimeStep, policy_state: dict[str, tf.Tensor], seed=None) -> policy_step.PolicyStep:
        state = EpisodeState(**time_step.observation)
        first = time_step.is_first()[:, None, None]
        placed = tf.where(first, 0.0, policy_state["placed"])
        tables = Tables(*(tf.identity(value) for value in self._tables))
        temperature = tf.fill(tf.shape(state.graph), self._temperature)
        choice = choose(self._network, self._batch, tables, state, placed, step_seed(policy_state["seed"][0], policy_state["step"][0]),
                        temperature)
        placed = after_placing(self._batch, tables, state, placed, choice.vertex, choice.device)
        info = {"log_probability": choice.log_p, "features": choice.features, "mask": choice.mask}
        return policy_step.PolicyStep({"vertex": choice.vertex, "device": choice.device},
                                      {"placed": placed, "step": policy_state["step"] + 1, "seed": policy_state["seed"]}, info)


def info_spec(batch: GraphBatch) -> dict[str, tf.TensorSpec]:
    """Specs of the policy info."""
    devices = batch.num_devices
    return {"log_probability": tf.TensorSpec([2], tf.float32),
            "features": tf.TensorSpec([devices, len(DEVICE_FEATURES["relational"])], tf.float32), "mask": tf.TensorSpec([devices], tf.bool)}
