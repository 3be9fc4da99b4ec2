"""What the command line names becomes a function: a SavedModel's folder, or a function in a Python file."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import tensorflow as tf

from data.capture.calls.signature import EXPORT, signature_of
from data.capture.calls.structure import adopt_dataclasses, leaves
from data.python_files import IN_FILE, attribute_of, run_file
from doppler_tf.errors import ConfigError, FormatError, field_error

_TYPES = {"f16": tf.float16, "bf16": tf.bfloat16, "f32": tf.float32, "f64": tf.float64, "i8": tf.int8, "i16": tf.int16, "i32": tf.int32,
          "i64": tf.int64, "u8": tf.uint8, "u16": tf.uint16, "u32": tf.uint32, "u64": tf.uint64, "bool": tf.bool, "c64": tf.complex64}
_SPEC = re.compile(r"(\w[\w./:-]*)=(\w+)\[([\d,\s]*)\]")


@dataclass(frozen=True)
class Source:
    """A function and what it was named by.

    Attributes:
      example_inputs, example_keywords: as `capture` takes them.
      text: for people.
      name: a short one, for files and graphs.
      owner: keeps the variables alive.
    """

    function: Any
    example_inputs: Any
    text: str
    name: str
    owner: Any = None
    example_keywords: Mapping[str, Any] | None = None


def title_of(function: Any) -> str:
    """A function's name, for people."""
    names = (getattr(function, key, None) for key in ("name", "__name__"))
    return next((name for name in names if isinstance(name, str)), type(function).__name__)


def read_source(text: str, signature: str | None = None, inputs: Sequence[str] = (), batch: int | None = None) -> Source:
    """The function that a text names; code in a Python file is run.

    Args:
      text: the folder of a SavedModel, or `module.py:function`.
      signature: of the SavedModel; `serving_default` or the only one unless given.
      inputs: shapes and types, as in `x=f32[8,224,224,3]`.
      batch: stands for the first axis of inputs that leave it open.

    Raises:
      ConfigError: the text, a signature or a shape is unknown; an option says nothing here; the user's module fails.
      FormatError: there is no such file or SavedModel.
    """
    specs: dict[str, tf.TensorSpec] = {}
    for name, spec in map(_parsed, inputs):
        if specs.setdefault(name, spec) != spec:
            raise field_error(ConfigError, text, f"input {name!r}", "--input", f"one shape and type, {specs[name].dtype.name}"
                              f"{specs[name].shape}", f"{spec.dtype.name}{spec.shape}, too", "leave out one")
    named = IN_FILE.fullmatch(text)
    if named and signature is not None:
        raise field_error(ConfigError, text, "", "--signature", "none for a function in a file", signature, "leave it out")
    if named:
        return _from_file(Path(named[1]), named[2], specs, batch, text)
    return _from_saved_model(Path(text), signature, specs, batch, text)


def _parsed(text: str) -> tuple[str, tf.TensorSpec]:
    match = _SPEC.fullmatch(text.replace(" ", ""))
    dtype = None if match is None else _TYPES.get(match[2]) or getattr(tf, match[2], None)
    if not isinstance(dtype, tf.DType):
        raise field_error(ConfigError, "--input", "", "SPEC",
                          f"NAME=TYPE[SHAPE], as x=f32[8,224,224,3], with a type of {', '.join(_TYPES)}", text)
    return match[1], tf.TensorSpec([int(extent) for extent in match[3].split(",") if extent], dtype, match[1])


def _from_saved_model(folder: Path, signature: str | None, specs: Mapping[str, tf.TensorSpec], batch: int | None, text: str) -> Source:
    if not (folder / "saved_model.pb").exists():
        problem = ("a Keras file" if folder.suffix in (".keras", ".h5") else "a Python file" if folder.suffix == ".py" else
                   "a folder without saved_model.pb" if folder.is_dir() else "no such folder" if not folder.exists() else "a file")
        remedy = ("name the function, too: module.py:function" if folder.suffix == ".py" else EXPORT)
        raise FormatError(f"{folder}: expected the folder of a SavedModel or module.py:function, got {problem}; {remedy}")
    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception as error:  # whatever TensorFlow makes of a damaged folder
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        unknown = re.search(r"Op type not registered '([^']+)'", str(error))
        if unknown:
            raise ConfigError(f"{folder}: operation {unknown[1]}: expected operations that are registered in this process, got one that "
                              "is not; import the package that registers it before; here, capture a Python file that imports it and "
                              f"has f = tf.saved_model.load({str(folder)!r}).signatures['NAME']: FILE.py:f") from error
        raise FormatError(f"{folder}: expected a SavedModel, got one that cannot be loaded: {reason}; export the model again") from error
    known = list(loaded.signatures)
    chosen = signature or ("serving_default" if "serving_default" in known else known[0] if len(known) == 1 else None)
    if chosen not in known:
        raise ConfigError(f"{folder}: signature: expected one of {', '.join(known) or 'none at all'}, got {chosen}; choose with "
                          "--signature, or export the model with a signature")
    return _bound(loaded.signatures[chosen], specs, batch, f"{text} ({chosen})", folder.resolve().name, loaded)


def _from_file(path: Path, name: str, specs: Mapping[str, tf.TensorSpec], batch: int | None, text: str) -> Source:
    function = attribute_of(_module(path), name, path, "function", callable)
    if not callable(function):
        raise field_error(ConfigError, text, "", name, "a function, a tf.function or a model", function)
    return _bound(function, specs, batch, text, name)


