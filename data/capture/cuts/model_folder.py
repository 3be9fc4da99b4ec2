"""The folder beside a captured graph: the function as a GraphDef, the values of its variables, and what belongs to which."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tensorflow as tf

from data.capture.calls.concrete import Concrete
from data.capture.program import Program
from data.capture.rewriting.effects import Effects
from doppler_tf.errors import ConfigError, FormatError
from doppler_tf.formats.files import whole_folder, write_bytes, write_json

SCHEMA = "doppler-captured/2"
FUNCTION, ORIGINAL, WEIGHTS, META = "function.pb", "original.pb", "weights", "meta.json"


def write_model(folder: Path, program: Program, effects: Effects, source: Concrete, where: str, original: Program) -> None:
    """Writes the folder, whole or not at all; one that is there is replaced.

    Args: original: the program before variables were frozen and operations cut, with which results are compared.

    Raises:
      ConfigError: the function is too large for a GraphDef.
      FormatError: the place cannot be written, or holds something else.
    """
    if folder.exists() and not (folder / META).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FormatError(f"{folder}: expected a folder for the captured model, got something else of this name; choose another --out")
    changed = program is not original
    try:
        content = {file: each.graph_def().SerializeToString(deterministic=True)
                   for file, each in ((FUNCTION, program), *([(ORIGINAL, original)] if changed else []))}
    except ValueError as error:
        raise ConfigError(f"{where}: graph: expected less than 2 GB, got more ({error}); make large constants variables") from error
    with whole_folder(folder) as temporary:
        for file, each in content.items():
            write_bytes(temporary / file, each)
        _write_weights(temporary / WEIGHTS, program, original, source, where)
        before = {"original": _changing(original, source)} if changed else {}
        digests = {file: hashlib.sha256(each).hexdigest() for file, each in content.items()}
        write_json(temporary / META, {**_meta(program, effects, source), **before, "sha256": digests})


def _write_weights(prefix: Path, program: Program, original: Program, source: Concrete, where: str) -> None:
    variables = list({v.name: v for each in (original, program) for v in each.variables.values() if v.placeholder in each.nodes}.values())
    if not variables:
        return
    with tf.device("/CPU:0"):
        try:
            values = [program.weights[v.name] if v.name in program.weights else
                      tf.raw_ops.ReadVariableOp(resource=source.handles[v.name], dtype=v.dtype) for v in variables]
        except tf.errors.FailedPreconditionError as error:
            raise ConfigError(f"{where}: expected variables with values, got one that is not initialised ({error.message}); call the "
                              "function once before") from error
        tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=[v.name for v in variables], shape_and_slices=[""] * len(variables),
                          tensors=values)


def _meta(program: Program, effects: Effects, source: Concrete) -> dict:
    return {
        "schema": SCHEMA,
        "arguments": [{"name": a.name, "tensor": f"{a.placeholder}:0", "shape": list(a.shape), "dtype": a.dtype.name}
                      for a in source.arguments],
        **_changing(program, source),
        "updates": list(effects.last)}


def _changing(program: Program, source: Concrete) -> dict:
    """What is not the same before and after variables are frozen and operations cut."""
    return {"variables": {v.name: {"placeholder": v.placeholder, "shape": list(v.shape), "dtype": v.dtype.name}
                          for v in program.variables.values() if v.placeholder in program.nodes},
            "outputs": [{**output.record, "tensor": f"{x[0]}:{x[1]}"} for output, x in zip(source.outputs, program.outputs, strict=True)]}
