"""The yardstick of `runtime`: TensorFlow's own executor on the same assignment, as device scopes in one `tf.function`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from doppler_tf.graph import DataflowGraph
from runtime.kernels import run_kernel


class TensorFlowGraph:
    """One graph under one assignment; inputs are placed once, where they are first used, copies are TensorFlow's own business."""

    def __init__(self, graph: DataflowGraph, device: np.ndarray, inputs: Mapping[int, np.ndarray], fetch: Sequence[int],
                 devices: Sequence[str]):
        """Args: device: int32 [N]; inputs, fetch: as the runtime's executor takes them; devices: TensorFlow device names."""
        self._graph, self._device, self._fetch, self._devices = graph, device.tolist(), fetch, devices
        placed = {}
        for u, v in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True):
            if u in inputs and u not in placed:
                with tf.device(devices[self._device[v]]):
                    placed[u] = tf.identity(inputs[u])
        self._inputs = placed
        self._call = tf.function(self._compute)

    def run(self) -> dict[int, np.ndarray]:
        """Computes everything; the arrays to fetch, by vertex."""
        return {v: tensor.numpy() for v, tensor in zip(self._fetch, self._call(), strict=True)}

    def _compute(self) -> list[tf.Tensor]:
        made = dict(self._inputs)
        for v in self._graph.topological_order.tolist():
            if not self._graph.is_input[v]:
                with tf.device(self._devices[self._device[v]]):
                    made[v] = run_kernel(self._graph.kernel[v], [made[operand.vertex] for operand in self._graph.kernel[v].operands])
        return [made[v] for v in self._fetch]
