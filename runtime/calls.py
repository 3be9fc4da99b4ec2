"""What a call is: a kernel, a piece of a captured model, or a larger call, as one operation or function of TensorFlow."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context, core

from doppler_tf.graph.dataflow import Kernel
from runtime import kernels
from runtime.devices import context_of, make_known, server_of
from runtime.fixed_weights import with_constants, with_kept_filters
from runtime.models.captured import CapturedModel, register_functions

# Products alone are left to TensorFlow.
_PRODUCTS = frozenset(("MatMul", "BatchMatMulV2", "Einsum"))
# How calls of several operations are built: as these, or XLA compiles them.
OPERATIONS, XLA = BUILDS = ("operations", "xla")
# Larger weights are tensors on the device, one of each for all calls. Smaller ones are constants of each call, which TensorFlow folds.
_SMALL_BYTES = 1 << 16
_VARIABLES = frozenset(("Placeholder", "VarHandleOp", "AssignVariableOp", "ReadVariableOp"))
_CONTROL_FLOW = frozenset(("While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase", "PartitionedCall"))


class KernelCall:
    """A kernel on operands of given shapes and types.

    XLA makes one loop of elementwise operations that follow each other, and the interpreter is held for one call instead of several.
    XLA does not improve a product of matrices that stands alone: TensorFlow's own operation is faster.

    Attributes:
      name: equal in all processes for kernels that compute the same from operands of the same shapes and types.
      outputs: shape and type of each tensor that it computes.
      output_bytes: their sizes.
      can_warm: a call on zeros does no harm.
    """

    can_warm = True

    def __init__(self, name: str, kernel: Kernel, arguments: Sequence[tf.TensorSpec]):
        """Args: kernel: its operands' vertices are positions in `arguments`."""
        def compute(*tensors: tf.Tensor) -> tf.Tensor:
            return kernels.run_kernel(kernel, [tensors[operand.vertex] for operand in kernel.operands])

        self.name, self._kernel, self._arguments = name, kernel, arguments
        traced = _compiled(compute).get_concrete_function(*arguments)
        # The first operand of each argument: operands that are one tensor are one argument.
        picks = [[o.vertex for o in kernel.operands].index(i) for i in range(len(arguments))]
        position = {tensor.op.name: pick for tensor, pick in zip(traced.inputs, picks, strict=True)}
        last = _source(traced.outputs[0])
        # A function lives as long as it is referred to.
        self._function, self._op, self._picks, self._attributes = traced, traced.name, picks, None
        self._plain, self._compute, self._argument_picks = compute, traced, picks
        if last.name in position:
            self._op, self._picks, self._attributes = "Identity", [position[last.name]], ("T", traced.outputs[0].dtype.as_datatype_enum)
        elif last.type in _PRODUCTS and all(_source(x).name in position for x in last.inputs):
            self._op, self._picks = last.type, [position[_source(x).name] for x in last.inputs]
            self._attributes = tuple(part for attr in last.op_def.attr for part in (attr.name, _value(last, attr.name)))
            self._compute = compute
        self.outputs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in traced.outputs]
        self.output_bytes = [_bytes(spec) for spec in self.outputs]
        self._known, self._warm = set[str](), set[str]()

    def __call__(self, operands: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
        """Computes on a device; operands: in the kernel's order, whole, and there. Raises what TensorFlow raises."""
        if server_of(device) is None:
            if device not in self._known:
                self._make_known(device)
            return execute_on(device, self._op, [operands[i] for i in self._picks], self._attributes, len(self.outputs))
        return execute_on(device, self._served.name, [operands[i] for i in self._argument_picks], None, len(self.outputs))

    @functools.cached_property
    def _served(self):
        return _for_another_process(self._compute, self._arguments)

    def _make_known(self, device: str) -> None:
        make_known(self._function, device)
        self._known.add(device)

    weights: tuple[str, ...] = ()

    def traced(self, operands: Sequence[tf.Tensor], weights: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """The same inside another function that is being traced. Args: weights: frozen variables by name."""
        return [self._plain(*[operands[i] for i in self._argument_picks])]

    def warm(self, device: str) -> None:
        """Makes the first call on a device, which takes many times a later one: XLA compiles, TensorFlow looks for its kernels."""
        if device not in self._warm:
            zeros = [_zeros(spec, device) for spec in self._arguments]
            self([zeros[operand.vertex] for operand in self._kernel.operands], device)
            self._warm.add(device)


class CapturedCall:
    """A function as one call, with the attributes of a KernelCall: a piece of a captured model, or the pieces of a larger call.

    TensorFlow fuses its operations as it does in the whole model (a convolution with its bias and activation, for example).

    Attributes:
      weights: the frozen variables that it takes.
    """

    def __init__(self, name: str, function, parts: Sequence[KernelCall | CapturedCall] = (), model: CapturedModel | None = None,
                 weights: Sequence[str] = (), build: str = OPERATIONS, homes: Sequence[str] = ()):
        """Takes a function.

        Args:
          function: a concrete one, of the operands and then the weights.
          parts: the calls of which it is made.
          build: one of BUILDS.
          homes: where each weight is, if the function runs on several devices.
        """
        self.name, self.weights, self._function, self._parts = name, tuple(weights), function, parts
        self._model, self._compiled, self._homes = model, build == XLA, homes or [""] * len(weights)
        self._large = [_bytes(model.weight_spec(name)) > _SMALL_BYTES for name in weights]
        self._arguments = [tf.TensorSpec(x.shape, x.dtype) for x in function.inputs[:len(function.inputs) - len(weights)]]
        self.outputs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in function.outputs]
        self.output_bytes = [_bytes(spec) for spec in self.outputs]
        self._attributes = None if self._compiled else ("executor_type", "", "config_proto", _settings())
        # Zeros are no good input for a loop, which might not end, or for an operation that keeps a state.
        self.can_warm = all(part.can_warm for part in parts) if parts else all(
            op.type in _VARIABLES or not (op.op_def.is_stateful or op.type in _CONTROL_FLOW) for op in function.graph.get_operations())
        self._making = threading.Lock()  # executors share calls, and two may make the first at once
        self.forget()

    def forget(self) -> None:
        """Drops what was made for the first call."""
        self._called, self._served = dict[Any, Any](), None
        self._taken, self._warm = dict[str, tuple[str, list[tf.Tensor], Any]](), set[str]()

    def __call__(self, operands: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
        """As KernelCall's."""
        name, weights, _ = self._taken.get(device) or self._make_known(device)  # the function lives until the call has returned
        return execute_on(device, name, [*operands, *weights], self._attributes, len(self.outputs))

    def _make_known(self, device: str) -> tuple[str, list[tf.Tensor], Any]:
        """Name, weights and function of a call on a device."""
        with self._making:  # not while weights are sent, as another machine might not answer
            kind = "GPU" in device
            if kind not in self._called:
                self._called[kind] = self._built(device)
            called = self._called[kind]
            if self._compiled and server_of(device) is not None:
                self._served = self._served or _for_another_process(called, [tf.TensorSpec(x.shape, x.dtype) for x in called.inputs])
                called = self._served
        make_known(called, device)
        large = itertools.compress(zip(self.weights, self._homes, strict=True), self._large)
        self._taken[device] = made = called.name, [resident(self._model, name, home or device) for name, home in large], called
        return made

    def _built(self, device: str):
        """What is called. Its kernels keep the weights of the first call, so that no other call may share it."""
        if not self.weights and not self._compiled:
            return self._function
        model, function, count = self._model, self._function, len(self._arguments)
        values = [None if large else model.weight(name) for name, large in zip(self.weights, self._large, strict=True)]
        graph, returned = with_constants(function, values, self._homes), [x.name for x in function.outputs]
        taken = [x.op.name for x, value in zip(function.inputs, [*[None] * count, *values], strict=True) if value is None]
        if not self._compiled and "GPU" not in device:
            wanted = [*returned, *(op.name for op in function.graph.control_outputs)]
            graph = with_kept_filters(graph, taken[count:], wanted, config_pb2.ConfigProto.FromString(_settings()))
        graph = tf.compat.v1.GraphDef(node=[node for node in graph.node if node.op != "Placeholder"], library=graph.library,
                                      versions=graph.versions)
        used = {text.partition(":")[0] for node in graph.node for text in node.input}

        def compute(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = {f"{name}:0": tensor for name, tensor in zip(taken, tensors, strict=True) if name in used}
            return tf.import_graph_def(graph, given, returned, name="")

        register_functions(graph)
        made = _compiled(compute) if self._compiled else tf.function(compute, autograph=False)
        large = [model.weight_spec(name) for name in itertools.compress(self.weights, self._large)]
        return made.get_concrete_function(*self._arguments, *large)

    def traced(self, operands: Sequence[tf.Tensor], weights: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        """As KernelCall's."""
        return list(self._function(*operands, *[weights[name] for name in self.weights]))

    def warm(self, device: str) -> None:
        """As KernelCall's; does nothing where the first call must be one of the run."""
        if device not in self._warm and self.can_warm:
            with contextlib.suppress(tf.errors.OpError):  # zeros may be no input for it
                self(self.zeros(device), device)
        self._warm.add(device)

    def zeros(self, device: str) -> list[tf.Tensor]:
        """Operands of a call that does nothing of use."""
        return [_zeros(spec, device) for spec in self._arguments]


def resident(model: CapturedModel, name: str, device: str) -> tf.Tensor:
    """A frozen variable on a device, the same for all who ask, for as long as one of them keeps it. Logical CPUs share one buffer."""
    held = model.resident.setdefault(name, weakref.WeakValueDictionary())
    found = held.get(device)
    if found is None:
        value = next((x for there, x in held.items() if server_of(there) is None), None)
        value = tf.constant(model.weight(name)) if value is None else value
        found = held[device] = execute_on(device, "Identity", [value], ("T", value.dtype.as_datatype_enum))[0]
    return found


def execute_on(device: str, operation: str, inputs: list[tf.Tensor], attributes: tuple | None = None, outputs: int = 1) -> list[tf.Tensor]:
    """Executes an operation, or a function by its name, on a device, and returns its outputs.

    TensorFlow's public ways (`tf.device`, `tf.raw_ops`, calling a function) do the same and hold the interpreter 10 to 70 us longer.

    Args:
      attributes: names and values in turn; outputs: how many there are.

    Raises:
      tf.errors.OpError: as the public ways do.
    """
    try:
        return pywrap_tfe.TFE_Py_Execute(context_of(device), device, operation, inputs, attributes, outputs)
    except core._NotOkStatusException as error:
        raise core._status_to_exception(error) from None


def finish_on(device: str) -> None:
    """Waits for a GPU of this process, whose operations return when they are enqueued. It waits for the stream of that device alone."""
    if "GPU" in device and server_of(device) is None:
        with tf.device(device):
            tf.raw_ops.SyncDevice()


def _zeros(spec: tf.TensorSpec, device: str) -> tf.Tensor:
    """Made there. TensorFlow's `zeros` holds Python's lock for as long as another machine does not answer."""
    given = [tf.constant(spec.shape, tf.int32), tf.zeros([], spec.dtype)]
    # Where two threads fill tensors on one device, TensorFlow 2.21 may give each the shape of the other (its issue 62523).
    with _FILLING.setdefault(device, threading.Lock()):
        return execute_on(device, "Fill", given, ("T", spec.dtype.as_datatype_enum, "index_type", tf.int32.as_datatype_enum))[0]


def _settings() -> bytes:
    """Without them TensorFlow would not fuse operations of a function. One round of its optimizer does, and takes half the time."""
    found = config_pb2.ConfigProto.FromString(context.context().function_call_options.config_proto_serialized)
    found.graph_options.rewrite_options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    found.graph_options.rewrite_options.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    return found.SerializeToString()


_FILLING: dict[str, threading.Lock] = {}


def _compiled(compute: Callable[..., Any]):
    """A function that XLA compiles.

    A machine that others use keeps what it has compiled by the function's name and shapes, also for the next process that uses it, whose
    functions might have the same names.
    """
    compute.__name__ = f"{compute.__name__}_{_PROCESS}"
    return tf.function(compute, autograph=False, jit_compile=True)


_PROCESS = uuid.uuid4().hex


def _for_another_process(compute: Callable[..., Any], arguments: Sequence[tf.TensorSpec]):
    """The same, as another process does not take a function that XLA must compile unless it is part of another."""
    return tf.function(lambda *tensors: compute(*tensors), autograph=False).get_concrete_function(*arguments)


def _bytes(spec: tf.TensorSpec) -> int:
    return spec.shape.num_elements() * spec.dtype.size


def _source(tensor: tf.Tensor) -> tf.Operation:
    """What computes a tensor of a traced function."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor.op


def _value(op: tf.Operation, attribute: str) -> object:
    """An attribute as `execute_on` takes it."""
    value = op.get_attr(attribute)
    return value.as_datatype_enum if isinstance(value, tf.DType) else value
