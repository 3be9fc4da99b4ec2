"""Example arguments and calls: which tensors a trace takes, by path, and whether a call gives tensors of these shapes and types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.util import nest

from data.capture.calls.signature import Signature
from data.capture.calls.structure import adopt_dataclasses, is_composite, kind, leaves, parts
from data.capture.program import unique
from doppler_tf.errors import ConfigError, Described, field_error

# Numbers of a kind are also of those behind it.
_KINDS = ("is_bool", "is_integer", "is_floating", "is_complex")


@dataclass(frozen=True)
class Argument:
    """A tensor that the function takes: its name, its placeholder, and the one shape and type that it has."""

    name: str
    placeholder: str
    shape: tuple[int, ...]
    dtype: tf.DType


@dataclass(frozen=True)
class Call:
    """A call of the function.

    Attributes:
      values: by parameter, in the structures of the example; what shall be a tensor is one.
      tensors: by name of the argument.
      misfit: the shape or type that differs from the example's, so that the capture cannot run it though the function may; "" for none.
    """

    values: Mapping[str, Any]
    tensors: Mapping[str, tf.Tensor]
    misfit: str

    def specs(self, where: str) -> dict[str, Any]:
        """The values with specs in place of tensors, to trace the function for them. Args: where: the function, as errors call it."""
        return {name: nest.map_structure(lambda x: spec_of(x, where), value) for name, value in self.values.items()}


@dataclass(frozen=True)
class Binding:
    """What the function is captured for.

    Attributes:
      values: by parameter, in structures: TensorSpecs, specs of composite tensors, and Python values, which are part of the function.
      shapes: of the example's tensors, by path; `examples` are those that have values.
    """

    signature: Signature
    values: Mapping[str, Any]
    shapes: Mapping[str, tf.TensorShape]
    examples: Mapping[str, tf.Tensor]

    @property
    def paths(self) -> list[str]:
        """Of all tensors, in the order in which a trace takes them."""
        return list(_parts(self.signature.in_order(self.values)))

    def call(self, arguments: Sequence[Argument], args: Sequence, kwargs: Mapping[str, Any]) -> Call:
        """What a call gives. Args: arguments: the tensors of the trace, in order.

        Raises:
          ConfigError: the function cannot be called so, or another structure or Python value than the example's would need a trace anew.
        """
        where, bound = self.signature.where, self.signature.bind(args, kwargs)
        adopt_dataclasses(bound)
        expected, given = dict(self.signature.in_order(self.values)), dict(self.signature.in_order(bound))
        if expected.keys() != given.keys():
            raise ConfigError(f"{where}: expected arguments {', '.join(expected)}, as in the example, got {', '.join(given) or 'none'}; "
                              "call it as in the example, or distribute it for this call, too")
        converted, flat = {}, []
        for path, structure in expected.items():
            found = [self._leaf(_joined(path, inner), leaf, value) for (inner, leaf), value
                     in zip(leaves(structure), self._like(structure, given[path], path), strict=True)]
            converted[path] = nest.pack_sequence_as(structure, found)
            flat += nest.flatten([x for x, (_, leaf) in zip(found, leaves(structure), strict=True) if isinstance(leaf, tf.TypeSpec)],
                                 expand_composites=True)
        tensors = [tf.convert_to_tensor(x) for x in flat]
        if len(tensors) != len(arguments):
            raise ConfigError(f"{where}: expected {len(arguments)} tensors, as in the example, got {len(tensors)}; call it like that")
        misfits = [f"argument {a.name}: expected {a.dtype.name} of shape {list(a.shape)}, as in the example, got {x.dtype.name} of shape "
                   f"{x.shape.as_list()}" for a, x in zip(arguments, tensors, strict=True) if x.dtype != a.dtype or x.shape != a.shape]
        return Call(self.signature.by_parameter(bound, converted), {a.name: x for a, x in zip(arguments, tensors, strict=True)},
                    misfits[0] if misfits else "")

    def _like(self, structure: Any, value: Any, path: str) -> list:
        """What stands in a value where the structure has its leaves: a list of numbers may stand for a tensor."""
        try:
            nest.assert_same_structure(structure, value)
            return nest.flatten(value)
        except (TypeError, ValueError):
            pass
        try:
            return nest.flatten_up_to(structure, value)
        except (TypeError, ValueError) as error:
            expected = ", ".join(_joined(path, inner) for inner, _ in leaves(structure))
            try:
                got = ", ".join(_joined(path, inner) for inner, _ in leaves(value))
            except TypeError:  # keys that TensorFlow cannot sort
                got = _shown(value)
            if expected == got:
                got = f"containers of another type ({str(error).splitlines()[0]})"
            raise ConfigError(f"{self.signature.where}: argument {path}: expected {expected}, as in the example, got {got or 'nothing'}; "
                              "call it as in the example, or distribute it for this call, too") from None

    def _leaf(self, path: str, example: Any, value: Any) -> Any:
        where = f"argument {path}"
        if isinstance(example, tf.TensorSpec):
            try:
                tensor = self._tensor(example, value)
                if not isinstance(tensor, tf.Tensor):  # a symbol of Keras
                    raise TypeError
                return tensor
            except (TypeError, ValueError):
                raise field_error(ConfigError, self.signature.where, "", where, "a tensor, as in the example", _shown(value),
                                  "give an array, a tensor or a number") from None
        if isinstance(example, tf.TypeSpec):
            if not isinstance(value, example.value_type):
                raise field_error(ConfigError, self.signature.where, "", where, f"a {kind(example)}, as in the example", _shown(value))
        elif not _same(example, value):
            raise field_error(ConfigError, self.signature.where, "", where, f"{_shown(example)}, a Python value that the function was "
                              "captured with", _shown(value), "distribute it with this value, too, or have a tensor there in the example")
        return value

    def _tensor(self, spec: tf.TensorSpec, value: Any) -> tf.Tensor:
        """Numbers of Python take the example's type if they can; arrays and tensors do if the function itself turns them into its type."""
        if isinstance(value, tf.Tensor | tf.Variable) or is_composite(value) or hasattr(value, "__array__"):
            tensor, casts = tf.convert_to_tensor(value), self.signature.casts
            return _cast(tensor, spec.dtype) if casts == "all" or (casts and not isinstance(value, tf.Tensor | tf.Variable)) else tensor
        try:
            return tf.convert_to_tensor(value, spec.dtype)
        except (TypeError, ValueError):
            return tf.convert_to_tensor(value)


