"""What a user gives (a function, a Keras model) becomes one concrete function: arguments of known shapes and types, outputs with names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from data.capture.calls.binding import Argument, Binding, Call, UsualCall, bind_example
from data.capture.calls.held import first_use
from data.capture.calls.raised import in_one_line
from data.capture.calls.signature import signature_of
from data.capture.calls.structure import is_composite, kind, leaves, parts
from data.capture.program import Variable, unique
from data.python_files import LIBRARIES, raised_at
from doppler_tf.errors import ConfigError, field_error

# Types that NumPy lacks, or holds as others.
_NO_NUMBERS = (tf.string, tf.resource, tf.variant, tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32)


@dataclass(frozen=True)
class Output:
    """A tensor that the function returns: its path, the tensor ("op:k"), and the type of the composite tensor that it is a part of."""

    name: str
    tensor: str
    composite: str

    @property
    def record(self) -> dict[str, str]:
        """What files say of it."""
        return {"name": self.name, **({"composite": self.composite} if self.composite else {})}


@dataclass(frozen=True)
class Concrete:
    """A function that is ready to be read.

    Attributes:
      function: as TensorFlow traced it.
      binding: how it is called.
      arguments: in order.
      outputs: in order.
      variables: by placeholder; `handles` are their resources, by name.
      constants: tensors that the function holds beside variables, by placeholder.
    """

    function: Any
    binding: Binding
    arguments: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    variables: dict[str, Variable]
    handles: dict[str, tf.Tensor]
    constants: dict[str, tf.Tensor]
    _usual: list[UsualCall] = field(default_factory=list, init=False, repr=False, compare=False)

    def call(self, args: Sequence, kwargs: Mapping[str, Any]) -> Call:
        """What a call gives. Raises ConfigError: as `Binding.call`."""
        for usual in self._usual:
            if (call := usual.bound(args, kwargs)) is not None:
                return call
        call = self.binding.call(self.arguments, args, kwargs)
        if not call.misfit and (usual := UsualCall.of(self.binding, self.arguments, args, kwargs)) is not None:
            self._usual[:] = [usual]
        return call

    def packed(self, tensors: Sequence[tf.Tensor]) -> Any:
        """The results in the structure that the function returns. Args: tensors: the outputs, in order."""
        return self.binding.signature.pack(self.function, tensors)

    def run(self, call: Call, handles: Mapping[str, tf.Tensor]) -> Any:
        """The results of a call whose shapes and types may be others, by the function itself.

        Args: handles: resources that stand for its variables, by name.

        Raises:
          ConfigError: the function does not take such a call.
        """
        signature, names = self.binding.signature, {id(handle): name for name, handle in self.handles.items()}
        try:
            traced = signature.trace(call.specs(signature.where))
            captured = [handles.get(names.get(id(handle)), handle) for handle in traced.captured_inputs]
            flat = traced.inference_fn.call_flat(*call.tensors.values(), *captured)
        except Exception as error:  # whatever the user's code or an operation raises
            raise ConfigError(f"{signature.where}: {call.misfit}, with which the original fails as a tf.function, too: {_reason(error)}"
                              f"{raised_at(error)}; give it what it takes") from error
        return signature.pack(traced, flat)


def concrete(function, example_inputs, where: str, example_keywords: Mapping[str, Any] | None = None) -> Concrete:
    """Traces the function, unless it is traced already.

    Args:
      function: a tf.function, a ConcreteFunction, a Keras model or any callable.
      example_inputs: a tuple holds the positional arguments, anything else is the only one; arrays, tensors, TensorSpecs and Python
        values, in structures. None where the function says of itself what it takes.
      example_keywords: arguments by name.

    Raises:
      ConfigError: it raises while it is traced, shapes are unknown, or it takes or makes what is no tensor of numbers.
    """
    binding = bind_example(signature_of(function, where), example_inputs, example_keywords)
    try:
        traced = binding.signature.trace(binding.values)
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{where}: expected a function that can be traced, got {_reason(error)}{raised_at(error)}; mend it, or check "
                          "the shapes and types of its inputs") from error
    with in_one_line(where):
        captured = list(zip(traced.captured_inputs, traced.inputs[_explicit(traced):], strict=True))
        variables, handles = _variables(traced, captured, where)
        constants = {inner.op.name: external for external, inner in captured if inner.op.name not in variables}
        for name, tensor in constants.items():
            if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "numpy") or tensor.dtype in (tf.resource, tf.variant):
                raise _held(traced, name, tensor, where)
        return Concrete(traced, binding, _arguments(traced, binding), _outputs(traced, where), variables, handles, constants)


def _held(traced, placeholder: str, tensor, where: str) -> ConfigError:
    """What says that the function holds something that is neither variable nor constant."""
    use = first_use(traced.graph.as_graph_def(), placeholder)
    dtype = getattr(getattr(tensor, "dtype", None), "name", type(tensor).__name__)
    told = f"{dtype} {placeholder!r}" if use is None else f"{dtype} {placeholder!r} for {use[0]!r} ({use[1]}), which {use[2].value[0]}"
    remedy = "pass what it gives as an argument" if use is None else use[2].value[1]
    return ConfigError(f"{where}: expected variables and constants in the function, got {told}; {remedy}")


def users_line(traceback) -> str:
    """Of an operation's traceback, the user's innermost line: " (model.py:12)", or "" if there is none."""
    frames = [frame for frame in traceback or () if not LIBRARIES.search(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _explicit(traced) -> int:
    """The number of inputs that are arguments; what the function captures follows."""
    return len(traced.inputs) - len(traced.captured_inputs)


def _variables(traced, captured: Sequence[tuple], where: str) -> tuple[dict[str, Variable], dict[str, tf.Tensor]]:
    """In the order in which the function captured them. A function does not know all of its variables by name: slots of optimizers."""
    variables, handles = {}, {}
    try:
        names = {id(variable.handle): re.sub(r":\d+$", "", variable.name) for variable in traced.variables}
    except AssertionError:
        raise ConfigError(f"{where}: expected variables that are still there, got a function whose variables have been deleted; keep the "
                          "model that owns them, such as what tf.saved_model.load returns") from None
    for handle, inner in captured:
        if handle.dtype != tf.resource or "tensorflow::Var" not in str(handle):
            continue
        stem = names.get(id(handle)) or re.sub(r"/\d+$", "", re.search(r'name="([^"]*)"', str(handle))[1]) or "variable"
        name = unique(stem, handles)
        known = handle._handle_data.shape_and_type[0]
        shape, dtype = tf.TensorShape(known.shape), tf.as_dtype(known.dtype)
        of_now = shape if shape.is_fully_defined() else tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).shape
        variables[inner.op.name] = Variable(name, inner.op.name, tuple(of_now), dtype, not shape.is_fully_defined())
        handles[name] = handle
    return variables, handles


def _arguments(traced, binding: Binding) -> tuple[Argument, ...]:
    where, tensors, names = binding.signature.where, traced.inputs[:_explicit(traced)], binding.paths
    if len(names) != len(tensors):
        raise field_error(ConfigError, where, "", "example_inputs", f"{len(tensors)} tensors", len(names))
    arguments = []
    for name, tensor in zip(names, tensors, strict=True):
        given = binding.shapes.get(name, tensor.shape)
        shape = tensor.shape.merge_with(given) if tensor.shape.is_compatible_with(given) else None
        if tensor.dtype in _NO_NUMBERS:
            remedy = ("turn it into numbers outside of the function" if tensor.dtype not in (tf.resource, tf.variant) else
                      "pass the tensors that it gives, such as the batch of an iterator or a data set")
            raise field_error(ConfigError, where, f"input {name!r}", "type", "numbers", tensor.dtype.name, remedy)
        if shape is None or not shape.is_fully_defined():
            raise field_error(ConfigError, where, f"input {name!r}", "shape", "one that is known in full and fits the function's, "
                              f"{tensor.shape}", str(given), "give example_inputs (--batch, --input)")
        arguments.append(Argument(name, tensor.op.name, tuple(shape.as_list()), tensor.dtype))
    return tuple(arguments)


def _outputs(traced, where: str) -> tuple[Output, ...]:
    """Named by their path: `output` for one that stands alone."""
    found: dict[str, str] = {}
    for path, leaf in leaves(traced.structured_outputs):
        if hasattr(leaf, "dtype") or is_composite(leaf):
            found |= {unique(name or "output", found): kind(leaf) if is_composite(leaf) else "" for name, _ in parts(path, leaf)}
    if len(found) != len(traced.outputs):
        found = {f"output_{i}": "" for i in range(len(traced.outputs))}
    for (name, composite), tensor in zip(found.items(), traced.outputs, strict=True):
        if tensor.dtype in _NO_NUMBERS:
            of = f" of a {composite}" if composite else ""
            raise field_error(ConfigError, where, f"output {name!r}{of}", "type", "numbers", tensor.dtype.name,
                              "turn it into numbers (tf.bitcast)" if tensor.dtype.is_quantized else
                              "return what is in it, such as the stack() of a TensorArray" if tensor.dtype == tf.variant else
                              "leave it out of the outputs")
    return tuple(Output(name, tensor.name, composite) for (name, composite), tensor in zip(found.items(), traced.outputs, strict=True))


def _reason(error: Exception) -> str:
    """Kind and first telling line; tracing wraps the user's message in many others, and so do operations that fail."""
    text = re.sub(r"in compilation of <function .*? at 0x[0-9a-f]+>, ", "", str(error))  # which is a function of ours
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if re.match(r"\w*(Error|Exception)\b", line)), lines[0] if lines else "")
    at = next((i for i, line in enumerate(lines) if "[[{{node" in line), 0)
    if at:
        return f"{type(error).__name__}: {lines[at - 1]}"
    return told if re.match(r"\w*(Error|Exception)\b", told) else f"{type(error).__name__}: {told}"