def _bound(function: Any, specs: Mapping[str, tf.TensorSpec], batch: int | None, text: str, name: str, owner: Any = None) -> Source:
    """Each argument as `--input` asks for it, else as the function has it, with the batch size put in."""
    signature = signature_of(function, text)
    parameters = signature.parameters.parameters.values()
    asked = {"/".join(filter(None, (name, path))): leaf for name, structure in signature.known.items() for path, leaf in leaves(structure)}
    free = {p.name for p in parameters if p.name not in signature.known} if not signature.traced else set()
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    others = {path: spec for path, spec in specs.items()
              if path not in asked and all(path != getattr(leaf, "name", None) for leaf in asked.values())}
    unknown = next((path for path in others if path.partition("/")[0] not in free and not anything), None)
    if unknown is not None:
        known = [*asked, *(p.name for p in parameters if p.name in free)]
        raise field_error(ConfigError, text, "--input", "NAME", f"one of {', '.join(known) or 'none: it takes no inputs'}", unknown)
    fixed = iter([_fixed(path, leaf, specs, batch, text) if isinstance(leaf, tf.TensorSpec) else leaf for path, leaf in asked.items()])
    named = {name: tf.nest.map_structure(lambda _: next(fixed), structure) for name, structure in signature.known.items()}
    for path, spec in others.items():
        _put(named, path.split("/"), spec, text)
    hints = _hints(getattr(function, "python_function", function))
    named = {key: _built(_with_lists(value), hints.get(key), key, text) if key not in signature.known else value
             for key, value in named.items()}
    adopt_dataclasses(named)
    missing = [p.name for p in parameters
               if p.default is p.empty and p.name not in named and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if missing:
        raise ConfigError(f"{text}: input {missing[0]!r}: expected a shape and a type, got none; give --input {missing[0]}=f32[...], or an "
                          "input_signature in the code")
    given = [leaf for structure in named.values() for _, leaf in leaves(structure) if isinstance(leaf, tf.TensorSpec)]
    if batch is not None and not any(leaf.shape.rank and leaf.shape[0] == batch for leaf in given):
        raise field_error(ConfigError, text, "", "--batch", "an input whose first axis is open, or is as large", batch,
                          "leave it out, or mend --input")
    args, keywords = signature.call(named)
    return Source(function, args, text, name, owner, keywords)


def _put(tree: dict, path: Sequence[str], spec: tf.TensorSpec, text: str) -> None:
    """Args: path: of names, of which the last is the tensor's."""
    for i, key in enumerate(path):
        if not isinstance(tree, dict) or (i == len(path) - 1 and key in tree):
            raise field_error(ConfigError, text, "--input", "NAME", "a tensor or what is inside of it, not both", "/".join(path))
        tree = tree.setdefault(key, {}) if i < len(path) - 1 else tree.setdefault(key, spec)


def _with_lists(tree: Any) -> Any:
    """Dicts with the keys 0, 1, ... are lists."""
    if not isinstance(tree, dict):
        return tree
    tree = {key: _with_lists(value) for key, value in tree.items()}
    numbered = list(map(str, range(len(tree))))
    return [tree[key] for key in numbered] if tree and sorted(tree) == sorted(numbered) else tree


def _hints(annotated: Any) -> Mapping[str, Any]:
    """The types that annotations name; none where they cannot be found out."""
    with contextlib.suppress(Exception):  # annotations are code of the user's, which may name what is not there
        return get_type_hints(annotated)
    return {}


def _built(value: Any, kind: Any, path: str, text: str) -> Any:
    """A dict or a list as the dataclass, attrs class or tuple that an annotation names; else the value."""
    own = get_origin(kind) or kind
    fields = dataclasses.is_dataclass(own) or hasattr(own, "__attrs_attrs__") or hasattr(own, "_fields")
    if isinstance(value, list) and isinstance(own, type) and issubclass(own, tuple):
        return own(*value) if fields else own(value)
    if not isinstance(value, dict) or not fields:
        return value
    hints = _hints(own)
    try:
        return own(**{key: _built(each, hints.get(key), f"{path}/{key}", text) for key, each in value.items()})
    except TypeError as error:
        raise field_error(ConfigError, text, "", "--input", f"the fields of {own.__name__} at {path}", ", ".join(value),
                          f"it says {error}") from None


def _module(path: Path):
    """Runs a Python file, which must not bring Keras 3."""
    had_keras = "keras" in sys.modules
    module = run_file(path)
    if not had_keras and "keras" in sys.modules:
        raise ConfigError(f"{path}: expected Keras 2 (tf_keras, tf.keras) in Python code, got an import of Keras 3; {EXPORT}")
    return module


def _fixed(path: str, spec: tf.TensorSpec, specs: Mapping[str, tf.TensorSpec], batch: int | None, text: str) -> tf.TensorSpec:
    """Asked for by path, or by the name that the function gives."""
    shape, asked = spec.shape, specs.get(path) or specs.get(spec.name)
    if batch is not None and shape.rank and shape[0] is None:
        shape = tf.TensorShape([batch, *shape[1:]])
    if asked is not None and (asked.dtype != spec.dtype or not spec.shape.is_compatible_with(asked.shape)):
        raise field_error(ConfigError, text, f"input {path!r}", "--input", f"what the function takes, {spec.dtype.name}{spec.shape}",
                          f"{asked.dtype.name}{asked.shape}")
    shape = shape if asked is None else asked.shape
    if not shape.is_fully_defined():
        remedy = "give --batch N" if shape.rank and shape[1:].is_fully_defined() else f"give --input {path}=TYPE[SHAPE]"
        raise field_error(ConfigError, text, f"input {path!r}", "shape", "one that is known in full", str(shape), remedy)
    return tf.TensorSpec(shape, spec.dtype, spec.name)
