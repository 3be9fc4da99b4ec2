"""The ways in which a captured function can be run, all alike to call: our engine, TensorFlow's executor with our devices, and TensorFlow
alone."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import tensorflow as tf

from doppler_tf.errors import ExecutionError
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.batches import repeat_graph
from doppler_tf.schedule.offloaded import kept_on_host, offloaded
from doppler_tf.schedule.trace import Trace
from runtime.calls import OPERATIONS
from runtime.merged import MergedExecutor
from runtime.models.alone import Alone
from runtime.models.captured_program import CapturedBatches, CapturedProgram
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


class _OurWay(ABC):
    """What the ways on our engine share: for each number of calls in one run what is prepared once."""

    executor = ENGINE

    def __init__(self, together: int):
        self.together, self.variables = together, dict[str, Any]()
        self._prepared: dict[int, _Prepared] = {}
        self._recorded: Callable[[], Trace] | None = None

    @property
    def trace(self) -> Trace | None:
        """As Way's; of the graph with host where there is one."""
        return None if self._recorded is None else self._recorded()

    def run(self, calls: Sequence[Tensors]) -> list[dict[str, tf.Tensor]]:
        """As Way's."""
        results, variables = [], self.variables
        while len(results) < len(calls):
            count = self._at_once(len(calls) - len(results))
            if count not in self._prepared:
                self._prepared[count] = self._prepare(count)
            program, executor, ran, kept = self._prepared[count]
            given = program.given(calls[len(results):len(results) + count], variables)
            executor.feed(given)
            self._recorded, made = executor.run(*ran), executor.tensors
            found, updated = program.results({**made, **{t: made[there] for t, there in kept.items()}}, given)
            results += found
            variables = {**variables, **updated}
        self.variables = variables
        return results

    def close(self) -> None:
        """As Way's."""
        for each in self._prepared.values():
            each.executor.close()
        self._prepared = {}

    def _at_once(self, left: int) -> int:
        """How many of the calls that are left the next run takes."""
        return left

    @abstractmethod
    def _prepare(self, count: int) -> _Prepared:
        """What runs so many calls."""


class _Prepared(NamedTuple):
    """What runs a number of calls: arguments of the executor's `run`, and where results are kept on the host."""

    program: CapturedBatches
    executor: MergedExecutor | TensorFlowExecutor
    ran: tuple[DataflowGraph, CostModel, Assignment]
    kept: Mapping[int, int]


class EngineWay(_OurWay):
    """A function on our engine: batch b runs as `pattern[b % len(pattern)]` says, `in_flight` of them at once."""

    def __init__(self, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, pattern: Sequence[Assignment], in_flight: int,
                 devices: Sequence[str], cluster: Cluster | None = None, build: str = OPERATIONS):
        """Args: build: as CapturedCall's."""
        super().__init__(together(in_flight))
        self._program, self._graph, self._costs, self._pattern, self._in_flight = program, graph, costs, list(pattern), in_flight
        self._options = {"devices": devices, "cluster": cluster, "build": build}

    def _prepare(self, count: int) -> _Prepared:
        batches = repeat_graph(self._graph, self._costs.topology, count, self._in_flight)
        program = self._program.repeated(batches, 0)
        executor = MergedExecutor(program.inputs, program.fetch, **self._options)
        return _Prepared(program, executor, (batches.graph, batches.costs, batches.assignment(self._pattern)), {})


class LimitedWay(_OurWay):
    """A function on our engine within the devices' memory: weights are tensors that leave after their last use, each vertex is a call of
    its own, and what does not fit is on the host. As many calls as there are plans for run at once, others follow each other."""

    def __init__(self, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, plans: Mapping[int, Assignment]):
        """Args: graph: one whose kernels take their weights as operands; plans: by number of calls; one of a single call among them."""
        super().__init__(max(plans))
        self._program, self._graph, self._costs, self._plans = program, graph, costs, plans
        self._values = {v: tf.constant(value) for v, value in program.inputs.items()}  # in the host's memory, once

    def _at_once(self, left: int) -> int:
        return self.together if left >= self.together else 1

    def _prepare(self, count: int) -> _Prepared:
        graph, costs, batches = self._graph, self._costs, repeat_graph(self._graph, self._costs.topology, count, count)
        if count > 1:  # else they are the same, but for names
            graph, costs = batches.graph, batches.costs
        program, ran = self._program.repeated(batches, 0), offloaded(graph, costs, self._plans[count])
        kept = kept_on_host(graph, ran[0])
        executor = TensorFlowExecutor({int(batches.vertex[0, v]): value for v, value in self._values.items()},
                                      [kept.get(t, t) for t in program.fetch])
        return _Prepared(program, executor, ran, kept)


class TheirWay:
    """A function on TensorFlow's executor, whose operations stand in the device scopes of an assignment. Calls follow each other."""

    executor, together, trace = THEIRS, 1, None

    def __init__(self, program: CapturedProgram, graph: DataflowGraph, costs: CostModel, assignment: Assignment, devices: Sequence[str]):
        self._program = program.repeated(repeat_graph(graph, costs.topology, 1, 1), 0)
        self._function = TensorFlowGraph(graph, assignment.device, self._program.inputs, self._program.fetch, devices)
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
        self._ran = False

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
            if self._threads is None or not self._ran:  # of threads that make the first call at once, each would build the function
                self._ran = True
                return list(map(self._function, calls))
            return list(self._threads.map(self._function, calls))

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
