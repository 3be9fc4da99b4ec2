"""TensorFlow's own executor on an assignment: device scopes in one function. It has no trace, and so it is no Executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from doppler_tf.graph.dataflow import DataflowGraph
from runtime.calls import CapturedCall
from runtime.graph_calls import CAPTURED, kernel_calls
from runtime.kernels import run_kernel
from runtime.models.captured import captured_model


class TensorFlowGraph:
    """One graph under one assignment.

    TensorFlow knows no exclusive devices: its threads take any operation of any device that is ready.
    """

    def __init__(self, graph: DataflowGraph, device: np.ndarray, inputs: Mapping[int, np.ndarray], fetch: Sequence[int],
                 devices: Sequence[str]):
        """Args: device: int32 [N]; inputs, fetch: as the runtime's executor takes them; devices: TensorFlow device names."""
        self._graph, self._device, self._fetch, self._devices = graph, device.tolist(), tuple(fetch), devices
        self._taken = sorted(graph.taken_inputs)
        self._inputs = {v: tf.convert_to_tensor(inputs[v]) for v in self._taken}
        specs = {v: tf.TensorSpec(x.shape, x.dtype) for v, x in self._inputs.items()}
        self._calls = kernel_calls(graph, specs) if any(
            kernel is not None and kernel.op == CAPTURED for kernel in graph.kernel) else {}
        used = [(name, devices[self._device[v]]) for v, call in self._calls.items() for name in call.weights]
        model = captured_model(graph.attributes["captured"]["model"]) if used else None
        self._weights = list(dict.fromkeys(used))  # with the device of each
        names, homes = [name for name, _ in self._weights], [device for _, device in self._weights]
        wanted = [*(specs[v] for v in self._taken), *map(model.weight_spec, names)] if used else [specs[v] for v in self._taken]
        self._call = CapturedCall("whole", tf.function(self._compute, autograph=False).get_concrete_function(*wanted), (), model, names,
                                  homes=homes)

    def run(self) -> dict[int, np.ndarray]:
        """Computes everything from the inputs given at first; the arrays to fetch, by tensor."""
        return {t: tensor.numpy() for t, tensor in self({}).items()}

    def __call__(self, inputs: Mapping[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """The tensors to fetch. Args: inputs: by input vertex, where they are others than those given at first."""
        operands = [tf.convert_to_tensor(inputs[v]) if v in inputs else self._inputs[v] for v in self._taken]
        return dict(zip(self._fetch, self._call(operands, self._devices[0]), strict=True))

    def _compute(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        given, weights = dict(zip(self._taken, tensors, strict=False)), dict[str, dict[str, tf.Tensor]]()
        for (name, device), tensor in zip(self._weights, tensors[len(self._taken):], strict=True):
            weights.setdefault(device, {})[name] = tensor
        first = self._graph.tensor_ptr.tolist()
        made = {first[v]: tensor for v, tensor in given.items()}
        for v in self._graph.topological_order.tolist():
            if not self._graph.is_input[v]:
                kernel, device = self._graph.kernel[v], self._devices[self._device[v]]
                with tf.device(device):
                    operands = [made[first[operand.vertex] + operand.output] for operand in kernel.operands]
                    outputs = (self._calls[v].traced(operands, weights.get(device, {})) if v in self._calls else
                               [run_kernel(kernel, operands)])
                made.update(enumerate(outputs, start=first[v]))
        return [made[t] for t in self._fetch]
