"""A captured model on the executors, for one call or for several: inputs, weights, and the check against the original function."""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from doppler_tf.errors import FormatError, GraphError, field_error
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.batches import Batches
from runtime.models.captured import captured_model, original_function

# Drawn integers stay below this, because they may be indices into a table of unknown length.
_BELOW = 2


class CapturedProgram:
    """The original function of a captured graph, with values for its arguments.

    Attributes:
      arguments: arrays by name.
      inputs: arrays of arguments and weights, by input vertex.
      weights: the variable of each input vertex that holds one and that kernels take, or is a result.
      results, updates: the tensor of each result, and of each variable that is updated, by name.
      same_structure: whether the graph's results are those of the original: as many, of the same paths and kinds.
    """

    def __init__(self, graph: DataflowGraph, seed: int = 0, values: Path | Mapping[str, Any] | None = None):
        """Draws the arguments.

        Args: values: by name, where there are any; or an NPZ file that has all of them.

        Raises:
          GraphError: the record of the capture is incomplete.
          FormatError: the model folder or the file of values is missing, damaged or does not fit.
        """
        try:
            record = graph.attributes["captured"]
            self._model = captured_model(record["model"])
            index = graph.vertex_of
            self._specs = {x["name"]: (index[x["vertex"]], tuple(x["shape"]), np.dtype(x["dtype"])) for x in record["inputs"]}
            returned = {index[x["vertex"]] for x in record["outputs"]}
            self.weights = {index[x["vertex"]]: x["variable"] for x in record["weights"]
                            if not x.get("frozen") or index[x["vertex"]] in returned | graph.taken_inputs}
            self.results = {x["name"]: self._tensor(graph, x) for x in record["outputs"]}
            self.updates = {x["variable"]: self._tensor(graph, x) for x in record["updates"]}
            self.same_structure = _structure(record["outputs"]) == _structure(self._model.original.meta["outputs"])
        except (KeyError, TypeError, IndexError) as error:
            raise GraphError(f"{graph.name}: captured: expected the record that `capture` writes, got another ({error!r}); capture the "
                             f"model again") from None
        self.original = original_function(record["model"])
        self._given = _read(self._specs, values) if isinstance(values, Path) else self._as_specified(values or {})
        self.arguments = self.drawn(seed)
        self.inputs = {**self.by_vertex(self.arguments), **{v: self._model.weight(name) for v, name in self.weights.items()}}
        self._input_of = {int(graph.tensor_ptr[v]): v for v in self.inputs}

    @staticmethod
    def _tensor(graph: DataflowGraph, record: Mapping[str, Any]) -> int:
        return int(graph.tensor_ptr[graph.vertex_of[record["vertex"]]]) + record.get("output", 0)

    @property
    def fetch(self) -> tuple[int, ...]:
        """The tensors that hold results and updated variables, unless they are inputs."""
        return tuple(dict.fromkeys(t for t in (*self.results.values(), *self.updates.values()) if t not in self._input_of))

    def drawn(self, seed: int) -> dict[str, np.ndarray]:
        """Arguments by name: those that are given, else normal numbers, and integers that are 0 or 1."""
        rng = np.random.default_rng(seed)
        return {name: self._given[name] if name in self._given else
                rng.normal(size=shape).astype(dtype) if dtype.kind in "fc" else rng.integers(0, _BELOW, shape).astype(dtype)
                for name, (_, shape, dtype) in self._specs.items()}

    @functools.cached_property
    def tensors(self) -> dict[str, tf.Tensor]:
        """The arguments as tensors, by name."""
        return {name: tf.constant(value) for name, value in self.arguments.items()}

    @property
    def names_drawn(self) -> list[str]:
        """The arguments without given values."""
        return [name for name in self._specs if name not in self._given]

    def _as_specified(self, values: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return {name: np.asarray(values[name]).astype(dtype) for name, (_, _, dtype) in self._specs.items() if name in values}

    def value(self, variable: str) -> np.ndarray:
        """A variable's value when the function was captured."""
        return self._model.weight(variable)

    def by_vertex(self, arguments: Mapping[str, Any]) -> dict[int, Any]:
        """Arguments by input vertex."""
        return {v: arguments[name] for name, (v, _, _) in self._specs.items()}

    def repeated(self, batches: Batches, seed: int) -> CapturedBatches:
        """Several calls, whose arguments are drawn by seed + batch unless they are given."""
        return CapturedBatches(self, batches, seed)

    def relative_error(self, outputs: Mapping[int, np.ndarray]) -> float:
        """The largest ||a - b|| / ||b|| over results and updated variables of a run (by tensor) against the original function.

        Infinite where the results have another structure, shape or type.
        """
        if not self.same_structure:
            return float("inf")
        expected, updated = self.original(self.arguments)
        known = {**outputs, **{t: self.inputs[v] for t, v in self._input_of.items()}}
        pairs = [(known[self.results[name]], value) for name, value in expected.items()]
        pairs += [(known[self.updates[name]], value) for name, value in updated.items()]
        return _largest(pairs)


class CapturedBatches:
    """Consecutive calls of a captured model, each with arguments of its own, as `Batches` runs them.

    Attributes:
      inputs: arrays by input vertex of the joined graph, for drawn arguments.
      fetch: the tensors of the joined graph that hold all results and the variables in the end.
    """

    def __init__(self, program: CapturedProgram, batches: Batches, seed: int = 0):
        """Draws the arguments of batch b by seed + b."""
        self._program, self._batches, last = program, batches, batches.repeats - 1
        self._arguments = [program.drawn(seed + b) for b in range(batches.repeats)]
        self._results = [{name: batches.tensor(b, t) for name, t in program.results.items()} for b in range(batches.repeats)]
        self._updates = {name: batches.tensor(last, t) for name, t in program.updates.items()}
        self.inputs = {int(batches.vertex[0, v]): value for v, value in program.inputs.items()} | self.given(self._arguments)
        fetched = dict.fromkeys([*(t for each in self._results for t in each.values()), *self._updates.values()])
        self.fetch = tuple(t for t in fetched if not batches.graph.is_input[batches.graph.tensor_producer[t]])

    def given(self, arguments: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] | None = None) -> dict[int, Any]:
        """Values by input vertex. Args: arguments: by name, for each batch; variables: values at the start, by name."""
        given = {int(self._batches.vertex[b, v]): value for b, values in enumerate(arguments)
                 for v, value in self._program.by_vertex(values).items()}
        return given | {int(self._batches.vertex[0, v]): variables[name] for v, name in self._program.weights.items()
                        if variables is not None and name in variables}

    def results(self, outputs: Mapping[int, Any], given: Mapping[int, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The results of each batch, and the variables in the end, by name.

        Args:
          outputs: of a run, by tensor. given: what the run had beside `inputs`, by input vertex.
        """
        first = self._batches.graph.tensor_ptr
        known = {**{int(first[v]): value for v, value in {**self.inputs, **given}.items()}, **outputs}
        # A weight that the function returns is known as an array.
        return ([{name: tf.convert_to_tensor(known[t]) for name, t in each.items()} for each in self._results],
                {name: known[t] for name, t in self._updates.items()})

    def relative_error(self, outputs: Mapping[int, np.ndarray]) -> float:
        """As CapturedProgram's, over the results of all batches and the variables in the end."""
        if not self._program.same_structure:
            return float("inf")
        results, variables = self.results(outputs, {})
        pairs, expected_variables = [], {}
        for arguments, found in zip(self._arguments, results, strict=True):
            expected, updated = self._program.original(arguments, expected_variables)
            expected_variables |= updated
            pairs += [(found[name], value) for name, value in expected.items()]
        return _largest([*pairs, *((value, expected_variables[name]) for name, value in variables.items())])


def _structure(outputs: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Path of each result, and the type of the composite tensor that it is a part of."""
    return [(x["name"], x.get("composite", "")) for x in outputs]


def _largest(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    return max((_distance(np.asarray(got), np.asarray(value)) for got, value in pairs), default=0.0)


def _distance(got: np.ndarray, expected: np.ndarray) -> float:
    """||got - expected|| / ||expected||; if `expected` is 0, ||got||. Values that are no number on both sides count as equal."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return float("inf")
    got, expected = got.astype(np.complex128 if np.iscomplexobj(expected) else np.float64), expected.astype(
        np.complex128 if np.iscomplexobj(expected) else np.float64)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    size = np.linalg.norm(np.where(same & ~np.isfinite(expected), 0.0, expected).ravel())
    error = np.linalg.norm(np.where(same, 0.0, got - expected).ravel())
    return float(error / size if size else error)


def _read(arguments: Mapping[str, tuple], path: Path) -> dict[str, np.ndarray]:
    if path.is_file() and not zipfile.is_zipfile(path):
        raise FormatError(f"{path}: expected an NPZ file, got another; write it with numpy.savez(FILE, **{{NAME: array}})")
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
