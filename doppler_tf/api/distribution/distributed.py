"""A function of the user's on several devices: calls, batches in flight, variables, export."""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler_tf.api.distribution.fastest import Outcome
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, Described, ExecutionError, UserError, field_error
from doppler_tf.report.ways import ways_table
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.trace import Trace
from doppler_tf.schema import check
from doppler_tf.showing import ShowsItself

if TYPE_CHECKING:
    import tensorflow as tf

    from data.capture.calls.binding import Call
    from data.capture.calls.concrete import Concrete


class Distributed(ShowsItself):
    """A function on several devices. `close()`, or leaving a `with` block, ends its threads.

    Attributes:
      executor: what runs it: `engine`, `TensorFlow's executor` or `TensorFlow alone`.
      ways: the figures of all ways that were measured, by name; chosen: the name of the one that runs it.
      graph, costs: what was captured and measured.
      pattern: the assignment of batch b is `pattern[b % len(pattern)]`; a single call takes the first. TensorFlow alone takes none. Within
        limits of memory that of a single call: batches in flight have a plan together.
      in_flight: batches that `map` works on at once.
      predicted_s: simulated seconds of a batch, where batches follow each other; measured ones of TensorFlow alone.
      variables: the present values of the variables that the function updates, by name.
      trace: of the last run on the engine.
    """

    def __init__(self, traced: Concrete, outcome: Outcome, in_flight: int, devices: list[str],
                 temporary: tempfile.TemporaryDirectory | None):
        candidate, self.pattern, self.ways, self.chosen = outcome.candidate, outcome.pattern, outcome.ways, outcome.chosen
        self.graph, self.costs, self.in_flight, self.executor = candidate.graph, candidate.costs, in_flight, outcome.way.executor
        figures = outcome.ways[outcome.chosen]
        self.predicted_s = figures.median_s if figures.simulated_s is None else figures.simulated_s
        self._traced, self._program, self._way, self._devices, self._temporary = traced, candidate.program, outcome.way, devices, temporary
        self._fingerprints = import_quietly("runtime.models.fingerprints").Fingerprints(traced.handles, candidate.program.updates)
        self._one_run_at_a_time = threading.Lock()
        self._copies: dict[str, tf.Variable] = {}
        self._told = self._told_of_tapes = self._called = self._closed = False

    @property
    def assignment(self) -> Assignment:
        """The assignment of a single call."""
        return self.pattern[0]

    @property
    def variables(self) -> Mapping[str, np.ndarray]:
        """See the class. May be set, some or all of them: `placed.variables = {name: value}`."""
        present = self._way.variables if self._called else {}
        return MappingProxyType({name: np.asarray(present.get(name, self._program.value(name))) for name in self._program.updates})

    @variables.setter
    def variables(self, values: Mapping[str, Any]) -> None:
        check(values, Mapping, ConfigError, self.graph.name, "", "variables")
        unknown = next((name for name in values if name not in self._program.updates), None)
        if unknown is not None:
            raise field_error(ConfigError, self.graph.name, "", "variables",
                              f"those that it updates: {', '.join(self._program.updates) or 'none'}", unknown)
        fitting = {name: self._fitting(name, value) for name, value in values.items()}
        with self._one_run_at_a_time:
            self._called = True
            self._way.variables = {**self._way.variables, **fitting}

    @property
    def trace(self) -> Trace | None:
        """See the class."""
        return self._way.trace

    def report(self) -> str:
        """A table of all ways that were measured, the fastest first."""
        return ways_table(self.ways, self.chosen)

    def __call__(self, /, *arguments, **keywords):
        """One call, with the arguments of the original; returns what the original returns. Gradients do not pass through it.

        A call with tensors of other shapes or types than the example's is run by the original, on one device, which is told once. So
        results are never missing, and variables go on as they would.

        Raises:
          ConfigError: the original cannot be called so, or the structure or a Python value is not the example's; another function is
            being traced; it is closed.
        """
        self._check()
        call = self._traced.call(arguments, keywords)
        self._warn_of_gradients(call)
        return next(self._results([call]))

    def map(self, batches: Iterable) -> Iterator:
        """Calls the function with each batch in turn, `in_flight` of them at once, and yields results in order.

        What came before a batch that fails, or before an error of the iterable, is yielded before the error is raised.

        Args:
          batches: a tuple holds the positional arguments of a call, a dict with the names of parameters its keywords unless the only
            argument is a dict, and anything else is the only argument.
        """
        self._check()
        if not isinstance(batches, Iterable):
            raise field_error(ConfigError, self.graph.name, "map", "batches", "an iterable of batches", batches)
        return self._mapped(iter(batches))

    def _mapped(self, rest: Iterator) -> Iterator:
        waiting, failed = [], None
        while failed is None:
            try:
                waiting.append(self._call_of(next(rest)))
            except StopIteration:
                break
            except Exception as error:  # whatever the user's iterable raises, and calls that do not fit
                failed = error
            self._check()
            if waiting and (failed is not None or len(waiting) == self._way.together or waiting[-1].misfit):
                yield from self._results(waiting)
                waiting = []
        yield from self._results(waiting)
        if failed is not None:
            raise failed

    def export(self, folder: str | Path) -> Path:
        """Writes a SavedModel whose operations name their devices, for TensorFlow alone.

        Raises ConfigError: it keeps tensors on the host, which a SavedModel cannot say. FormatError: it cannot be written.
        """
        self._check()
        if self.assignment.offload is not None:
            raise ConfigError(f"{self.graph.name}: export: expected an assignment that fits in the devices' memory, as a SavedModel cannot "
                              "say when tensors leave a device, got a plan with a host; give more memory_bytes")
        import_quietly("runtime.models.placed_model").write_placed_model(folder, self.graph, self.assignment, self._devices)
        return Path(folder)

    def close(self) -> None:
        """Ends all threads and removes a temporary folder. Nothing can be called afterwards."""
        self._closed = True
        self._way.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __reduce__(self):
        raise ConfigError(f"{self.graph.name}: expected no copy of a distributed function, which has threads and tensors on devices; "
                          "export() writes one that other processes load")

    def __enter__(self) -> Distributed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def _check(self) -> None:
        """Raises ConfigError: it is closed, or called where there are no values yet."""
        import tensorflow as tf

        if self._closed:
            raise ConfigError(f"{self.graph.name}: closed: expected calls before close(), or within the `with` block; distribute it again")
        if not tf.executing_eagerly():
            raise ConfigError(f"{self.graph.name}: expected a call with values, got one while another function is traced; call it outside "
                              "of a tf.function or Dataset.map (map() takes a data set), or distribute the whole")

    def _warn_of_gradients(self, call: Call) -> None:
        from tensorflow.python.eager import record

        if not self._told_of_tapes and record.should_record_backprop(list(call.tensors.values())):
            self._told_of_tapes = True
            warnings.warn(f"{self.graph.name}: called under a GradientTape, but gradients do not pass through it and are None; distribute "
                          "the function that computes the gradients, too", stacklevel=3)

    def _fitting(self, name: str, value: Any) -> np.ndarray:
        """The value in the variable's type. Raises ConfigError: it has another shape, or a type that would lose something."""
        present, given = self._program.value(name), np.asarray(value)
        if given.shape != present.shape or not (given.dtype == present.dtype or np.can_cast(given.dtype, present.dtype, "same_kind")):
            raise field_error(ConfigError, self.graph.name, "", f"variables[{name!r}]", f"{present.dtype.name} of shape "
                              f"{list(present.shape)}", Described(f"{given.dtype.name} of shape {list(given.shape)}"))
        return given.astype(present.dtype)

    def _call_of(self, batch: Any) -> Call:
        if isinstance(batch, Mapping):
            try:
                return self._traced.call((batch,), {})
            except UserError as error:
                try:
                    return self._traced.call((), batch)
                except (UserError, TypeError):
                    raise error from None
        return self._traced.call(batch if type(batch) is tuple else (batch,), {})

    def _results(self, calls: list[Call]) -> Iterator:
        """Of calls of which only the last may not fit: together, or, where one of them fails, each alone until there."""
        fitting = [call for call in calls if not call.misfit]
        try:
            yield from self._run(fitting) if fitting else ()
        except ExecutionError:
            if len(fitting) == 1:
                raise
            for call in fitting:
                yield from self._run([call])
        for call in calls[len(fitting):]:
            yield self._by_the_original(call)

    def _run(self, calls: list[Call]) -> list:
        with self._one_run_at_a_time:
            self._called = True
            results = self._way.run([call.tensors for call in calls])
        self._fingerprints.check(self.graph.name)
        return [self._traced.packed(list(each.values())) for each in results]

    def _by_the_original(self, call: Call) -> Any:
        """On copies of the variables, which have the present values before and give them afterwards."""
        import tensorflow as tf

        if not self._told:
            self._told = True
            warnings.warn(f"{self.graph.name}: {call.misfit}: such calls are run by the original function, on one device; pad them, or "
                          "distribute the function for them, too, if there are many", stacklevel=4)
        with self._one_run_at_a_time:
            if not self._copies:
                self._copies = {name: tf.Variable(self._program.value(name), trainable=False) for name in self._traced.handles}
            present = self._way.variables
            for name in self._program.updates:
                self._copies[name].assign(present.get(name, self._program.value(name)))
            result = self._traced.run(call, {name: copy.handle for name, copy in self._copies.items()})
            self._called = True
            self._way.variables = {name: self._copies[name].numpy() for name in self._program.updates}
        return result
