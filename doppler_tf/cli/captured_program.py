"""A captured model on the executors: its inputs and weights, and the check of outputs against the original function."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from doppler_tf.cli.tensorflow import import_quietly
from doppler_tf.errors import FormatError, GraphError, field_error
from doppler_tf.graph import DataflowGraph

# Drawn integers stay below this, because they may be indices into a table of unknown length.
_BELOW = 2


class CapturedProgram:
    """The original function of a captured graph, with values for its arguments.

    Attributes:
      inputs: arrays of arguments and weights, by input vertex.
      fetch: the tensors that hold results and updated variables.
    """

    def __init__(self, graph: DataflowGraph, seed: int = 0, values: Path | None = None):
        """Draws the arguments, or reads them from an NPZ file by name.

        Raises:
          GraphError: the record of the capture is incomplete.
          FormatError: the model folder or the file of values is missing, damaged or does not fit.
        """
        captured = import_quietly("runtime.captured")
        try:
            record = graph.attributes["captured"]
            model = captured.captured_model(record["model"])
            index = {key: v for v, key in enumerate(graph.ids)}
            arguments = {x["name"]: (index[x["vertex"]], tuple(x["shape"]), np.dtype(x["dtype"])) for x in record["inputs"]}
            weights = {index[x["vertex"]]: x["variable"] for x in record["weights"]}
            self._results = {x["name"]: self._tensor(graph, index, x) for x in record["outputs"]}
            self._updates = {x["variable"]: self._tensor(graph, index, x) for x in record["updates"]}
        except (KeyError, TypeError, IndexError) as error:
            raise GraphError(f"{graph.name}: captured: expected the record that `capture` writes, got another ({error!r}); capture the "
                             f"model again") from None
        self._folder = record["model"]
        self.arguments = _drawn(arguments, seed) if values is None else _read(arguments, values)
        self.inputs: dict[int, np.ndarray] = {v: self.arguments[name] for name, (v, _, _) in arguments.items()}
        self.inputs.update({v: model.weight(variable) for v, variable in weights.items()})
        given = {int(graph.tensor_ptr[v]): v for v in self.inputs}
        self._given = {t: v for t, v in given.items() if t in {*self._results.values(), *self._updates.values()}}
        self.fetch = tuple(dict.fromkeys(t for t in (*self._results.values(), *self._updates.values()) if t not in given))

    @staticmethod
    def _tensor(graph: DataflowGraph, index: Mapping, record: Mapping[str, Any]) -> int:
        return int(graph.tensor_ptr[index[record["vertex"]]]) + record.get("output", 0)

    def relative_error(self, outputs: Mapping[int, np.ndarray]) -> float:
        """The largest ||a - b|| / ||b|| over results and updated variables of a run (by tensor) against the original function."""
        expected, updated = import_quietly("runtime.captured").original_function(self._folder)(self.arguments)
        known = {**outputs, **{t: self.inputs[v] for t, v in self._given.items()}}
        pairs = [(known[self._results[name]], value) for name, value in expected.items()]
        pairs += [(known[self._updates[name]], value) for name, value in updated.items()]
        return max((_distance(np.asarray(got), np.asarray(value)) for got, value in pairs), default=0.0)


def _distance(got: np.ndarray, expected: np.ndarray) -> float:
    """||got - expected|| / ||expected||; if `expected` is 0, ||got||. Values that are no number on both sides count as equal."""
    if got.shape != expected.shape:
        return float("inf")
    got, expected = got.astype(np.complex128 if np.iscomplexobj(expected) else np.float64), expected.astype(
        np.complex128 if np.iscomplexobj(expected) else np.float64)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    size = np.linalg.norm(np.where(same & ~np.isfinite(expected), 0.0, expected).ravel())
    error = np.linalg.norm(np.where(same, 0.0, got - expected).ravel())
    return float(error / size if size else error)


def _drawn(arguments: Mapping[str, tuple], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(dtype) if dtype.kind in "fc" else rng.integers(0, _BELOW, shape).astype(dtype)
            for name, (_, shape, dtype) in arguments.items()}


def _read(arguments: Mapping[str, tuple], path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            values = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file; check the path") from None
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise FormatError(f"{path}: expected an NPZ file (numpy.savez), got {error}; write it again") from None
    for name, (_, shape, dtype) in arguments.items():
        got = values.get(name)
        if got is None:
            raise field_error(FormatError, str(path), "", name, f"an array; the arguments are {', '.join(arguments)}", None)
        if got.shape != shape or not np.can_cast(got.dtype, dtype, "same_kind"):
            raise FormatError(f"{path}: {name}: expected {dtype.name} of shape {list(shape)}, got {got.dtype.name} of {list(got.shape)}; "
                              f"mend the array")
    return {name: values[name].astype(dtype) for name, (_, _, dtype) in arguments.items()}
