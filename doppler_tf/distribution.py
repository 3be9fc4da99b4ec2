"""A function of your own on several devices, in one call: captured, measured, placed, and run as often as you like."""

from __future__ import annotations

import contextlib
import math
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler_tf.batches import repeat_graph
from doppler_tf.cli.calibration_runs import profiled
from doppler_tf.cli.inputs import LOCAL, load_topology
from doppler_tf.cli.messages import note
from doppler_tf.cli.tensorflow import import_quietly
from doppler_tf.costs import build_costs
from doppler_tf.errors import (
    CancelledError,
    ConfigError,
    DeviceLostError,
    DopplerError,
    ExecutionError,
    StalledError,
    UserError,
    field_error,
)
from doppler_tf.finalists import Finalist, baselines, finalists_of, narrowed
from doppler_tf.formats.cluster_json import read_cluster
from doppler_tf.merging import merge_calls
from doppler_tf.placement import place, place_batches
from doppler_tf.report.ways import ways_table
from doppler_tf.showing import ShowsItself
from doppler_tf.topology import cpu

if TYPE_CHECKING:
    import tensorflow as tf

    from data.capture.binding import Call
    from data.capture.concrete import Concrete
    from doppler_tf.assignment import Assignment
    from doppler_tf.topology import Topology
    from doppler_tf.trace import Trace
    from runtime.cluster import Cluster
    from runtime.ways import Way

# Assignments of a cut that run on the engine.
_ASSIGNMENTS = 3
# The engine is as fast as another way if it takes no more than this times as long.
_AS_FAST = 1.01
# `map` joins so many batches into one run for each batch in flight, where there are several.
_BATCHES_A_RUN = 8


def prepare_devices(count: int | None = None) -> list[str]:
    """Makes as many TensorFlow devices, and returns their names. Call it before TensorFlow's first operation.

    Args:
      count: None: a device for each GPU, or without GPUs for each core that this process may use.

    Raises:
      ConfigError: TensorFlow is initialised with fewer devices.
    """
    runtime, local = import_quietly("runtime"), import_quietly("runtime.local")
    return runtime.prepare_devices(local.count_local_devices() if count is None else count)


def connect(cluster: str | Path) -> Cluster:
    """Connects to the machines of a cluster file, for `distribute`. Call it before TensorFlow's first operation.

    Raises:
      FormatError: no ClusterSpec. ConfigError: a worker does not answer, or TensorFlow is initialised.
    """
    return import_quietly("runtime.cluster").Cluster(read_cluster(cluster))


