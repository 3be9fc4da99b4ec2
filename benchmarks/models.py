"""Users' models on this machine, beside what a user would do instead: `make bench NAME=models`.

Each of twelve models runs under random assignments on one, two and four devices, and its outputs are compared with the original's. Then it
is distributed over two devices, for one call and for two and four in flight. The yardstick is TensorFlow alone in a process of its own:
the best of plain, frozen and XLA, called from as many threads as calls are in flight. The engine also runs beside TensorFlow's executor and
with barriers, on one assignment. Figures are medians over the turns; a turn has two runs, and the second counts. As a control the way that
was fastest at first runs in a second process of the same kind: what `again_over_alone` is away from 1 the machine does by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.tables import finish, in_turns, show, timed
from doppler_tf.api.comparison.plain_tensorflow import PlainTensorFlow
from doppler_tf.api.comparison.plain_tensorflow import modes as modes_of
from doppler_tf.api.distribution.distribute import Distributed, distribute
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.finalists import warm_up
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.heuristics.problem import Problem
from doppler_tf.report.calibration import agreement
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.merging import merge_calls
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.validation import validate_trace
from runtime.synchronous import LevelDispatcher, with_barriers

COUNTS, RANDOM, DEVICES, TOLERANCE = (1, 2, 4), 5, 2, 1e-5
TURNS, FIDELITY, REPEATS, SEARCH_S = 15, 30, 3, 5.0
IN_FLIGHT, BATCHES = (2, 4), 4
# A way of TensorFlow alone that takes more than so many times as long as the best does not run in turn with it.
NEAR = 1.5


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.models", description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="names separated by commas (default: all twelve; also resnet50_224, inception_v3_299, cnn_step)")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"number of turns (default: {TURNS})")
    parser.add_argument("--only", choices=("equality", "speed"), help="leave out the other half")
    args = parser.parse_args()
    runtime = import_quietly("runtime")
    runtime.prepare_devices(DEVICES)
    zoo = import_quietly("benchmarks.model_zoo")
    makers = {**zoo.MODELS, **zoo.LARGE}
    names = args.models.split(",") if args.models else list(zoo.MODELS)
    if not makers.keys() >= set(names):
        parser.error(f"--models: expected some of {', '.join(makers)}, got {args.models}")
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before: other work on this machine affects the figures")
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            found[name] = Case(name, makers[name], Path(folder)).measure(args.turns, args.only)
            print(json.dumps({name: found[name]}), flush=True)
    for title, columns in (("captured", ("operations", "vertices", "capture_s")),
                           ("random assignments with the outputs of the original", ("runs", "equal", "valid", "largest_relative")),
                           ("one call", ("plain_s", "frozen_s", "xla_s", "distributed_s", "distributed_over_alone", "again_over_alone",
                                        "chosen")),
                           ("a call of several in flight", tuple(f"{k}_{x}" for k in ("two", "four") for x in (
                               "alone_s", "in_flight_s", "over_alone"))),
                           ("the engine beside TensorFlow's executor, on one assignment",
                            ("calls", "engine_s", "theirs_s", "engine_over_theirs", "outside_s")),
                           ("with barriers", ("engine_s", "barriers_s", "barriers_over_engine", "simulated_barriers_over_engine")),
                           (f"{FIDELITY} assignments in merged calls, simulated and measured", ("median_error", "rank_correlation"))):
        rows = {name: row for name, row in found.items() if columns[0] in row}
        if rows:
            show(title, rows, columns)
    finish(found)


class Case:
    """One model, captured."""

    def __init__(self, name: str, build: Callable[[Path], object], folder: Path):
        capture, source, self._file = import_quietly("data.capture"), build(folder), folder / f"{name}.json"
        self._source = source
        capture_s, found = timed(lambda: capture.capture_counted(source, model_folder=folder / f"{name}.model", name=name))
        self.figures = {"operations": found.operations, "vertices": len(found.graph.work_vertices), "capture_s": capture_s}
        programs, self._graph = import_quietly("runtime.models.captured_program"), found.graph
        self._program = programs.CapturedProgram(self._graph)
        write_graph(self._file, self._graph)
        self._cut = capture.capture(source, model_folder=folder / f"{name}.cut", name=name, pieces=DEVICES)
        self._cut_program = programs.CapturedProgram(self._cut)

    def measure(self, turns: int, only: str | None) -> dict:
        """All figures of the model."""
        if only != "speed":
            self._equality()
        if only != "equality":
            self._speed(turns)
        return self.figures

    def _equality(self) -> None:
        runtime, rng, errors, valid = import_quietly("runtime"), np.random.default_rng(0), [], []
        for graph, program, count in ((graph, program, count) for graph, program in ((self._graph, self._program),
                                                                                      (self._cut, self._cut_program)) for count in COUNTS):
            costs = build_costs(graph, cpu(count))
            with runtime.TensorFlowExecutor(program.inputs, program.fetch) as executor:
                for _ in range(RANDOM):
                    assignment = _random(graph, costs, rng)
                    trace = executor.execute(graph, costs, assignment)
                    errors.append(program.relative_error(executor.outputs))
                    moved = (trace.device != assignment.device[trace.vertex]).any()
                    valid.append(validate_trace(graph, costs, assignment, trace.log).valid and not moved)
        self.figures |= {"runs": len(errors), "equal": sum(error <= TOLERANCE for error in errors), "valid": sum(valid),
                         "largest_relative": float(max(errors)) * 1e6}

    def _speed(self, turns: int) -> None:
        figures = self.figures
        with PlainTensorFlow(self._file) as alone, PlainTensorFlow(self._file) as again:
            modes = [mode for mode in modes_of(self._graph) if alone.can_run(mode)]
            first_s = {mode: min(alone.run(mode) for _ in range(3)) for mode in modes}
            far = {mode: first_s.pop(mode) for mode in modes if first_s[mode] > 2 * NEAR * min(first_s.values())}
            modes, control = list(first_s), min(first_s, key=first_s.__getitem__)
            with self._distributed(1) as placed:
                call = self._calls(placed, 1)
                seconds = _in_turns({**{mode: lambda m=mode: alone.run(m) for mode in modes},
                                     "again": lambda: again.run(control), "distributed": call}, turns)
                figures |= {f"{mode}_s": seconds[mode] for mode in modes} | {f"{mode}_s": value for mode, value in far.items()}
                best = min(modes, key=seconds.__getitem__)
                figures |= {"distributed_s": seconds["distributed"], "distributed_over_alone": seconds["distributed"] / seconds[best],
                            "again_over_alone": seconds["again"] / seconds[control], "chosen": placed.chosen}
            modes = [mode for mode in modes if seconds[mode] <= NEAR * seconds[best]]  # others only take time
            for name, count in zip(("two", "four"), IN_FLIGHT, strict=True):
                with self._distributed(count) as placed:
                    call = self._calls(placed, count)
                    seconds = _in_turns({**{mode: lambda m=mode, k=count: alone.run(m, k) for mode in modes}, "ours": call}, turns)
                    alone_s = min(seconds[mode] for mode in modes)
                    figures |= {f"{name}_alone_s": alone_s, f"{name}_in_flight_s": seconds["ours"],
                                f"{name}_over_alone": seconds["ours"] / alone_s, f"{name}_chosen": placed.chosen}
        with self._distributed(1, executor="engine") as placed:
            self._beside(placed, turns)

    def _distributed(self, in_flight: int, executor: str | None = None) -> Distributed:
        source = self._source
        return distribute(source.function, source.example_inputs, "cpu:2", SEARCH_S, in_flight, executor=executor)

    def _calls(self, placed: Distributed, in_flight: int) -> Callable[[], float]:
        """Seconds of a call, as a user would call it."""
        inputs, count = self._program.tensors, 1 if in_flight == 1 else BATCHES * in_flight
        example = self._source.example_inputs
        batch = inputs if example is None else tf.nest.pack_sequence_as(example, list(inputs.values()))

        def run() -> None:
            if in_flight == 1:
                placed(**batch) if example is None else placed(*batch)
                return
            for _ in placed.map([batch] * count):
                pass
        return lambda: timed(run)[0] / count

    def _beside(self, placed: Distributed, turns: int) -> None:
        """The engine beside TensorFlow's executor and barriers, and its predictions."""
        runtime, graphs = import_quietly("runtime"), import_quietly("runtime.tensorflow_graph")
        graph, costs, assignment = placed.graph, placed.costs, placed.assignment
        program = import_quietly("runtime.models.captured_program").CapturedProgram(graph)
        merged = merge_calls(graph, costs, assignment, program.fetch)

        with ExitStack() as stack:
            engine = stack.enter_context(runtime.MergedExecutor(program.inputs, program.fetch))
            barriers = stack.enter_context(runtime.MergedExecutor(program.inputs, program.fetch, make=with_barriers))
            devices = runtime.prepare_devices(DEVICES)
            theirs = graphs.TensorFlowGraph(graph, assignment.device, program.inputs, program.fetch, devices)
            whole = {"engine": lambda: engine.execute(graph, costs, assignment).makespan_s,
                     "barriers": lambda: barriers.execute(graph, costs, assignment).makespan_s, "theirs": lambda: timed(theirs.run)[0]}
            seconds = _in_turns(whole, turns)
            runs = (timed(lambda: engine.run(graph, costs, assignment)) for _ in range(turns))
            outside_s = [took_s - recorded().makespan_s for took_s, recorded in runs]
        self._fidelity(graph, costs, program)
        with_barriers_s = Simulator().drive(LevelDispatcher(merged.graph, merged.costs, merged.assignment), merged.costs).makespan_s
        self.figures |= {"calls": len(merged.graph.work_vertices), "engine_s": seconds["engine"], "theirs_s": seconds["theirs"],
                         "engine_over_theirs": seconds["engine"] / seconds["theirs"], "outside_s": float(np.median(outside_s)),
                         "barriers_s": seconds["barriers"], "barriers_over_engine": seconds["barriers"] / seconds["engine"],
                         "simulated_barriers_over_engine": with_barriers_s / merged.makespan_s}

    def _fidelity(self, graph, costs, program) -> None:
        assignments = spread_assignments(Problem(graph, costs), FIDELITY, np.random.default_rng(0))
        measured_s, simulated_s = [], []
        for assignment in assignments:
            with import_quietly("runtime").MergedExecutor(program.inputs, program.fetch) as engine:  # calls of many fill the memory
                warm_up(lambda found=assignment, ran=engine: ran.execute(graph, costs, found))
                measured_s.append(np.median([engine.execute(graph, costs, assignment).makespan_s for _ in range(REPEATS)]))
                simulated_s.append(engine.merged().makespan_s)
        judged = agreement(np.array(simulated_s), np.array(measured_s))
        self.figures |= {"median_error": judged.median_error, "rank_correlation": judged.rank_correlation}


def _random(graph, costs, rng: np.random.Generator) -> Assignment:
    """Any legal assignment: groups stay together."""
    device = rng.integers(0, costs.num_devices, graph.num_vertices).astype(np.int32)
    together = rng.integers(0, costs.num_devices, len(graph.groups))
    grouped = graph.colocate >= 0
    device[grouped] = together[graph.colocate[grouped]]
    device[graph.is_input] = -1
    return Assignment(device, None, "random")


def _in_turns(calls: dict[str, Callable[[], float]], turns: int) -> dict[str, float]:
    """Median seconds by name."""
    return {name: float(np.median(seconds)) for name, seconds in in_turns(calls, turns).items()}


if __name__ == "__main__":
    main()