class UsualCall:
    """A call that has been bound: another one of as many tensors in the same structure needs no look at parameters and paths."""

    def __init__(self, structure: Any, order: Sequence[int], arguments: Sequence[Argument]):
        """Args: structure: positional arguments and keywords; order: of each argument the number of its leaf in them."""
        self._structure, self._arguments = structure, [(a.name, i, a.dtype.as_numpy_dtype, a.dtype.as_datatype_enum, a.shape)
                                                       for a, i in zip(arguments, order, strict=True)]

    @classmethod
    def of(cls, binding: Binding, arguments: Sequence[Argument], args: Sequence, kwargs: Mapping[str, Any]) -> UsualCall | None:
        """How a call is bound; None where it has more than tensors and arrays that fit, or one of them twice."""
        given = tuple(args), dict(kwargs)
        flat = [tf.convert_to_tensor(x) if isinstance(x, EagerTensor | np.ndarray) else None for x in nest.flatten(given)]
        if any(x is None for x in flat) or len(flat) != len(arguments):
            return None
        args, kwargs = nest.pack_sequence_as(given, flat)
        place = {id(x): i for i, x in enumerate(flat)}
        order = [place.get(id(x)) for x in binding.call(arguments, args, kwargs).tensors.values()]
        return cls(nest.map_structure(lambda _: None, given), order, arguments) if sorted(place.values()) == sorted(
            i for i in order if i is not None) and len(place) == len(flat) else None

    def bound(self, args: Sequence, kwargs: Mapping[str, Any]) -> Call | None:
        """The call, if it is like the other one."""
        given = args, kwargs
        try:
            nest.assert_same_structure(self._structure, given)
        except (TypeError, ValueError):
            return None
        flat, tensors = nest.flatten(given), {}
        for name, i, dtype, number, shape in self._arguments:
            x = flat[i]
            if isinstance(x, EagerTensor):  # as numbers and tuples: TensorFlow's types of them take longer to compare
                fits = x._datatype_enum() == number and x._shape_tuple() == shape
            else:
                fits = isinstance(x, np.ndarray) and x.dtype == dtype and x.shape == shape
            if not fits:
                return None
            tensors[name] = x if isinstance(x, EagerTensor) else tf.convert_to_tensor(x)
        return Call({}, tensors, "")


