"""The ways in which a captured function can be run, all alike to call: our engine, TensorFlow's executor with our devices, and TensorFlow
alone."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf

from doppler_tf.errors import ExecutionError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.offloaded import kept_on_host, offloaded
from doppler_tf.schedule.trace import Trace
from runtime.calls import CONSTANTS
from runtime.merged import MergedExecutor
from runtime.models.alone import Alone
from runtime.models.captured_program import CapturedProgram
from runtime.tensorflow_graph import TensorFlowGraph
from runtime.tensors import TensorFlowExecutor

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster

ENGINE, THEIRS, ALONE = "engine", "TensorFlow's executor", "TensorFlow alone"
# A run without limits takes so many calls for each that may be in flight, where there are several.
_CALLS_IN_FLIGHT = 8
# Arguments or results of a call, by name.
Tensors = Mapping[str, tf.Tensor]


# What TensorFlow writes around the message of an operation that failed.
_AROUND = re.compile(r"\d+ root error|Graph execution error|Detected at node|<stack traces|^\s*$")
_BEFORE = re.compile(r"^\s*(\(\d+\) [A-Z_]+: )?(\{\{.*?\}\} )*")


class Way(Protocol):
    """A way to run a function.

    Attributes:
      executor: `engine`, `TensorFlow's executor` or `TensorFlow alone`.
      together: calls that one run takes at most where many follow each other.
      variables: the present values of the variables that the function updates, by name; may be set.
      trace: of the last run, None where there is none.
    """

    executor: str
    together: int
    variables: Mapping[str, Any]
    trace: Trace | None

    def run(self, calls: Sequence[Tensors]) -> list[dict[str, tf.Tensor]]:
        """The results of calls that follow each other."""

    def close(self) -> None:
        """Ends all threads."""


class _OurWay:
    """What the ways on our engine share."""

    executor = ENGINE

    def __init__(self) -> None:
        self.variables: Mapping[str, Any] = {}
        self._recorded: Callable[[], Trace] | None = None

    @property
    def trace(self) -> Trace | None:
        """As Way's; of the graph with host where there is one."""
        return None if self._recorded is None else self._recorded()


class EngineWay(_OurWay):
    """A function on our engine: batch b runs as `pattern[b % len(pattern)]` says, `in_flight` of them at once."""

    def __init__(self, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, pattern: Sequence[Assignment], in_flight: int,
                 devices: Sequence[str], cluster: Cluster | None = None, build: str = CONSTANTS):
        """Args: build: as CapturedCall's."""
        super().__init__()
        self._build = build
        self.pattern, self._program, self._graph, self._costs = list(pattern), program, graph, costs
        self._in_flight, self._devices, self._cluster, self.together = in_flight, devices, cluster, together(in_flight)
        self._prepared: dict[int, _Prepared] = {}

    def run(self, calls: Sequence[Tensors]) -> list[dict[str, tf.Tensor]]:
        """As Way's."""
        if len(calls) not in self._prepared:
            self._prepared[len(calls)] = _Prepared(self._program, self._graph, self._costs, self.pattern, len(calls), self._in_flight,
                                                   self._devices, self._cluster, self._build)
        self._recorded, results, variables = self._prepared[len(calls)].run(calls, self.variables)
        self.variables = {**self.variables, **variables}
        return results

    def close(self) -> None:
        """As Way's."""
        for each in self._prepared.values():
            each.executor.close()
        self._prepared = {}


class _Prepared:
    """What runs so many calls on the engine."""

    def __init__(self, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, pattern: Sequence[Assignment], calls: int,
                 in_flight: int, devices: Sequence[str], cluster: Cluster | None, build: str):
        self._batches = repeat_graph(graph, costs.topology, calls, in_flight)
        self._program, self._assignment = program.repeated(self._batches, 0), self._batches.assignment(pattern)
        self.executor = MergedExecutor(self._program.inputs, self._program.fetch, devices, cluster, build=build)

    def run(self, calls: Sequence[Tensors],
            variables: Mapping[str, Any]) -> tuple[Callable[[], Trace], list[dict[str, tf.Tensor]], dict[str, Any]]:
        given = self._program.given(calls, variables)
        self.executor.feed(given)
        recorded = self.executor.run(self._batches.graph, self._batches.costs, self._assignment)
        return recorded, *self._program.results(self.executor.tensors, given)


