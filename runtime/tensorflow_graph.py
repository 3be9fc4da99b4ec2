"""TensorFlow's own executor on an assignment: device scopes in one `tf.function`. A yardstick, not an Executor: it has no trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from doppler_tf.graph import DataflowGraph, Operand
from runtime.calls import CAPTURED, kernel_calls
from runtime.kernels import run_kernel


class TensorFlowGraph:
    """One graph under one assignment; inputs are placed once, where they are first used.

    Between logical devices of one CPU TensorFlow shares buffers; with `copies` each tensor is copied once to every other device that
    uses it, as the engine does. TensorFlow knows no exclusive devices: its threads take any operation of any device that is ready.
    """

    def __init__(self, graph: DataflowGraph, device: np.ndarray, inputs: Mapping[int, np.ndarray], fetch: Sequence[int],
                 devices: Sequence[str], copies: bool):
        """Args: device: int32 [N]; inputs, fetch: as the runtime's executor takes them; devices: TensorFlow device names."""
        self._graph, self._device, self._fetch, self._devices, self._copies = graph, device.tolist(), fetch, devices, copies
        placed = {}
        for u, v in zip(graph.sources.tolist(), graph.targets.tolist(), strict=True):
            if u in inputs and u not in placed:
                with tf.device(devices[self._device[v]]):
                    placed[u] = tf.identity(inputs[u])
        self._inputs = placed
        self._calls = kernel_calls(graph, {v: tf.TensorSpec(x.shape, x.dtype) for v, x in placed.items()}) if any(
            kernel is not None and kernel.op == CAPTURED for kernel in graph.kernel) else {}
        self._call = tf.function(self._compute)

    def run(self) -> dict[int, np.ndarray]:
        """Computes everything; the arrays to fetch, by tensor."""
        return {t: tensor.numpy() for t, tensor in zip(self._fetch, self._call(), strict=True)}

    def _compute(self) -> list[tf.Tensor]:
        made: dict[tuple[int, int], tf.Tensor] = {}  # by tensor and device
        first = self._graph.tensor_ptr.tolist()
        for v in self._graph.topological_order.tolist():
            if not self._graph.is_input[v]:
                kernel, d = self._graph.kernel[v], self._device[v]
                with tf.device(self._devices[d]):
                    operands = [self._operand(made, operand, d) for operand in kernel.operands]
                    outputs = self._calls[v].traced(operands) if v in self._calls else [run_kernel(kernel, operands)]
                made.update({(t, d): output for t, output in enumerate(outputs, start=first[v])})
        return [made[t, self._device[self._graph.tensor_producer[t]]] for t in self._fetch]

    def _operand(self, made: dict[tuple[int, int], tf.Tensor], operand: Operand, device: int) -> tf.Tensor:
        if self._graph.is_input[operand.vertex]:
            return self._inputs[operand.vertex]
        tensor = int(self._graph.tensor_ptr[operand.vertex]) + operand.output
        if (tensor, device) not in made:
            whole = made[tensor, self._device[operand.vertex]]
            made[tensor, device] = tf.raw_ops.DeepCopy(x=whole) if self._copies else whole
        return made[tensor, device]