def bind_example(signature: Signature, example_inputs: Any, example_keywords: Mapping[str, Any] | None = None) -> Binding:
    """What a function is to be captured for.

    Args:
      example_inputs: a tuple holds the positional arguments, anything else is the only one; None: what the function itself asks for.
      example_keywords: arguments by name.

    Raises:
      ConfigError: the function does not take such arguments.
    """
    args = () if example_inputs is None else example_inputs if type(example_inputs) is tuple else (example_inputs,)
    keywords = example_keywords or {}
    if signature.traced and type(example_inputs) is list and type(next(iter(signature.known.values()), None)) is not list:
        args = tuple(example_inputs)  # TensorFlow calls what is traced with a flat list of tensors, too
    if signature.known and not args and not keywords:
        args, keywords = signature.call(signature.known)
    bound = signature.bind(args, keywords)
    adopt_dataclasses(bound)
    explicit = signature.parameters.bind_partial(*args, **keywords).arguments
    try:
        kept = {name: nest.map_structure(lambda x, name=name: _example(x, signature.where, name, name in explicit), value)
                for name, value in bound.items()}
    except TypeError as error:  # TensorFlow sorts keys
        raise ConfigError(f"{signature.where}: example_inputs: expected structures that TensorFlow can take apart, got one for which it "
                          f"says {str(error).splitlines()[0]}; have keys of one type in each dict") from None
    specs = {name: nest.map_structure(lambda x: spec_of(x, signature.where), value) for name, value in kept.items()}
    found = _parts(signature.in_order(kept))
    shapes = {name: part.shape for name, part in found.items()}
    examples = {name: part for name, part in found.items() if isinstance(part, tf.Tensor) and hasattr(part, "numpy")}
    binding = Binding(signature, signature.known if signature.traced else specs, shapes, examples)
    if binding.paths != list(shapes):
        raise ConfigError(f"{signature.where}: example_inputs: expected {', '.join(binding.paths)}, as the function was traced, got "
                          f"{', '.join(shapes) or 'none'}; give these, or none at all")
    return binding


def _example(value: Any, where: str, name: str, floats: bool) -> Any:
    """A tensor where it has the values of one, else the spec of one; composite tensors and Python values as they are."""
    if isinstance(value, tf.Variable):
        raise field_error(ConfigError, where, f"argument {name}", "type", "a tensor or an array", _shown(value),
                          "pass its value (variable.read_value()), or let the function use the variable without passing it")
    spec = value if is_composite(value) else spec_of(value, where, floats)
    return tf.convert_to_tensor(value, spec.dtype) if isinstance(spec, tf.TensorSpec) and spec is not value else spec


def spec_of(value: Any, where: str, floats: bool = False) -> Any:
    """Shape and type of a tensor, an array, or, if asked for, a float; whatever else stays a Python value."""
    if isinstance(value, tf.TypeSpec):
        return value
    if isinstance(value, tf.Tensor | tf.Variable):
        return tf.TensorSpec(value.shape, value.dtype)
    if is_composite(value):
        return tf.type_spec_from_value(value)
    if type(value) is float and floats:
        return tf.TensorSpec((), tf.float32)
    if not hasattr(value, "__array__") or isinstance(value, type):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" and array.dtype.name not in ("bfloat16",):
        raise field_error(ConfigError, where, "", "example_inputs", "numbers", str(array.dtype),
                          "turn it into numbers outside of the function")
    return tf.TensorSpec(array.shape, tf.as_dtype(array.dtype))


def _parts(structures: Sequence[tuple[str, Any]]) -> dict[str, tf.TensorSpec | tf.Tensor]:
    """The tensors of arguments, each with a name of its own."""
    found = dict[str, tf.TensorSpec | tf.Tensor]()
    for path, value in structures:
        for inner, leaf in leaves(value):
            found |= {unique(name, found): part for name, part in parts(_joined(path, inner), leaf)
                      if isinstance(part, tf.TensorSpec | tf.Tensor)}
    return found


def _joined(*paths: str) -> str:
    return "/".join(filter(None, paths))


def _cast(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """In the other type, unless that would change its numbers: the fraction of a float, an integer that does not fit."""
    ranks = [next((rank for rank, kind_ in enumerate(_KINDS) if getattr(x, kind_)), None) for x in (tensor.dtype, dtype)]
    if tensor.dtype == dtype or None in ranks or ranks[0] > ranks[1]:
        return tensor
    made = tf.cast(tensor, dtype)
    return made if ranks != [1, 1] or bool(tf.reduce_all(tf.cast(made, tensor.dtype) == tensor)) else tensor


def _same(example: Any, value: Any) -> bool:
    if example is value:
        return True
    if type(example) is not type(value) and {type(example), type(value)} != {int, float}:
        return False
    try:
        return bool(example == value or (example != example and value != value))
    except Exception:  # whatever a comparison of the user's objects raises
        return False


def _shown(value: Any, most: int = 60) -> Described:
    if isinstance(value, tf.Tensor | np.ndarray | tf.Variable):
        kind = "variable" if isinstance(value, tf.Variable) else "tensor"
        return Described(f"a {kind} of {tf.as_dtype(value.dtype).name}{list(value.shape)}")
    text = f"{value.dtype} {value}" if isinstance(value, np.generic) else " ".join(repr(value).split())
    return Described(text if len(text) <= most else f"{text[:most]}...")
