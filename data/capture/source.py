"""What the command line names becomes a function: a SavedModel's folder, or a function in a Python file."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from data.capture.concrete import raised_at
from doppler_tf.errors import ConfigError, FormatError, field_error

_TYPES = {"f16": tf.float16, "bf16": tf.bfloat16, "f32": tf.float32, "f64": tf.float64, "i8": tf.int8, "i16": tf.int16, "i32": tf.int32,
          "i64": tf.int64, "u8": tf.uint8, "u16": tf.uint16, "u32": tf.uint32, "u64": tf.uint64, "bool": tf.bool, "c64": tf.complex64}
_SPEC = re.compile(r"(\w[\w./]*)=(\w+)\[([\d,\s]*)\]")
_IN_FILE = re.compile(r"(.+\.py):([\w.]+)")
EXPORT = "save it with model.export(FOLDER) and capture the folder"


@dataclass(frozen=True)
class Source:
    """A function and what it was named by.

    Attributes:
      example_inputs: as `capture` takes them.
      text: for people.
      name: a short one, for files and graphs.
      owner: keeps the variables alive.
    """

    function: Any
    example_inputs: Any
    text: str
    name: str
    owner: Any = None


def read_source(text: str, signature: str | None = None, inputs: Sequence[str] = (), batch: int | None = None) -> Source:
    """The function that a text names; code in a Python file is run.

    Args:
      text: the folder of a SavedModel, or `module.py:function`.
      signature: of the SavedModel; `serving_default` or the only one unless given.
      inputs: shapes and types, as in `x=f32[8,224,224,3]`.
      batch: stands for the first axis of inputs that leave it open.

    Raises:
      ConfigError: the text, a signature or a shape is unknown; the user's module fails.
      FormatError: there is no such file or SavedModel.
    """
    specs = dict(map(_parsed, inputs))
    named = _IN_FILE.fullmatch(text)
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
    function = loaded.signatures[chosen]
    tensors = function.inputs[:len(function.inputs) - len(function.captured_inputs)]
    open_specs = [tf.TensorSpec(x.shape, x.dtype, x.op.node_def.attr["_user_specified_name"].s.decode() or x.op.name) for x in tensors]
    return Source(function, _fixed(open_specs, specs, batch, text), f"{text} ({chosen})", folder.resolve().name, loaded)


def _from_file(path: Path, name: str, specs: Mapping[str, tf.TensorSpec], batch: int | None, text: str) -> Source:
    function = _attribute(_module(path), name, path)
    if any(kind.__module__.partition(".")[0] == "keras" for kind in type(function).__mro__):
        raise ConfigError(f"{text}: expected a model of Keras 2 (tf_keras) in Python code, got one of Keras 3; {EXPORT}")
    if getattr(function, "input_signature", None) is not None:
        signature = tf.nest.flatten(function.input_signature)
        arguments = tuple(_fixed([tf.TensorSpec(x.shape, x.dtype, x.name or f"input_{i}") for i, x in enumerate(signature)], specs, batch,
                                 text))
        return Source(function, tf.nest.pack_sequence_as(function.input_signature, arguments), text, name)
    layers = getattr(function, "inputs", None)
    if layers and hasattr(function, "input_names"):
        open_specs = [tf.TensorSpec(x.shape, x.dtype, label) for x, label in zip(layers, function.input_names, strict=True)]
        fixed = _fixed(open_specs, specs, batch, text)
        return Source(function, (fixed[0] if len(fixed) == 1 else fixed,), text, name)
    if hasattr(function, "structured_input_signature"):
        return Source(function, [], text, name)
    if not callable(function):
        raise field_error(ConfigError, text, "", name, "a function, a tf.function or a model", function)
    return Source(function, _by_parameter(function, specs, text), text, name)


def _by_parameter(function, specs: Mapping[str, tf.TensorSpec], text: str) -> tuple:
    """A spec for each parameter that has no default."""
    python = getattr(function, "python_function", function)
    parameters = inspect.signature(python).parameters.values()
    wanted = [p.name for p in parameters
              if p.name in specs or (p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))]
    _check_names(specs, wanted, text)
    missing = [name for name in wanted if name not in specs]
    if missing:
        raise ConfigError(f"{text}: input {missing[0]!r}: expected a shape and a type, got none; give --input {missing[0]}=f32[...], or an "
                          "input_signature in the code")
    return tuple(specs[name] for name in wanted)


def _module(path: Path):
    """Runs a Python file as a module; it finds its neighbours."""
    if not path.exists():
        raise FormatError(f"{path}: no such file; check the path")
    had_keras = "keras" in sys.modules
    spec = importlib.util.spec_from_file_location(f"captured_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{path}: expected a module that can be imported, got {type(error).__name__}: {error}{raised_at(error)}; mend "
                          "it") from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    if not had_keras and "keras" in sys.modules:
        raise ConfigError(f"{path}: expected Keras 2 (tf_keras, tf.keras) in Python code, got an import of Keras 3; {EXPORT}")
    return module


def _attribute(module, name: str, path: Path):
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise field_error(ConfigError, str(path), "", "function", f"one of {', '.join(known[:10]) or 'none: the file has no function'}",
                              name)
        found = getattr(found, part)
    return found


def _fixed(open_specs: Iterable[tf.TensorSpec], specs: Mapping[str, tf.TensorSpec], batch: int | None, text: str) -> list[tf.TensorSpec]:
    """Each input as it is asked for, else as the function has it, with the batch size put in."""
    open_specs = list(open_specs)
    _check_names(specs, [spec.name for spec in open_specs], text)
    fixed = []
    for spec in open_specs:
        shape = spec.shape
        if batch is not None and shape.rank and shape[0] is None:
            shape = tf.TensorShape([batch, *shape[1:]])
        asked = specs.get(spec.name)
        if asked is not None and (asked.dtype != spec.dtype or not spec.shape.is_compatible_with(asked.shape)):
            raise field_error(ConfigError, text, f"input {spec.name!r}", "--input",
                              f"what the function takes, {spec.dtype.name}{spec.shape}", f"{asked.dtype.name}{asked.shape}")
        shape = shape if asked is None else asked.shape
        if not shape.is_fully_defined():
            remedy = "give --batch N" if shape.rank and shape[1:].is_fully_defined() else f"give --input {spec.name}=TYPE[SHAPE]"
            raise field_error(ConfigError, text, f"input {spec.name!r}", "shape", "one that is known in full", str(shape), remedy)
        fixed.append(tf.TensorSpec(shape, spec.dtype, spec.name))
    return fixed


def _check_names(specs: Mapping[str, tf.TensorSpec], known: Sequence[str], text: str) -> None:
    unknown = next((name for name in specs if name not in known), None)
    if unknown is not None:
        raise field_error(ConfigError, text, "--input", "NAME", f"one of {', '.join(known) or 'none: it takes no inputs'}", unknown)
