"""The signature of a user's function, as TensorFlow's type of the function has it: what it can be called with, and its traces."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.function.polymorphism.function_type import sanitize_arg_name
from tensorflow.python.util import nest

from data.capture.calls.structure import adopt_dataclasses, leaves
from doppler_tf.errors import ConfigError, field_error

# What to do with a model of Keras 3.
EXPORT = "save it with model.export(FOLDER) and capture the folder"
# What a Python function may return beside tensors; it stays as it is.
_VALUES = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
_Parameter = inspect.Parameter


@dataclass(frozen=True)
class Signature:
    """What a function can be called with.

    Attributes:
      function: a tf.function; or, where `traced`, a ConcreteFunction, which has one trace for all calls.
      parameters: names, kinds and defaults.
      known: by parameter, the structure of specs that the function itself asks for, shapes perhaps open; empty where it asks for nothing.
      casts: which numbers of another type the function itself turns into its own: "all", "arrays" but not tensors, or "" for none.
      where: the function, as errors call it.
      values: by the graph of a trace, what a Python function returned in it: a structure with the tensors of that graph.
    """

    function: Any
    parameters: inspect.Signature
    known: Mapping[str, Any]
    casts: str
    traced: bool
    where: str
    values: Mapping[tf.Graph, Any] = field(default_factory=dict)

    def bind(self, args: Sequence, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each parameter, defaults put in. Raises ConfigError: the function does not take such a call."""
        if self.traced:
            kwargs = {name if name in self.parameters.parameters else sanitize_arg_name(name): x for name, x in kwargs.items()}
        try:
            bound = self.parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError(f"{self.where}: expected arguments for {self.text}, got a call that does not fit: {error}; call it as the "
                              "original") from None
        bound.apply_defaults()
        return bound.arguments

    def in_order(self, values: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Arguments by path, in the order in which a trace takes them: keyword-only ones come last, by name."""
        positional, keywords = [], {}
        for parameter in self.parameters.parameters.values():
            value = values[parameter.name]
            if parameter.kind is _Parameter.VAR_POSITIONAL:
                positional += [(f"{parameter.name}/{i}", each) for i, each in enumerate(value)]
            elif parameter.kind is _Parameter.VAR_KEYWORD:
                keywords |= value
            elif parameter.kind is _Parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            else:
                positional.append((parameter.name, value))
        return positional + sorted(keywords.items())

    def by_parameter(self, bound: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by path, as `in_order` gives them, by parameter again. Args: bound: by parameter, of the same call."""
        variadic = {p.name: p.kind for p in self.parameters.parameters.values()}
        return {name: tuple(arguments[f"{name}/{i}"] for i in range(len(value))) if variadic[name] is _Parameter.VAR_POSITIONAL else
                {key: arguments[key] for key in value} if variadic[name] is _Parameter.VAR_KEYWORD else arguments[name]
                for name, value in bound.items()}

    def trace(self, values: Mapping[str, Any]):
        """The ConcreteFunction for arguments whose tensors are TensorSpecs. Raises whatever the user's code raises."""
        if self.traced:
            return self.function
        call = inspect.BoundArguments(self.parameters, values)
        return self.function.get_concrete_function(*call.args, **call.kwargs)

    def pack(self, traced, tensors: Sequence[tf.Tensor]) -> Any:
        """The results of a trace in the structure that the original returns. Args: tensors: as `traced.outputs`."""
        packed = traced.function_type.pack_output(list(tensors))
        if traced.graph not in self.values:
            return packed
        made = self.values[traced.graph]
        return nest.pack_sequence_as(made, [value if isinstance(value, _VALUES) else tensor
                                            for value, tensor in zip(nest.flatten(made), nest.flatten(packed), strict=True)])

    def call(self, values: Mapping[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Positional arguments and keywords for values by parameter, or by another name where the function takes any keyword."""
        own = {p.name: p.kind for p in self.parameters.parameters.values()}
        by_name = (None, _Parameter.KEYWORD_ONLY, _Parameter.VAR_KEYWORD)
        keywords = {name: value for name, value in values.items() if own.get(name) in by_name}
        for name in [name for name in keywords if own.get(name) is _Parameter.VAR_KEYWORD and isinstance(keywords[name], Mapping)]:
            keywords |= keywords.pop(name)
        positional, skipped = [], False
        for name, kind in own.items():
            skipped |= name not in values and kind is not _Parameter.VAR_POSITIONAL
            if name not in values or kind in by_name:
                continue
            if kind is _Parameter.VAR_POSITIONAL:
                positional += values[name] if isinstance(values[name], list | tuple) else [values[name]]
            elif skipped:
                keywords[name] = values[name]
            else:
                positional.append(values[name])
        return tuple(positional), keywords

    @property
    def text(self) -> str:
        """The parameters, "(x, *, mask=...)", for people."""
        parameters = [p.replace(default=_Dots()) if p.default is not p.empty else p for p in self.parameters.parameters.values()]
        return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


class _Dots:
    def __repr__(self) -> str:
        return "..."


def signature_of(function: Any, where: str) -> Signature:
    """The signature of a tf.function, a ConcreteFunction, a Keras model or any callable. Raises ConfigError: it is none of these."""
    if hasattr(function, "structured_input_signature") and hasattr(function, "graph"):
        return _of_traced(function, where)
    if not callable(function):
        raise field_error(ConfigError, where, "", "function", "a tf.function, a Keras model or another callable", function)
    if any(cls.__module__.partition(".")[0] == "keras" for cls in type(function).__mro__):
        raise ConfigError(f"{where}: expected a model of Keras 2 (tf_keras) in Python code, got one of Keras 3; {EXPORT}")
    if is_keras(function):
        return _of_keras(function, where)
    if not hasattr(function, "get_concrete_function"):
        return _of_python(function, where)
    parameters, own = _parameters(function.function_type, function._default_values or {}), getattr(function, "input_signature", None)
    known = {} if own is None else parameters.bind_partial(*own).arguments
    return Signature(function, parameters, known, "" if own is None else "arrays", False, where)


def is_keras(function: Any) -> bool:
    """Whether it is a layer or a model of Keras."""
    return any(cls.__module__.partition(".")[0] in ("keras", "tf_keras") and cls.__name__ == "Layer" for cls in type(function).__mro__)


def _of_keras(model: Any, where: str) -> Signature:
    """Models are in inference, whatever the default of their `call`."""
    parameters = [p.replace(default=False) if p.name == "training" else p for p in inspect.signature(model.call).parameters.values()]
    parameters = inspect.Signature(_defaults_last(parameters))
    known, values = {}, {}
    if getattr(model, "inputs", None):
        specs = nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype, x.name), model.input)
        known = {next(iter(parameters.parameters)): specs}
    return Signature(_function(model, parameters, values), parameters, known, "all", False, where, values)


def _of_python(function: Any, where: str) -> Signature:
    try:
        parameters = inspect.signature(function)
    except ValueError:  # some that are written in C have none
        parameters = inspect.Signature([_Parameter("inputs", _Parameter.VAR_POSITIONAL)])
    values = {}
    return Signature(_function(function, parameters, values), parameters, {}, "", False, where, values)


def _function(function: Any, parameters: inspect.Signature, values: dict):
    """A tf.function that notes what the Python function returns in each trace, and gives its tensors."""
    def call(*args, **kwargs):
        made = function(*args, **kwargs)
        adopt_dataclasses(made)
        values[tf.compat.v1.get_default_graph()] = made
        return nest.map_structure(lambda leaf: None if isinstance(leaf, _VALUES) else leaf, made)

    call.__signature__, name = parameters, getattr(function, "__name__", "")
    call.__name__ = name if name.isidentifier() else "call"  # AutoGraph takes "<lambda>" for what it says
    return tf.function(call)


def _parameters(function_type: inspect.Signature, defaults: Mapping[str, Any]) -> inspect.Signature:
    """A TensorFlow type as a signature with the values of its defaults."""
    return inspect.Signature([_Parameter(p.name, p.kind, default=defaults.get(p.name, p.empty)) for p in function_type.parameters.values()])


def _of_traced(traced, where: str) -> Signature:
    tensors = traced.inputs[:len(traced.inputs) - len(traced.captured_inputs)]
    structure = traced.structured_input_signature
    if structure is None or len(traced.function_type.flat_inputs) != len(tensors):  # pruned: TensorFlow knows a flat list of names
        specs = [tf.TensorSpec(x.shape, x.dtype, x.op.name) for x in tensors]
        names = [sanitize_arg_name(name) for name in traced._arg_keywords or [x.op.name for x in tensors]]
        parameters = inspect.Signature([_Parameter(name, _Parameter.POSITIONAL_OR_KEYWORD) for name in names])
        return Signature(traced, parameters, dict(zip(names, specs, strict=True)), "arrays", True, where)
    typed = traced.function_type.parameters.values()
    known = inspect.Signature([_Parameter(p.name, p.kind) for p in typed]).bind(
        *structure[0], **{sanitize_arg_name(name): x for name, x in structure[1].items()}).arguments
    defaults = {name: value for name, value in known.items()
                if not any(isinstance(leaf, tf.TypeSpec) for _, leaf in leaves(value))}  # Python values can be left out
    keyword_only = all(p.kind is _Parameter.KEYWORD_ONLY for p in typed)  # signatures of SavedModels: positions, too, by name
    typed = sorted(typed, key=lambda p: p.name) if keyword_only else typed
    kept = [_Parameter(p.name, _Parameter.POSITIONAL_OR_KEYWORD if keyword_only else p.kind, default=defaults.get(p.name, p.empty))
            for p in typed]
    return Signature(traced, inspect.Signature(_defaults_last(kept)), known, "arrays", True, where)


def _defaults_last(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """Positional parameters lose their default where one without follows, as Python wants it."""
    kept, needed = [], False
    for parameter in reversed(parameters):
        positional = parameter.kind in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
        kept.append(parameter.replace(default=parameter.empty) if positional and needed else parameter)
        needed |= positional and parameter.default is parameter.empty
    return kept[::-1]
