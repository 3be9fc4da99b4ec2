"""Each kernel as one call: compiled by XLA where it takes several operations, an eager operation where it is one."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context, execute

from doppler_tf.errors import GraphError
from doppler_tf.graph import DataflowGraph, Kernel, Operand
from runtime import kernels

# Calls that a process keeps, those used last.
_KEPT = 8192
# Products alone are left to TensorFlow.
_PRODUCTS = frozenset(("MatMul", "BatchMatMulV2", "Einsum"))
_NO_WORK = frozenset(("Placeholder", "Const", "Identity", "NoOp"))


class KernelCall:
    """A kernel on operands of given shapes and types.

    XLA makes one loop of elementwise operations that follow each other, and the interpreter is held for one call instead of several.
    A single operation gains nothing by that: TensorFlow's own product of matrices is faster than XLA's.

    Attributes:
      name: equal in all processes for kernels that compute the same from operands of the same shapes and types.
      output: shape and type of what it computes.
      output_bytes: its size.
    """

    def __init__(self, name: str, kernel: Kernel, arguments: Sequence[tf.TensorSpec]):
        """Args: kernel: its operands' vertices are positions in `arguments`."""
        def compute(*tensors: tf.Tensor) -> tf.Tensor:
            return kernels.run_kernel(kernel, [tensors[operand.vertex] for operand in kernel.operands])

        self.name, self._kernel, self._arguments = name, kernel, arguments
        traced = tf.function(compute, jit_compile=True, autograph=False).get_concrete_function(*arguments)
        work = [op.type for op in traced.graph.get_operations() if op.type not in _NO_WORK]
        # A function lives as long as it is referred to.
        self._function = traced if len(work) > 1 or not _PRODUCTS.issuperset(work) else None
        self._function_name = traced.name
        # The first operand of each argument: operands that are one tensor are one argument.
        self._picks = [[o.vertex for o in kernel.operands].index(i) for i in range(len(arguments))]
        self.output = tf.TensorSpec(traced.outputs[0].shape, traced.outputs[0].dtype)
        self.output_bytes = self.output.shape.num_elements() * self.output.dtype.size
        self._warm: set[str] = set()

    def __call__(self, operands: Sequence[tf.Tensor]) -> tf.Tensor:
        """Computes on the current device; operands: in the kernel's order, whole. Raises what TensorFlow raises."""
        if self._function is None:
            return kernels.run_kernel(self._kernel, operands)
        # Calling the concrete function itself would keep the interpreter 70 us longer.
        return execute.quick_execute(self._function_name, 1, [operands[i] for i in self._picks], None, context.context())[0]

    def warm(self, device: str) -> None:
        """Makes the first call on a device, which takes many times a later one: XLA compiles, TensorFlow looks for its kernels."""
        if device not in self._warm:
            with tf.device(device):
                zeros = [tf.zeros(spec.shape, spec.dtype) for spec in self._arguments]
                self([zeros[operand.vertex] for operand in self._kernel.operands])
            self._warm.add(device)


def run_kernel(kernel: Kernel, operands: Sequence[tf.Tensor]) -> tf.Tensor:
    """Executes one kernel on the current device in one call; operands: the whole outputs of its operands' vertices, in order."""
    return _call_on(_Identity(kernel), *[(x.shape, x.dtype) for x in operands])(operands)


def kernel_calls(graph: DataflowGraph, inputs: Mapping[int, tf.TensorSpec]) -> dict[int, KernelCall]:
    """The call of every vertex; equal kernels on equal shapes share one.

    Args:
      inputs: shape and type of each input vertex that has consumers, by vertex.

    Raises:
      GraphError: a kernel that is unknown, lacks parameters or does not fit its operands.
    """
    specs, calls = dict(inputs), {}
    for v in graph.topological_order.tolist():
        if graph.is_input[v]:
            continue
        kernel = graph.kernel[v]
        operands = [specs[operand.vertex] for operand in kernel.operands]
        try:
            calls[v] = _call_on(_Identity(kernel), *[(spec.shape, spec.dtype) for spec in operands])
        except Exception as error:  # whatever tracing makes of parameters that somebody wrote
            reason, shapes = f"{type(error).__name__}: {error}".splitlines()[0], ", ".join(str(spec.shape) for spec in operands)
            raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)!r}: kernel: expected one that fits its operands, got "
                             f"{kernel.op} of shapes {shapes} ({reason}); mend the kernel") from error
        specs[v] = calls[v].output
    return calls


def kernel_key(kernel: Kernel, operands: Sequence[tuple[tf.TensorShape, tf.DType]]) -> tuple:
    """Equal for kernels that compute the same from operands of the same shapes and types, and so take equally long."""
    vertices = list(dict.fromkeys(operand.vertex for operand in kernel.operands))
    places = tuple((vertices.index(operand.vertex), operand.slice) for operand in kernel.operands)
    arguments = {place: (tuple(shape), dtype.name) for (place, _), (shape, dtype) in zip(places, operands, strict=True)}
    return kernel.op, json.dumps(kernel.params, sort_keys=True), places, tuple(arguments.values())


class _Identity(NamedTuple):
    """A kernel as itself: its parameters have no hash."""

    kernel: Kernel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.kernel is other.kernel

    def __hash__(self) -> int:
        return id(self.kernel)


@functools.lru_cache(_KEPT)
def _call_on(kernel: _Identity, *operands: tuple[tf.TensorShape, tf.DType]) -> KernelCall:
    return _call(*kernel_key(kernel.kernel, operands))


@functools.lru_cache(_KEPT)
def _call(op: str, params: str, places: tuple, arguments: tuple) -> KernelCall:
    kernel = Kernel(op, tuple(Operand(*place) for place in places), json.loads(params))
    name = f"{op} {hashlib.sha256(repr((op, params, places, arguments)).encode()).hexdigest()[:20]}"
    return KernelCall(name, kernel, [tf.TensorSpec(shape, dtype) for shape, dtype in arguments])