def distribute(function, example_inputs=None, topology: str = LOCAL, budget_s: float | None = 30.0, in_flight: int = 1,
               pieces: int | None = None, folder: str | Path | None = None, seed: int = 0, cluster: Cluster | None = None,
               keep_devices: bool = False, example_keywords: Mapping[str, Any] | None = None, freeze_variables: bool = True,
               executor: str | None = None) -> Distributed:
    """Makes a function as fast as it gets on the devices of this machine, or of a cluster.

    The function is captured, its kernels are measured, and the best assignments are searched. Then the ways to run it are measured in
    turn: the best assignments on our engine, the best of them on TensorFlow's own executor, and TensorFlow alone (as it is, with frozen
    variables, compiled by XLA). What is fastest is returned, the engine where it is as fast. `report()` shows the figures.

    Args:
      function: a tf.function, a Keras 2 model or any callable; as `data.capture.capture`.
      example_inputs: a tuple of all positional arguments, or the only argument. Of tensors, arrays and floats shapes and types count;
        kernels are measured with their values, and with drawn ones for a TensorSpec. Other Python values, and defaults that are left
        out, become part of the function. None: what it asks for itself.
      topology: `local`, or a topology with as many devices as shall be used here.
      budget_s: seconds of the search; None: no search, constructive heuristics alone.
      in_flight: `map` works on this many batches at once.
      pieces: large operations are cut into so many tiles. None: runs decide between one and a tile for each device; with batches in
        flight nothing is cut.
      folder: for the captured model; None: a temporary one.
      cluster: as `connect` gives it; takes the place of `topology`.
      keep_devices: what stands in a `tf.device` scope runs on that device; else scopes are dropped.
      example_keywords: further arguments, by name.
      freeze_variables: as `data.capture.capture`. Where variables of the original change afterwards, a warning tells.
      executor: `engine`, `TensorFlow's executor` or `TensorFlow alone`: only ways of this kind are considered.

    Returns:
      The function, placed: call it as the original. Its variables are copies of the original's.

    Raises:
      ConfigError: the function cannot be captured, it fails with the example's values, or TensorFlow has too few devices (see
        `prepare_devices`).
    """
    for name, value in (("in_flight", in_flight), ("pieces", 1 if pieces is None else pieces)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise field_error(ConfigError, "distribute", "", name, "an integer >= 1", value)
    runtime, concrete, ways = import_quietly("runtime"), import_quietly("data.capture.concrete"), import_quietly("runtime.ways")
    kinds = (ways.ENGINE, ways.THEIRS, ways.ALONE)
    if executor is not None and executor not in kinds:
        raise field_error(ConfigError, "distribute", "", "executor", f"None or one of {', '.join(kinds)}", executor)
    if executor == ways.THEIRS and (cluster is not None or in_flight > 1):
        raise ConfigError("distribute: executor: TensorFlow's executor runs one call at a time, on this machine; leave out in_flight and "
                          "cluster, or choose another executor")
    if cluster is None:
        target = load_topology(topology)
        devices = runtime.prepare_devices(target.num_devices)
    else:
        devices = cluster.devices
        target = cluster.named(cpu(len(devices)))  # of which only the number counts, as all costs are measured
    temporary = tempfile.TemporaryDirectory(prefix="doppler_") if folder is None else None
    name, root = import_quietly("data.capture").title_of(function), Path(temporary.name if folder is None else folder)
    traced = concrete.concrete(function, example_inputs, name, example_keywords)
    cuts = [1 if pieces is None else pieces]
    if pieces is None and in_flight == 1 and target.num_devices > 1:
        cuts.append(target.num_devices)
    share_s = None if budget_s is None else budget_s / len(cuts)
    found = []
    for cut in cuts:
        found.append(_Candidate(traced, name, root / ("cut" if found else "model"), target, cut, in_flight, share_s, seed, cluster,
                                keep_devices, freeze_variables))
    if found[0].captured.scoped and not keep_devices:
        note(f"{name}: {found[0].captured.dropped_scopes}; keep_devices=True keeps them")
    outcome = _fastest(found, in_flight, devices, cluster, executor)
    return Distributed(traced, outcome, in_flight, devices, temporary)


class _Candidate:
    """A function captured, measured and placed.

    Attributes:
      captured: what became of the operations.
      graph, costs, program: what was captured and measured.
      patterns: assignments of batches in flight by the name of a method, the best by simulation first; predicted_s: simulated seconds of a
        batch.
    """

    def __init__(self, traced, name: str, model_folder: Path, target: Topology, pieces: int, in_flight: int, budget_s: float | None,
                 seed: int, cluster: Cluster | None, keep_devices: bool, freeze_variables: bool):
        self.captured = import_quietly("data.capture").capture_counted(traced, model_folder=model_folder, name=name, pieces=pieces,
                                                                       keep_devices=keep_devices, freeze_variables=freeze_variables)
        self.folder, self.pieces, self._name = model_folder, pieces, name
        examples = traced.binding.examples
        self.program = import_quietly("runtime.captured_program").CapturedProgram(self.captured.graph, seed, examples)
        with self.blaming_values():
            self._measure_and_place(target, in_flight, budget_s, seed, cluster)

    @contextlib.contextmanager
    def blaming_values(self) -> Iterator[None]:
        """Raises ConfigError for a run that fails, if the original fails with these arguments, too."""
        try:
            yield
        except (DeviceLostError, StalledError):
            raise
        except ExecutionError as failed:
            try:
                self.program.original(self.program.arguments)
            except Exception:  # whatever an operation raises
                drawn = self.program.names_drawn
                got = f"drawn numbers for {', '.join(drawn)}" if drawn else "others"
                remedy = "give arrays or tensors, not only specs" if drawn else "give values that it takes"
                raise ConfigError(f"{self._name}: example_inputs: expected values with which the function runs, got {got}: {failed}; "
                                  f"{remedy}") from failed
            raise

    def _measure_and_place(self, target: Topology, in_flight: int, budget_s: float | None, seed: int, cluster: Cluster | None) -> None:
        graph = self.captured.graph
        profile = profiled(graph, build_costs(graph, target), self.program.inputs, anew=False, cluster=cluster)
        self.graph, self.costs = profile.graph, profile.costs
        batches = repeat_graph(self.graph, self.costs.topology, in_flight, in_flight)
        if in_flight == 1:
            placed = place(self.graph, self.costs, seed=seed, budget_s=budget_s)
            simple = baselines(self.graph, self.costs, seed)
        else:
            placed = place_batches(batches, seed=seed, budget_s=budget_s)
            single = baselines(batches.single, batches.single_costs, seed)
            simple = {name: batches.assignment([single[name]], method=name) for name in ("one_device",) if name in single}
        finalists = finalists_of(placed, simple)
        graph, costs = (self.graph, self.costs) if in_flight == 1 else (batches.graph, batches.costs)
        merged = {name: merge_calls(graph, costs, a, self.program.repeated(batches, seed).fetch if in_flight > 1 else self.program.fetch)
                  for name, a in finalists.items()}
        different: dict[tuple, str] = {}
        for name in sorted(merged, key=lambda name: merged[name].makespan_s):
            different.setdefault((merged[name].vertex.tobytes(), merged[name].assignment.device.tobytes()), name)
        self.patterns = {name: [finalists[name]] if in_flight == 1 else batches.pattern(finalists[name]) for name in different.values()}
        self.predicted_s = {name: merged[name].makespan_s / in_flight for name in different.values()}


@dataclass(frozen=True, eq=False)
class _Option:
    """A way that may be measured, and what makes it."""

    candidate: _Candidate
    pattern: list[Assignment]
    predicted_s: float | None
    make: Callable[[], Way]


@dataclass(frozen=True, eq=False)
class _Outcome:
    """The fastest way, and how it was found: the figures of each way, and the candidate that it comes from."""

    candidate: _Candidate
    way: Way
    chosen: str
    ways: Mapping[str, Finalist]
    pattern: list[Assignment]


def _fastest(found: Sequence[_Candidate], in_flight: int, devices: Sequence[str], cluster: Cluster | None,
             executor: str | None) -> _Outcome:
    """Runs the ways in turn, ever fewer of them."""
    ways = import_quietly("runtime.ways")
    made: dict[str, _Option] = {}
    for each in found:
        of = f", in {each.pieces} pieces" if each.pieces > 1 else ""
        # A single call may use all cores that idle, which no simulation knows of.
        names = list(dict.fromkeys([*list(each.patterns)[:_ASSIGNMENTS], *(["one_device"] if "one_device" in each.patterns else [])]))
        if executor in (None, ways.ENGINE):
            for name in names:
                made[f"engine, {name}{of}"] = _Option(each, each.patterns[name], each.predicted_s[name], partial(
                    ways.EngineWay, each.program, each.graph, each.costs, each.patterns[name], in_flight, devices, cluster))
        if executor in (None, ways.THEIRS) and cluster is None and in_flight == 1:
            pattern = each.patterns[names[0]]
            made[f"TensorFlow's executor, {names[0]}{of}"] = _Option(each, pattern, each.predicted_s[names[0]], partial(
                ways.TheirWay, each.program, each.graph, each.costs, pattern[0], devices))
    first = found[0]
    if executor in (None, ways.ALONE):
        for mode in import_quietly("runtime.alone").modes(first.folder):
            made[f"TensorFlow alone, {mode}"] = _Option(first, next(iter(first.patterns.values())), None, partial(
                ways.LonelyWay, first.folder, mode, in_flight))
    running: dict[str, Way] = {}
    failed: list[DopplerError] = []
    calls = [first.program.tensors] * (1 if in_flight == 1 else 2 * in_flight)

    def timed(name: str) -> float:
        try:
            with made[name].candidate.blaming_values():
                if name not in running:
                    running[name] = made[name].make()
                    running[name].run(calls)
                running[name].run(calls)  # at the first run caches are full of another's tensors
                begun_s = perf_counter()
                running[name].run(calls)
                return (perf_counter() - begun_s) / len(calls)
        except (CancelledError, UserError):
            raise
        except DopplerError as error:
            failed.append(error)
        except Exception as error:  # XLA does not compile every operation, and TensorFlow's executor may run out of memory
            if name in running and running[name].executor == ways.ENGINE:
                raise
            failed.append(ExecutionError(f"{name}: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"))
        return math.nan

    figures = {name: Finalist(made[name].predicted_s, seconds) for name, seconds in narrowed(list(made), timed).items()}
    chosen = _chosen(figures, [name for name, way in running.items() if way.executor == ways.ENGINE])
    if chosen is None:
        raise failed[-1]
    for name, way in running.items():
        if name != chosen:
            way.close()
    running[chosen].variables = {name: first.program.value(name) for name in first.program.updates}
    return _Outcome(made[chosen].candidate, running[chosen], chosen, figures, made[chosen].pattern)


def _chosen(figures: Mapping[str, Finalist], ours: Sequence[str]) -> str | None:
    """The fastest, but one of `ours` that is as fast; None where nothing has run."""
    most = max((len(f.seconds) for f in figures.values()), default=0)
    often = [name for name, f in figures.items() if most and 2 * len(f.seconds) >= most]
    best = min(often, key=lambda name: figures[name].median_s, default=None)
    mine = min((name for name in often if name in ours), key=lambda name: figures[name].median_s, default=best)
    return mine if best is None or figures[mine].median_s <= _AS_FAST * figures[best].median_s else best


class Distributed(ShowsItself):
    """A function on several devices. `close()`, or leaving a `with` block, ends its threads.

    Attributes:
      executor: what runs it: `engine`, `TensorFlow's executor` or `TensorFlow alone`.
      ways: the figures of all ways that were measured, by name; chosen: the name of the one that runs it.
      graph, costs: what was captured and measured.
      pattern: the assignment of batch b is `pattern[b % len(pattern)]`; a single call takes the first. TensorFlow alone takes none.
      in_flight: batches that `map` works on at once.
      predicted_s: simulated seconds of a batch, where batches follow each other; measured ones of TensorFlow alone.
      variables: the present values of the variables that the function updates, by name.
      trace: of the last run on the engine.
    """

    def __init__(self, traced: Concrete, outcome: _Outcome, in_flight: int, devices: list[str],
                 temporary: tempfile.TemporaryDirectory | None):
        candidate, self.pattern, self.ways, self.chosen = outcome.candidate, outcome.pattern, outcome.ways, outcome.chosen
        self.graph, self.costs, self.in_flight, self.executor = candidate.graph, candidate.costs, in_flight, outcome.way.executor
        figures = outcome.ways[outcome.chosen]
        self.predicted_s = figures.median_s if figures.simulated_s is None else figures.simulated_s
        self._traced, self._program, self._way, self._devices, self._temporary = traced, candidate.program, outcome.way, devices, temporary
        self._fingerprints = import_quietly("runtime.fingerprints").Fingerprints(traced.handles, candidate.program.updates)
        self._one_run_at_a_time = threading.Lock()
        self._copies: dict[str, tf.Variable] = {}
        self._told = self._called = False

    @property
    def assignment(self) -> Assignment:
        """The assignment of a single call."""
        return self.pattern[0]

    @property
    def variables(self) -> Mapping[str, np.ndarray]:
        """See the class. Empty before the first call; may be set."""
        return MappingProxyType({name: np.asarray(value) for name, value in self._way.variables.items()} if self._called else {})

    @variables.setter
    def variables(self, values: Mapping[str, Any]) -> None:
        unknown = next((name for name in values if name not in self._program.updates), None)
        if unknown is not None:
            raise field_error(ConfigError, self.graph.name, "", "variables", f"those that it updates: {', '.join(self._program.updates)}",
                              unknown)
        with self._one_run_at_a_time:
            self._called = True
            self._way.variables = {**self._way.variables, **values}

    @property
    def trace(self) -> Trace | None:
        """See the class."""
        return self._way.trace

    def report(self) -> str:
        """A table of all ways that were measured, the fastest first."""
        return ways_table(self.ways, self.chosen)

    def __call__(self, /, *arguments, **keywords):
        """One call, with the arguments of the original; returns what the original returns.

        A call with tensors of other shapes or types than the example's is run by the original, on one device, which is told once. So
        results are never missing, and variables go on as they would.

        Raises:
          ConfigError: the original cannot be called so, or the structure or a Python value is not the example's.
        """
        return next(self._results([self._traced.call(arguments, keywords)]))

    def map(self, batches: Iterable) -> Iterator:
        """Calls the function with each batch in turn, `in_flight` of them at once, and yields results in order.

        What came before a batch that fails, or before an error of the iterable, is yielded before the error is raised.

        Args:
          batches: a tuple holds the positional arguments of a call, a dict with the names of parameters its keywords unless the only
            argument is a dict, and anything else is the only argument.
        """
        waiting, most, failed = [], 1 if self.in_flight == 1 else _BATCHES_A_RUN * self.in_flight, None
        rest = iter(batches)
        while failed is None:
            try:
                waiting.append(self._call_of(next(rest)))
            except StopIteration:
                break
            except Exception as error:  # whatever the user's iterable raises, and calls that do not fit
                failed = error
            if waiting and (failed is not None or len(waiting) == most or waiting[-1].misfit):
                yield from self._results(waiting)
                waiting = []
        yield from self._results(waiting)
        if failed is not None:
            raise failed

    def export(self, folder: str | Path) -> Path:
        """Writes a SavedModel whose operations name their devices, for TensorFlow alone. Raises FormatError: it cannot be written."""
        import_quietly("runtime.placed_model").write_placed_model(folder, self.graph, self.assignment, self._devices)
        return Path(folder)

    def close(self) -> None:
        """Ends all threads and removes a temporary folder."""
        self._way.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Distributed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

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
