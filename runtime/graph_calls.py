"""The call of each vertex of a graph; equal vertices share one."""

from __future__ import annotations

import functools
import hashlib
import json
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from doppler_tf.errors import GraphError, UserError
from doppler_tf.graph.dataflow import MERGED, DataflowGraph, Kernel, Operand
from doppler_tf.graph.frozen import frozen_weights
from runtime.calls import OPERATIONS, XLA, CapturedCall, KernelCall
from runtime.models.captured import CapturedModel, Work, captured_model, piece_function, piece_key
from runtime.process_memory import available_bytes

CAPTURED = "captured"
# Calls that a process keeps, those used last.
_KEPT = 8192


def kernel_calls(graph: DataflowGraph, inputs: Mapping[int, tf.TensorSpec], build: str = OPERATIONS) -> dict[int, KernelCall]:
    """The call of every vertex; equal kernels on equal shapes share one.

    Args:
      inputs: shape and type of each input vertex that has consumers, by vertex; an input vertex has one output.
      build: as CapturedCall's.

    Raises:
      GraphError: a kernel that is unknown, lacks parameters or does not fit its operands.
    """
    specs, calls = {(v, 0): spec for v, spec in inputs.items()}, {}
    for v in graph.topological_order.tolist():
        if graph.is_input[v]:
            continue
        kernel = graph.kernel[v]
        operands = [specs[operand.vertex, operand.output] for operand in kernel.operands]
        try:
            calls[v] = _call_of(graph, kernel, operands, build)
        except UserError:
            raise
        except Exception as error:  # whatever tracing makes of parameters that somebody wrote
            reason, shapes = f"{type(error).__name__}: {error}".splitlines()[0], ", ".join(str(spec.shape) for spec in operands)
            raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)!r}: kernel: expected one that fits its operands, got "
                             f"{kernel.op} of shapes {shapes} ({reason}); mend the kernel") from error
        outputs = calls[v].outputs
        named = int(graph.tensor_ptr[v + 1] - graph.tensor_ptr[v])
        if len(outputs) != named:
            raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)!r}: kernel: expected {named} outputs, as edges and output_bytes "
                             f"name, got {len(outputs)} of {kernel.op}; mend the kernel or the edges")
        specs.update({(v, k): spec for k, spec in enumerate(outputs)})
    return calls


def weights_fit(graph: DataflowGraph, copies: int) -> bool:
    """Whether there is memory for so many copies of the weights of a captured graph."""
    tensors = graph.tensor_ptr[list(frozen_weights(graph).values())]
    return copies * float(np.nansum(graph.tensor_bytes[tensors])) <= available_bytes()


def kernel_key(kernel: Kernel, operands: Sequence[tuple[tf.TensorShape, tf.DType]]) -> tuple:
    """Equal for kernels that compute the same from operands of the same shapes and types, and so take equally long."""
    tensors = list(dict.fromkeys((operand.vertex, operand.output) for operand in kernel.operands))
    places = tuple((tensors.index((operand.vertex, operand.output)), operand.slice) for operand in kernel.operands)
    arguments = {place: (tuple(shape), dtype.name) for (place, _), (shape, dtype) in zip(places, operands, strict=True)}
    return kernel.op, json.dumps(kernel.params, sort_keys=True), places, tuple(arguments.values())


class _Identity(NamedTuple):
    """A kernel as itself: its parameters have no hash."""

    kernel: Kernel

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.kernel is other.kernel

    def __hash__(self) -> int:
        return id(self.kernel)


def _call_of(graph: DataflowGraph, kernel: Kernel, operands: Sequence[tf.TensorSpec], build: str) -> KernelCall | CapturedCall:
    if kernel.op == MERGED:
        return _merged_call(graph, kernel, operands, build)
    if kernel.op == CAPTURED:
        return piece_call(captured_model(graph.attributes["captured"]["model"]), Work.of(kernel.params), build)
    return _call_on(_Identity(kernel), *[(spec.shape, spec.dtype) for spec in operands])