class LimitedWay(_OurWay):
    """A function on our engine within the devices' memory: weights are tensors that leave after their last use, each vertex is a call of
    its own, and what does not fit is on the host. As many calls as there are plans for run at once, others follow each other."""

    def __init__(self, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, plans: Mapping[int, Assignment]):
        """Args: graph: one whose kernels take their weights as operands; plans: by number of calls; one of a single call among them."""
        super().__init__()
        self._program, self._graph, self._costs, self._plans, self.together = program, graph, costs, plans, max(plans)
        self._values = {v: tf.constant(value) for v, value in program.inputs.items()}  # in the host's memory, once
        self._planned: dict[int, _Planned] = {}

    def run(self, calls: Sequence[Tensors]) -> list[dict[str, tf.Tensor]]:
        """As Way's."""
        results, variables = [], self.variables
        while len(results) < len(calls):
            count = self.together if len(calls) - len(results) >= self.together else 1
            if count not in self._planned:
                self._planned[count] = _Planned(self._program, self._values, self._graph, self._costs, self._plans[count], count)
            self._recorded, found, made = self._planned[count].run(calls[len(results):len(results) + count], variables)
            results += found
            variables = {**variables, **made}
        self.variables = variables
        return results

    def close(self) -> None:
        """As Way's."""
        for each in self._planned.values():
            each.engine.close()
        self._planned = {}


class _Planned:
    """What runs so many calls at once within the devices' memory."""

    def __init__(self, program: CapturedProgram, values: Mapping[int, tf.Tensor], graph: DataflowGraph, costs: CostModel,
                 assignment: Assignment, calls: int):
        """Args: values: of the inputs of one call."""
        batches = repeat_graph(graph, costs.topology, calls, calls)
        if calls > 1:  # else they are the same, but for names
            graph, costs = batches.graph, batches.costs
        self._program, self._ran = program.repeated(batches, 0), offloaded(graph, costs, assignment)
        self._kept = kept_on_host(graph, self._ran[0])
        self.engine = TensorFlowExecutor({int(batches.vertex[0, v]): value for v, value in values.items()},
                                         [self._kept.get(t, t) for t in self._program.fetch])

    def run(self, calls: Sequence[Tensors],
            variables: Mapping[str, Any]) -> tuple[Callable[[], Trace], list[dict[str, tf.Tensor]], dict[str, Any]]:
        given = self._program.given(calls, variables)
        self.engine.feed(given)
        recorded, made = self.engine.run(*self._ran), self.engine.tensors
        return recorded, *self._program.results({**made, **{t: made[there] for t, there in self._kept.items()}}, given)


class TheirWay:
    """A function on TensorFlow's executor, whose operations stand in the device scopes of an assignment. Calls follow each other."""

    executor, together, trace = THEIRS, 1, None

    def __init__(self, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, assignment: Assignment, devices: Sequence[str],
                 build: str = CONSTANTS):
        """Args: build: TENSORS or CONSTANTS."""
        self._program = program.repeated(repeat_graph(graph, costs.topology, 1, 1), 0)
        self._function = TensorFlowGraph(graph, assignment.device, self._program.inputs, self._program.fetch, devices, build)
        self.variables: Mapping[str, Any] = {}

    def run(self, calls: Sequence[Tensors]) -> list[dict[str, tf.Tensor]]:
        """As Way's."""
        results = []
        for call in calls:
            given = self._program.given([call], self.variables)
            with _in_one_line(self.executor):
                made = self._function(given)
            found, variables = self._program.results(made, given)
            self.variables = {**self.variables, **variables}
            results += found
        return results

    def close(self) -> None:
        """Does nothing: there are no threads."""


class LonelyWay:
    """A function without placement, called from as many threads as there are calls in flight."""

    executor, trace = ALONE, None

    def __init__(self, folder: str | Path, mode: str, in_flight: int = 1):
        """Args: mode: as in `alone.MODES`. A function that updates variables is called by one thread."""
        self._function, self.mode = Alone(folder, mode), mode
        self._updates = self._function.updates
        self.together = 1 if self._updates else together(in_flight)
        self._threads = ThreadPoolExecutor(in_flight, "alone") if self.together > 1 else None

    @property
    def variables(self) -> Mapping[str, Any]:
        """As Way's."""
        return {name: self._function.variables[name].numpy() for name in self._updates}

    @variables.setter
    def variables(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._function.variables[name].assign(value)

    def run(self, calls: Sequence[Tensors]) -> list[dict[str, tf.Tensor]]:
        """As Way's."""
        with _in_one_line(self.executor):
            return list(map(self._function, calls) if self._threads is None else self._threads.map(self._function, calls))

    def close(self) -> None:
        """As Way's."""
        if self._threads is not None:
            self._threads.shutdown()


def together(in_flight: int) -> int:
    """How many calls one run without limits takes at most."""
    return _CALLS_IN_FLIGHT * in_flight if in_flight > 1 else 1


@contextlib.contextmanager
def _in_one_line(executor: str) -> Iterator[None]:
    """Raises ExecutionError for an operation that fails."""
    try:
        yield
    except tf.errors.OpError as error:
        told = next((line for line in error.message.splitlines() if not _AROUND.search(line)), "")
        raise ExecutionError(f"{executor}: {type(error).__name__}: {_BEFORE.sub('', told)}") from error
