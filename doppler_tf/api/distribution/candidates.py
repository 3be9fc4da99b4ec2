"""Candidates of `distribute`: a function captured in one cut, measured and placed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from doppler_tf.api.calibration import profiled
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, DeadlockError, DeviceLostError, ExecutionError, StalledError
from doppler_tf.finalists import baselines, batch_baselines, finalists_of, simulated_makespans
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.frozen import with_weights_as_operands
from doppler_tf.graph.topology import Topology
from doppler_tf.heuristics import Problem
from doppler_tf.offload.planning import in_any_order
from doppler_tf.placement import place, place_batches
from doppler_tf.schedule.any_order import most_bytes
from doppler_tf.schedule.assignment import AUTO, Assignment
from doppler_tf.schedule.batches import Batches, repeat_graph
from doppler_tf.schedule.memory import never_fits
from doppler_tf.schedule.merged_graph import Merged
from doppler_tf.schedule.merging import merge_calls

if TYPE_CHECKING:
    from data.capture.calls.concrete import Concrete
    from runtime.clusters.cluster import Cluster


class Candidate:
    """A function captured, measured and placed.

    Attributes:
      captured: what became of the operations.
      graph, costs, program: what was captured and measured. Where limits bind, kernels take weights as operands.
      limited: whether runs have to keep to limits of memory. They have not where nothing that is found exceeds them in any order of
        execution; then it runs as without. alone: whether this holds for the first device alone, too.
      patterns: assignments of batches in flight by the name of a method, the best by simulation first; predicted_s: simulated seconds of a
        batch.
      plans: within limits by method the assignments by the number of calls that run at once: a single one, or `in_flight` together.
    """

    def __init__(self, traced: Concrete, name: str, model_folder: Path, target: Topology, pieces: int, in_flight: int,
                 budget_s: float | None, seed: int, cluster: Cluster | None, keep_devices: bool, freeze_variables: bool,
                 memory_bytes: float | Sequence[float] | None = None):
        """Args: memory_bytes: as of `distribute`."""
        capture = partial(import_quietly("data.capture").capture_counted, traced, model_folder=model_folder, name=name, pieces=pieces,
                          keep_devices=keep_devices, freeze_variables=freeze_variables)
        self.captured, self.folder, self.pieces, self._name, self.alone = capture(), model_folder, pieces, name, True
        measure = partial(self._measure, target, cluster, traced.binding.examples, seed)
        limits = None if memory_bytes is None else build_costs(self.captured.graph, target.with_memory(memory_bytes))
        self.limited = limits is not None and never_fits(self.captured.graph, limits) is not None
        with self.blaming_values():
            if not self.limited:
                measure(self.captured.graph)
                self.limited = not self._place(memory_bytes, in_flight, budget_s, seed)
            if self.limited:
                if never_fits(self.captured.graph, limits, host=True) is not None:  # operations that were joined may fit apart
                    self.captured = capture(grouping=False)
                measure(with_weights_as_operands(self.captured.graph))
                self._place_within(memory_bytes, in_flight, budget_s, seed)

    def _measure(self, target: Topology, cluster: Cluster | None, examples: Mapping[str, Any], seed: int, graph: DataflowGraph) -> None:
        self.program = import_quietly("runtime.models.captured_program").CapturedProgram(graph, seed, examples)
        profile = profiled(graph, build_costs(graph, target), self.program.inputs, anew=False, cluster=cluster)
        self.graph, self.costs = profile.graph, profile.costs

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

    def _place_within(self, memory_bytes: float | Sequence[float], in_flight: int, budget_s: float | None, seed: int) -> None:
        """What `place` finds within the limits, with plans for the host where nothing fits. Raises DeadlockError: not even so."""
        self.costs = build_costs(self.graph, self.costs.topology.with_memory(memory_bytes))
        share_s = budget_s if budget_s is None or in_flight == 1 else budget_s / 2
        single = placed = place(self.graph, self.costs, seed=seed, budget_s=share_s)
        graph, costs = self.graph, self.costs
        if in_flight > 1:
            batches = repeat_graph(self.graph, self.costs.topology, in_flight, in_flight)
            graph, costs, placed = batches.graph, batches.costs, place_batches(batches, seed=seed, budget_s=share_s)
        best = {name: in_any_order(graph, costs, assignment) for name, assignment in finalists_of(placed, {}).items()}
        alone = in_any_order(self.graph, self.costs, single.assignment)
        simulated_s = simulated_makespans(graph, costs, best)
        self.plans = {name: {1: alone} | {in_flight: best[name]} for name in sorted(best, key=simulated_s.get)}
        self.patterns = {name: [plans[1]] for name, plans in self.plans.items()}
        self.predicted_s = {name: seconds / in_flight for name, seconds in simulated_s.items()}

    def _place(self, memory_bytes: float | Sequence[float] | None, in_flight: int, budget_s: float | None, seed: int) -> bool:
        """Whether `place` finds something that exceeds no limit in any order of execution."""
        topology = self.costs.topology if memory_bytes is None else self.costs.topology.with_memory(memory_bytes)
        batches = repeat_graph(self.graph, topology, in_flight, in_flight)
        graph, costs = (batches.single, batches.single_costs) if in_flight == 1 else (batches.graph, batches.costs)
        free = replace(costs, topology=self.costs.topology)
        try:
            if in_flight == 1:
                problem = Problem(graph, costs, AUTO)
                placed, simple = place(problem, seed=seed, budget_s=budget_s, offload="never"), baselines(problem, seed)
            else:
                placed = place_batches(batches, seed=seed, budget_s=budget_s, offload="never")
                simple = batch_baselines(batches, seed)
        except DeadlockError:
            return False
        finalists = finalists_of(placed, simple)
        merged = {name: merge_calls(graph, free, a, self.program.repeated(batches, seed).fetch if in_flight > 1 else self.program.fetch)
                  for name, a in finalists.items()}
        if memory_bytes is not None:
            merged = self._in_any_order(batches, graph, costs, merged, finalists)
        different: dict[tuple, str] = {}
        for name in sorted(merged, key=lambda name: merged[name].makespan_s):
            different.setdefault((merged[name].vertex.tobytes(), merged[name].assignment.device.tobytes()), name)
        self.patterns = {name: [finalists[name]] if in_flight == 1 else batches.pattern(finalists[name]) for name in different.values()}
        self.predicted_s = {name: merged[name].makespan_s / in_flight for name in different.values()}
        return bool(merged)

    def _in_any_order(self, batches: Batches, graph: DataflowGraph, costs: CostModel, merged: Mapping[str, Merged],
                      finalists: Mapping[str, Assignment]) -> dict[str, Merged]:
        """Those larger calls that exceed no limit in any order of execution. Tells the same of each batch as one call (`alone`)."""
        room_bytes = costs.memory_bytes - self._beside_flight_bytes(batches)
        whole = np.zeros(graph.num_vertices, np.int32)
        for b, row in enumerate(batches.vertex if batches.in_flight > 1 else ()):
            whole[row[row >= 0]] = b
        self.alone = bool(most_bytes(graph, costs, np.zeros_like(whole), whole)[0] <= room_bytes[0])
        return {name: found for name, found in merged.items()
                if (most_bytes(graph, costs, finalists[name].device, found.vertex) <= room_bytes).all()}

    def _beside_flight_bytes(self, batches: Batches) -> float:
        """Bytes of the arguments and results of those calls of a run that are not in flight."""
        others = import_quietly("runtime.models.ways").together(batches.in_flight) - batches.in_flight
        own = batches.single.is_input & (batches.vertex[0] != batches.vertex[-1])
        single = batches.single_costs
        return others * float(single.output_bytes[own].sum() + single.tensor_bytes[batches.single.results].sum())
