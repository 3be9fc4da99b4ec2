"""The engine on larger calls: each assignment runs as `merge_calls` joins its vertices, on threads and with kernels of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import MERGED, DataflowGraph
from doppler_tf.schedule.assignment import Assignment, what_runs
from doppler_tf.schedule.merged_graph import Merged
from doppler_tf.schedule.merging import merge_calls
from doppler_tf.schedule.trace import Trace
from runtime.calls import OPERATIONS, XLA
from runtime.engine import Engine
from runtime.graph_calls import weights_fit
from runtime.process_memory import give_memory_back
from runtime.tensors import TensorFlowExecutor

if TYPE_CHECKING:
    from runtime.clusters.cluster import Cluster

# Assignments whose calls are kept, those used last; fewer where their weights take too much memory.
_KEPT = 16
# The fastest of so many runs of each build tells which of them an assignment takes.
_RUNS = 3


class _Known(NamedTuple):
    """An assignment's graph and costs, its calls, the engine that runs them, and the inputs that it has not been fed yet."""

    graph: DataflowGraph
    costs: CostModel
    merged: Merged
    engine: Engine
    changed: set[int]


class MergedExecutor:
    """An Executor of real kernels. A trace is one of the merged graph, which it names; inputs and outputs are those of the original.

    Larger calls of our own kernels are built as TensorFlow's operations, or XLA compiles them. Before the first run of an assignment, runs
    with each in turn tell which is faster. Calls alone do not: operations take cores that other devices leave idle.
    """

    def __init__(self, inputs: Mapping[int, np.ndarray | tf.Tensor], fetch: Iterable[int] = (), devices: Sequence[str] | None = None,
                 cluster: Cluster | None = None, timeout_s: float | None = None, restart_on_loss: bool = False,
                 make: Callable[..., Engine] = TensorFlowExecutor, build: str = OPERATIONS):
        """Args: as TensorFlowExecutor's, which keeps the inputs on the devices where all tensors fit; make: another engine with the same
        arguments; build: of calls of captured models."""
        self._inputs, self._fetch, self._make = dict(inputs), tuple(fetch), make
        self._options = {"devices": devices, "cluster": cluster, "timeout_s": timeout_s, "restart_on_loss": restart_on_loss,
                         "build": build}
        self._one_run_at_a_time, self._cancelled = threading.Lock(), threading.Event()  # a new event for each run
        self._known: dict[tuple, _Known] = {}  # the one used last at the end
        self._last: tuple[Merged, Engine] | None = None

    def feed(self, inputs: Mapping[int, np.ndarray | tf.Tensor]) -> None:
        """Later runs take these tensors for these input vertices; all other inputs stay."""
        self._inputs.update(inputs)
        for each in self._known.values():
            each.changed.update(inputs)

    def execute(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Trace:
        """As Engine's."""
        return self.run(graph, costs, assignment)()

    def run(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> Callable[[], Trace]:
        """As Engine's."""
        with self._one_run_at_a_time:
            self._cancelled, self._last = threading.Event(), None
            found = self._ready(graph, costs, assignment)
            recorded = found.engine.run(found.merged.graph, found.merged.costs, found.merged.assignment, self._cancelled)
            self._last = found.merged, found.engine
            return recorded

    def _ready(self, graph: DataflowGraph, costs: CostModel, assignment: Assignment) -> _Known:
        """The calls of an assignment, built as they run fastest, and fed."""
        key = id(graph), id(costs), what_runs(assignment)  # what is kept holds graph and costs: no others get their identities
        found = self._known.pop(key, None)
        if found is None:
            while len(self._known) == _KEPT or (self._known and not weights_fit(graph, 2)):
                self._known.pop(next(iter(self._known))).engine.close()
                give_memory_back()
            merged = merge_calls(graph, costs, assignment, self._fetch)
            mine = {int(merged.vertex[v]): x for v, x in self._inputs.items()}
            engine = self._make(mine, [int(merged.tensor[t]) for t in self._fetch], keep_inputs=True, **self._options)
            found = self._known[key] = _Known(graph, costs, merged, engine, set())
            try:
                self._choose_build(merged, engine)
            except BaseException:
                self._known.pop(key).engine.close()
                raise
        self._known[key] = found
        if found.changed:
            found.engine.feed({int(found.merged.vertex[v]): self._inputs[v] for v in found.changed})
            found.changed.clear()
        return found

    def _choose_build(self, merged: Merged, engine: Engine) -> None:
        if "captured" in merged.graph.attributes or not any(kernel is not None and kernel.op == MERGED for kernel in merged.graph.kernel):
            return
        taken_s = dict.fromkeys((OPERATIONS, XLA), np.inf)
        for counts in (False, *[True] * _RUNS):
            for build in taken_s:
                engine.backend.use(build)
                makespan_s = engine.run(merged.graph, merged.costs, merged.assignment, self._cancelled)().makespan_s
                if counts:
                    taken_s[build] = min(taken_s[build], makespan_s)
        engine.backend.use(min(taken_s, key=taken_s.__getitem__))

    def merged(self) -> Merged | None:
        """What ran last."""
        return None if self._last is None else self._last[0]

    @property
    def outputs(self) -> dict[int, np.ndarray]:
        """As Engine's, by tensor of the original: those asked for."""
        return self._named(lambda engine: engine.outputs)

    @property
    def tensors(self) -> dict[int, tf.Tensor]:
        """As TensorFlowExecutor's, by tensor of the original: those asked for."""
        return self._named(lambda engine: engine.tensors)

    def _named(self, read: Callable[[Engine], Mapping[int, Any]]) -> dict[int, Any]:
        last = self._last  # another thread's run may change it
        if last is None:
            return {}
        merged, found = last[0], read(last[1])
        return {t: found[int(merged.tensor[t])] for t in self._fetch}

    def cancel(self) -> None:
        """As Engine's."""
        self._cancelled.set()
        for each in tuple(self._known.values()):
            each.engine.cancel()

    def close(self) -> None:
        """Joins all threads, after the run in progress, and forgets what was lost."""
        with self._one_run_at_a_time:
            for each in self._known.values():
                each.engine.close()
            self._known, self._last = {}, None

    def __enter__(self) -> MergedExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

