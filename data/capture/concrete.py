"""What a user gives (a function, a Keras model) becomes one concrete function: arguments of known shapes and types, outputs with names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.util import nest

from data.capture.held import first_use
from data.capture.program import Variable
from doppler_tf.errors import ConfigError, UserError, field_error

# Files whose lines are not the user's.
_LIBRARIES = re.compile(r"site-packages/(tensorflow|tf_keras|keras|tf_agents|tensorflow_\w+)/|lib/python3\.\d+/\w+\.py|<|"
                        rf"__autograph_generated_file|{re.escape(str(Path(__file__).parent))}/")
_SCALARS = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True)
class Argument:
    """An argument of the function, flattened: its name, its placeholder, and the one shape and type that it has."""

    name: str
    placeholder: str
    shape: tuple[int, ...]
    dtype: tf.DType

    @property
    def spec(self) -> tf.TensorSpec:
        """Name, shape and type."""
        return tf.TensorSpec(self.shape, self.dtype, self.name)


@dataclass(frozen=True)
class Concrete:
    """A function that is ready to be read.

    Attributes:
      function: as TensorFlow traced it.
      arguments: in order.
      outputs: the name and the tensor ("op:k") of each output.
      variables: by placeholder; `handles` are their resources, by name.
      constants: tensors that the function holds beside variables, by placeholder.
    """

    function: Any
    arguments: tuple[Argument, ...]
    outputs: tuple[tuple[str, str], ...]
    variables: dict[str, Variable]
    handles: dict[str, tf.Tensor]
    constants: dict[str, tf.Tensor]


def concrete(function, example_inputs, where: str) -> Concrete:
    """Traces the function, unless it is traced already.

    Args:
      function: a tf.function, a ConcreteFunction, a Keras model or any callable.
      example_inputs: a tuple holds the positional arguments, anything else is the only one; arrays, tensors and TensorSpecs, in
        structures. None where the function says of itself what it takes.

    Raises:
      ConfigError: it raises while it is traced, shapes are unknown, or it takes or makes what is no plain tensor.
    """
    if hasattr(function, "structured_input_signature") and hasattr(function, "graph"):
        traced, given = function, nest.flatten(example_inputs)
    else:
        traced, given = _trace(function, example_inputs, where)
    captured = list(zip(traced.captured_inputs, traced.inputs[_explicit(traced):], strict=True))
    variables, handles = _variables(traced, captured)
    constants = {inner.op.name: external for external, inner in captured if inner.op.name not in variables}
    for name, tensor in constants.items():
        if not isinstance(tensor, tf.Tensor) or not hasattr(tensor, "numpy") or tensor.dtype in (tf.resource, tf.variant):
            raise _held(traced, name, tensor, where)
    return Concrete(traced, _arguments(traced, given, where), _outputs(traced, where), variables, handles, constants)


def _held(traced, placeholder: str, tensor, where: str) -> ConfigError:
    """What says that the function holds something that is neither variable nor constant."""
    use = first_use(traced.graph.as_graph_def(), placeholder)
    kind = getattr(getattr(tensor, "dtype", None), "name", type(tensor).__name__)
    told = f"{kind} {placeholder!r}" if use is None else f"{kind} {placeholder!r} for {use[0]!r} ({use[1]}), which {use[2].value[0]}"
    remedy = "pass what it gives as an argument" if use is None else use[2].value[1]
    return ConfigError(f"{where}: expected variables and constants in the function, got {told}; {remedy}")


def users_line(traceback) -> str:
    """Of an operation's traceback, the user's innermost line: " (model.py:12)", or "" if there is none."""
    frames = [frame for frame in traceback or () if not _LIBRARIES.search(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _explicit(traced) -> int:
    """The number of inputs that are arguments; what the function captures follows."""
    return len(traced.inputs) - len(traced.captured_inputs)


def _trace(function, example_inputs, where: str) -> tuple[Any, list[tf.TensorSpec]]:
    """The concrete function, and the specs of its tensors."""
    if not callable(function):
        raise field_error(ConfigError, where, "", "function", "a tf.function, a Keras model or another callable", function)
    arguments = _specs(function, example_inputs, where)
    if _is_keras(function) or not hasattr(function, "get_concrete_function"):
        function = tf.function(_plain(function, len(arguments)))
    try:  # a tf.function with a signature of its own keeps that: the shapes are put in later
        return function.get_concrete_function(*arguments), [x for x in nest.flatten(arguments) if isinstance(x, tf.TensorSpec)]
    except UserError:
        raise
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{where}: expected a function that can be traced, got {_reason(error)}{raised_at(error)}; mend it, or check "
                          "the shapes and types of its inputs") from error


def _plain(function, count: int):
    """A Python function. Keras models are in inference, whatever the default of their `call`."""
    options = {"training": False} if _is_keras(function) and "training" in inspect.signature(function.call).parameters else {}
    if inspect.isroutine(function):
        return function
    if count == 1:  # the argument gets a name
        return lambda inputs: function(inputs, **options)
    return lambda *inputs: function(*inputs, **options)


def _is_keras(function) -> bool:
    return any(kind.__module__.partition(".")[0] in ("keras", "tf_keras") and kind.__name__ == "Layer" for kind in type(function).__mro__)


def _specs(function, example_inputs, where: str) -> tuple:
    """Positional arguments, tensors as TensorSpecs."""
    if example_inputs is None and _is_keras(function) and getattr(function, "inputs", None):
        specs = [tf.TensorSpec(x.shape, x.dtype, x.name) for x in function.inputs]
        example_inputs = (specs[0] if len(specs) == 1 else specs,)
    if example_inputs is None:
        return ()
    arguments = example_inputs if type(example_inputs) is tuple else (example_inputs,)
    specs = nest.map_structure(lambda x: _spec(x, where), arguments)
    for spec in nest.flatten(specs):
        if isinstance(spec, tf.TensorSpec) and not spec.shape.is_fully_defined():
            raise field_error(ConfigError, where, f"input {spec.name!r}" if spec.name else "input", "shape", "one that is known in full",
                              str(spec.shape), "give example_inputs of one batch size (--batch, --input)")
    return specs


def _spec(value, where: str):
    if isinstance(value, tf.TensorSpec) or (isinstance(value, _SCALARS) and not isinstance(value, float)):
        return value
    if isinstance(value, tf.Tensor | tf.Variable):
        return tf.TensorSpec(value.shape, value.dtype)
    if isinstance(value, float):
        return tf.TensorSpec((), tf.float32)
    if not isinstance(value, np.ndarray | np.generic):
        raise field_error(ConfigError, where, "", "example_inputs", "arrays, tensors or TensorSpecs", type(value).__name__,
                          "ragged and sparse tensors are not supported; pass their parts")
    if value.dtype.kind not in "biufc":
        raise field_error(ConfigError, where, "", "example_inputs", "numbers", str(value.dtype))
    return tf.TensorSpec(value.shape, tf.as_dtype(value.dtype))


def _variables(traced, captured: Sequence[tuple]) -> tuple[dict[str, Variable], dict[str, tf.Tensor]]:
    """In the order in which the function captured them. A function does not know all of its variables by name: slots of optimizers."""
    variables, handles = {}, {}
    names = {id(variable.handle): re.sub(r":\d+$", "", variable.name) for variable in traced.variables}
    for handle, inner in captured:
        if handle.dtype != tf.resource or "tensorflow::Var" not in str(handle):
            continue
        stem = names.get(id(handle)) or re.sub(r"/\d+$", "", re.search(r'name="([^"]*)"', str(handle))[1]) or "variable"
        name, count = stem, 0
        while name in handles:
            count += 1
            name = f"{stem}_{count}"
        known = handle._handle_data.shape_and_type[0]
        shape, dtype = tf.TensorShape(known.shape), tf.as_dtype(known.dtype)
        of_now = shape if shape.is_fully_defined() else tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).shape
        variables[inner.op.name] = Variable(name, inner.op.name, tuple(of_now), dtype, not shape.is_fully_defined())
        handles[name] = handle
    return variables, handles


def _arguments(traced, given: Sequence, where: str) -> tuple[Argument, ...]:
    tensors = traced.inputs[:_explicit(traced)]
    if given and len(given) != len(tensors):
        raise field_error(ConfigError, where, "", "example_inputs", f"{len(tensors)} tensors", len(given))
    arguments, names = [], set()
    for i, tensor in enumerate(tensors):
        asked = tensor.op.node_def.attr["_user_specified_name"].s.decode() or tensor.op.name
        name = asked if asked not in names else tensor.op.name
        names.add(name)
        spec = _spec(given[i], where) if given else tensor
        shape = tensor.shape if not given else tensor.shape.merge_with(spec.shape) if tensor.shape.is_compatible_with(spec.shape) else None
        if tensor.dtype in (tf.string, tf.resource, tf.variant):
            raise field_error(ConfigError, where, f"input {name!r}", "type", "numbers", tensor.dtype.name,
                              "turn it into numbers outside of the function")
        if shape is None or not shape.is_fully_defined():
            raise field_error(ConfigError, where, f"input {name!r}", "shape", "one that is known in full and fits the function's, "
                              f"{tensor.shape}", str(spec.shape), "give example_inputs (--batch, --input)")
        arguments.append(Argument(name, tensor.op.name, tuple(shape.as_list()), tensor.dtype))
    return tuple(arguments)


def _outputs(traced, where: str) -> tuple[tuple[str, str], ...]:
    """Names as the function's structure gives them: `output` for one that stands alone."""
    structure = traced.structured_outputs
    if any(isinstance(part, tf.RaggedTensor | tf.SparseTensor | tf.RaggedTensorSpec | tf.SparseTensorSpec)
           for part in nest.flatten(structure)):
        raise field_error(ConfigError, where, "output", "type", "plain tensors", "a ragged or sparse tensor", "return its parts instead")
    paths = [path for path, value in nest.flatten_with_joined_string_paths(structure) if value is not None]
    names = [path or "output" for path in paths] if len(paths) == len(traced.outputs) else \
        [f"output_{i}" for i in range(len(traced.outputs))]
    for name, tensor in zip(names, traced.outputs, strict=True):
        if tensor.dtype in (tf.string, tf.resource, tf.variant):
            raise field_error(ConfigError, where, f"output {name!r}", "type", "numbers", tensor.dtype.name, "leave it out of the outputs")
    return tuple((name, tensor.name) for name, tensor in zip(names, traced.outputs, strict=True))


def _reason(error: Exception) -> str:
    """Kind and first telling line; tracing wraps the user's message in many others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if re.match(r"\w*(Error|Exception)\b", line)), lines[0] if lines else "")
    return told if re.match(r"\w*(Error|Exception)\b", told) else f"{type(error).__name__}: {told}"


def raised_at(error: Exception) -> str:
    """The innermost line of the user's that an exception went through, also where AutoGraph or Keras have rewritten the message."""
    lines, tb = [], error.__traceback__
    while tb is not None:
        lines.append((tb.tb_frame.f_code.co_filename, tb.tb_lineno))
        tb = tb.tb_next
    lines += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]
    mine = [(file, line) for file, line in lines if not _LIBRARIES.search(file)]
    return f" ({Path(mine[-1][0]).name}:{mine[-1][1]})" if mine else ""
