"""A function of your own on several devices, in one call: captured, measured, placed, and run as often as you like."""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from doppler_tf.batches import Batches, repeat_graph
from doppler_tf.cli.calibration_runs import profiled
from doppler_tf.cli.inputs import LOCAL, load_topology
from doppler_tf.cli.measured_choice import choose_batches_by_runs, choose_by_runs
from doppler_tf.cli.messages import note
from doppler_tf.cli.tensorflow import import_quietly
from doppler_tf.costs import build_costs
from doppler_tf.errors import ConfigError, DeviceLostError, ExecutionError, StalledError, UserError, field_error
from doppler_tf.formats.cluster_json import read_cluster
from doppler_tf.placement import place, place_batches
from doppler_tf.showing import ShowsItself
from doppler_tf.topology import cpu

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from data.capture.binding import Call
    from data.capture.concrete import Concrete
    from doppler_tf.assignment import Assignment
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.topology import Topology
    from doppler_tf.trace import Trace
    from runtime import TensorFlowExecutor
    from runtime.captured_program import CapturedBatches, CapturedProgram
    from runtime.cluster import Cluster

# Runs by which an assignment is chosen.
MEASURED_RUNS = 48
# `map` joins so many batches into one run for each batch in flight.
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
               keep_devices: bool = False, example_keywords: Mapping[str, Any] | None = None) -> Distributed:
    """Places a function on the devices of this machine, or of a cluster.

    The function is captured, its kernels are measured, and the best assignment is searched. Runs decide between the assignments found
    and simple ones, such as all on one device.

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

    Returns:
      The function, placed: call it as the original. Its variables are copies of the original's.

    Raises:
      ConfigError: the function cannot be captured, it fails with the example's values, or TensorFlow has too few devices (see
        `prepare_devices`).
    """
    for name, value in (("in_flight", in_flight), ("pieces", 1 if pieces is None else pieces)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise field_error(ConfigError, "distribute", "", name, "an integer >= 1", value)
    runtime, concrete = import_quietly("runtime"), import_quietly("data.capture.concrete")
    if cluster is None:
        target = load_topology(topology)
        devices = runtime.prepare_devices(target.num_devices)
    else:
        devices = cluster.devices
        target = cluster.named(cpu(len(devices)))  # of which only the number counts, as all costs are measured
    temporary = tempfile.TemporaryDirectory(prefix="doppler_") if folder is None else None
    name, root = import_quietly("data.capture").title_of(function), Path(temporary.name if folder is None else folder)
    traced = concrete.concrete(function, example_inputs, name, example_keywords)
    both = pieces is None and in_flight == 1 and target.num_devices > 1
    share_s = None if budget_s is None else budget_s / (2 if both else 1)
    best = _Candidate(traced, name, root / "model", target, 1 if pieces is None else pieces, in_flight, share_s, seed, cluster,
                      keep_devices)
    if best.captured.scoped and not keep_devices:
        note(f"{name}: {best.captured.dropped_scopes}; keep_devices=True keeps them")
    if both:
        cut = _Candidate(traced, name, root / "cut", target, target.num_devices, in_flight, share_s, seed, cluster, keep_devices)
        best = cut if cut.median_s < best.low_s else best
    return Distributed(traced, best.program, best.graph, best.costs, best.pattern, in_flight, best.predicted_s, devices, temporary,
                       cluster)


class _Candidate:
    """A function captured, measured and placed.

    Attributes:
      captured: what became of the operations.
      graph, costs, program: what was captured and measured.
      pattern, predicted_s: as of `Distributed`.
      median_s, low_s: of the runs of what was chosen, the median and the lower quartile.
    """

    def __init__(self, traced, name: str, model_folder: Path, target: Topology, pieces: int, in_flight: int, budget_s: float | None,
                 seed: int, cluster: Cluster | None, keep_devices: bool):
        self.captured = import_quietly("data.capture").capture_counted(traced, model_folder=model_folder, name=name, pieces=pieces,
                                                                       keep_devices=keep_devices)
        examples = traced.binding.examples
        self.program = import_quietly("runtime.captured_program").CapturedProgram(self.captured.graph, seed, examples)
        try:
            chosen = self._chosen(target, in_flight, budget_s, seed, cluster)
        except (DeviceLostError, StalledError):
            raise
        except ExecutionError as error:
            self._blame_values(name, error)
            raise
        self.median_s, self.low_s = chosen["median_s"], chosen["low_s"]

    def _blame_values(self, name: str, failed: ExecutionError) -> None:
        """Raises ConfigError if the original fails with these arguments, too."""
        try:
            self.program.original(self.program.arguments)
        except Exception:  # whatever an operation raises
            drawn = self.program.names_drawn
            got = f"drawn numbers for {', '.join(drawn)}" if drawn else "others"
            remedy = "give arrays or tensors, not only specs" if drawn else "give values that it takes"
            raise ConfigError(f"{name}: example_inputs: expected values with which the function runs, got {got}: {failed}; {remedy}"
                              ) from failed

    def _chosen(self, target: Topology, in_flight: int, budget_s: float | None, seed: int, cluster: Cluster | None) -> dict[str, Any]:
        """Measures, places and runs; what the runs say of the assignment that they choose."""
        graph = self.captured.graph
        profile = profiled(graph, build_costs(graph, target), self.program.inputs, anew=False, cluster=cluster)
        self.graph, self.costs = profile.graph, profile.costs
        if in_flight == 1:
            placed = place(self.graph, self.costs, seed=seed, budget_s=budget_s)
            assignment, self.predicted_s, found = choose_by_runs(self.graph, self.costs, placed, MEASURED_RUNS, None, seed, cluster,
                                                                      self.program)
            self.pattern = [assignment]
        else:
            batches = repeat_graph(self.graph, self.costs.topology, in_flight, in_flight)
            placed = place_batches(batches, seed=seed, budget_s=budget_s)
            assignment, together_s, found = choose_batches_by_runs(batches, placed, MEASURED_RUNS, None, seed, cluster, self.program)
            self.pattern, self.predicted_s = batches.pattern(assignment), together_s / in_flight
        return found["measured"][found["chosen"]]


class Distributed(ShowsItself):
    """A function on several devices. `close()`, or leaving a `with` block, ends its threads.

    Attributes:
      graph, costs: what was captured and measured.
      pattern: the assignment of batch b is `pattern[b % len(pattern)]`; a single call takes the first.
      in_flight: batches that `map` works on at once.
      predicted_s: simulated seconds of a batch, where batches follow each other.
      variables: the present values of the variables that the function updates, by name.
      trace: of the last run.
    """

    def __init__(self, traced: Concrete, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, pattern: list[Assignment],
                 in_flight: int, predicted_s: float, devices: list[str], temporary: tempfile.TemporaryDirectory | None,
                 cluster: Cluster | None = None):
        self.graph, self.costs, self.pattern, self.in_flight, self.predicted_s = graph, costs, pattern, in_flight, predicted_s
        self.variables: dict[str, np.ndarray] = {}
        self.trace: Trace | None = None
        self._traced, self._program, self._devices, self._temporary, self._cluster = traced, program, devices, temporary, cluster
        self._one_run_at_a_time = threading.Lock()
        self._prepared_for: dict[int, tuple[Batches, Assignment, TensorFlowExecutor, CapturedBatches]] = {}
        self._copies: dict[str, tf.Variable] = {}
        self._told = False

    @property
    def assignment(self) -> Assignment:
        """The assignment of a single call."""
        return self.pattern[0]

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
        waiting, most, failed = [], _BATCHES_A_RUN * self.in_flight, None
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
        for _, _, executor, _ in self._prepared_for.values():
            executor.close()
        self._prepared_for = {}
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
        import tensorflow as tf

        with self._one_run_at_a_time:
            batches, assignment, executor, program = self._prepared(len(calls))
            given = program.given([call.tensors for call in calls], self.variables)
            executor.feed(given)
            self.trace = executor.execute(batches.graph, batches.costs, assignment)
            results, variables = program.results(executor.outputs, given)
            self.variables |= variables
        return [self._traced.packed([tf.convert_to_tensor(x) for x in each.values()]) for each in results]

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
            for name in self._program.updates:
                self._copies[name].assign(self.variables.get(name, self._program.value(name)))
            result = self._traced.run(call, {name: copy.handle for name, copy in self._copies.items()})
            self.variables |= {name: self._copies[name].numpy() for name in self._program.updates}
        return result

    def _prepared(self, repeats: int) -> tuple[Batches, Assignment, TensorFlowExecutor, CapturedBatches]:
        """What runs so many calls; made once for each number of calls."""
        if repeats not in self._prepared_for:
            batches = repeat_graph(self.graph, self.costs.topology, repeats, self.in_flight)
            program = self._program.repeated(batches, 0)
            executor = import_quietly("runtime").TensorFlowExecutor(program.inputs, program.fetch, self._devices, keep_inputs=True,
                                                                    cluster=self._cluster)
            self._prepared_for[repeats] = batches, batches.assignment(self.pattern), executor, program
        return self._prepared_for[repeats]