def _merged_call(graph: DataflowGraph, kernel: Kernel, operands: Sequence[tf.TensorSpec], build: str) -> CapturedCall:
    """The calls of several vertices as one; equal ones are shared for as long as one of them is kept."""
    steps, known, parts = kernel.params["steps"], [[spec] for spec in operands], []
    for step in steps:
        taken = [(o["from"], o["output"]) for o in step["operands"]]
        inner = Kernel(step["op"], tuple(Operand(f, o["slice"] and tuple(map(tuple, o["slice"])), k)
                                         for o, (f, k) in zip(step["operands"], taken, strict=True)), step["params"])
        call = _call_of(graph, inner, [known[f][k] for f, k in taken], build)
        known.append(call.outputs)
        parts.append((call, taken))
    outputs = [(i, k) for i, k in kernel.params["outputs"]]
    shapes = [(tuple(spec.shape), spec.dtype.name) for spec in operands]
    digest = hashlib.sha256(repr((shapes, [(call.name, taken) for call, taken in parts], outputs)).encode()).hexdigest()
    # A merged call keeps its parts, so that no others get their identities.
    key = digest, build == XLA, *(id(call) for call, _ in parts)
    found = _MERGED.get(key)
    if found is None:
        weights = list(dict.fromkeys(name for call, _ in parts for name in call.weights))

        def compute(*tensors: tf.Tensor) -> list[tf.Tensor]:
            made, given = [[tensor] for tensor in tensors[:len(operands)]], dict(zip(weights, tensors[len(operands):], strict=True))
            for call, taken in parts:
                made.append(call.traced([made[f][k] for f, k in taken], given))
            return [made[i][k] for i, k in outputs]

        model = captured_model(graph.attributes["captured"]["model"]) if weights else None
        specs = [*operands, *(model.weight_spec(name) for name in weights)]
        function = tf.function(compute, autograph=False).get_concrete_function(*[tf.TensorSpec(x.shape, x.dtype) for x in specs])
        found = _MERGED[key] = CapturedCall(f"{MERGED} {digest[:20]}", function, [call for call, _ in parts], model, weights, build)
    return found


def piece_call(model: CapturedModel, work: Work, build: str = OPERATIONS) -> CapturedCall:
    """A piece as a call, kept with its model. Equal pieces share a function, those with the same weights, or without any, a call."""
    if (work, build) in model.calls:
        return model.calls[work, build]
    key, variables = piece_key(model, work), tuple(variable for _, variable in work.weights)
    owner = model if variables else None  # what other models share must not keep this one
    call = _PIECES.get((key, build, variables, id(owner)))
    if call is None:
        function = _FUNCTIONS.get(key)
        if function is None:
            function = _FUNCTIONS[key] = piece_function(model, work.bare)
        call = _PIECES[key, build, variables, id(owner)] = CapturedCall(f"{CAPTURED} {key[:20]}", function, (), owner, variables, build)
    model.calls[work, build] = call
    return call


_FUNCTIONS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_PIECES: weakref.WeakValueDictionary[tuple[str, str, tuple[str, ...], int], CapturedCall] = weakref.WeakValueDictionary()
_MERGED: weakref.WeakValueDictionary[tuple, CapturedCall] = weakref.WeakValueDictionary()


@functools.lru_cache(_KEPT)
def _call_on(kernel: _Identity, *operands: tuple[tf.TensorShape, tf.DType]) -> KernelCall:
    return _call(*kernel_key(kernel.kernel, operands))


@functools.lru_cache(_KEPT)
def _call(op: str, params: str, places: tuple, arguments: tuple) -> KernelCall:
    kernel = Kernel(op, tuple(Operand(*place) for place in places), json.loads(params))
    name = f"{op} {hashlib.sha256(repr((op, params, places, arguments)).encode()).hexdigest()[:20]}"
    return KernelCall(name, kernel, [tf.TensorSpec(shape, dtype) for shape, dtype in arguments])
