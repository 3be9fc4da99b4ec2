"""Users' models on this machine: captured, measured, placed and run beside TensorFlow alone: `make bench NAME=models`.

Each of ten models runs under random assignments on one, two and four devices, and its outputs are compared with the original's. On two
devices its kernels are measured, the cost model is judged by runs of good and bad assignments, and the best assignments run in turns with
all on one device and with TensorFlow alone: of the model as it is, cut into a tile for each device, and with several batches in flight.
Figures are medians over the turns; a turn has two runs, and the second counts.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks.tables import finish, show
from doppler_tf.assignment import Assignment
from doppler_tf.batches import repeat_graph
from doppler_tf.cli.plain_tensorflow import PlainTensorFlow
from doppler_tf.cli.tensorflow import import_quietly
from doppler_tf.costs import build_costs
from doppler_tf.finalists import baselines
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.heuristics.mixtures import spread_assignments
from doppler_tf.heuristics.simple import all_on
from doppler_tf.placement import place, place_batches
from doppler_tf.report.calibration import agreement
from doppler_tf.simulator import simulate
from doppler_tf.topology import cpu
from doppler_tf.validation import validate_trace

COUNTS, RANDOM, DEVICES, TOLERANCE = (1, 2, 4), 5, 2, 1e-5
TURNS, WARM, FIDELITY, REPEATS, SEARCH_S = 15, 2, 30, 3, 5.0
IN_FLIGHT, BATCHES = (2, 4), 8


def main() -> None:
    """Prints the tables and the JSON line."""
    parser = argparse.ArgumentParser(prog="benchmarks.models", description=__doc__.splitlines()[0])
    parser.add_argument("--models", help="names separated by commas (default: all ten; also resnet50_224, inception_v3_299, cnn_step)")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"number of turns (default: {TURNS})")
    parser.add_argument("--only", choices=("equality", "speed"), help="leave out the other half")
    args = parser.parse_args()
    runtime = import_quietly("runtime")
    # Four devices would leave each a thread less; equality needs four, speed is measured on two.
    runtime.prepare_devices(DEVICES if args.only == "speed" else max(COUNTS))
    zoo = import_quietly("benchmarks.model_zoo")
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before: other work on this machine affects the figures")
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in (args.models or ",".join(zoo.MODELS)).split(","):
            found[name] = Case(name, {**zoo.MODELS, **zoo.LARGE}[name], Path(folder)).measure(args.turns, args.only)
            print(json.dumps({name: found[name]}), flush=True)
    for title, columns in (("captured, measured, placed", ("operations", "vertices", "capture_s", "calibrate_s", "place_s")),
                           ("random assignments with the outputs of the original", ("runs", "equal", "valid", "largest_relative")),
                           (f"{FIDELITY} assignments, simulated and measured",
                            ("median_error", "rank_correlation", "cut_median_error", "cut_rank_correlation")),
                           ("one call", ("alone_s", "one_device_s", "placed_s", "one_over_placed", "alone_over_placed")),
                           ("one call, cut into a tile for each device", ("cut_vertices", "cut_s", "one_over_cut", "alone_over_cut")),
                           ("a batch of several in flight", ("two_in_flight_s", "alone_over_two", "four_in_flight_s", "alone_over_four"))):
        rows = {name: {column: row.get(column) for column in columns} for name, row in found.items() if columns[0] in row}
        if rows:
            show(title, rows)
    finish(found)


class Case:
    """One model, captured."""

    def __init__(self, name: str, build: Callable[[Path], object], folder: Path):
        capture, source, self._file = import_quietly("data.capture"), build(folder), folder / f"{name}.json"
        started = time.perf_counter()
        found = capture.capture_counted(source, model_folder=folder / f"{name}.model", name=name)
        self.figures = {"operations": found.operations, "vertices": len(found.graph.work_vertices),
                        "capture_s": time.perf_counter() - started}
        programs, self._graph = import_quietly("runtime.captured_program"), found.graph
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
        runtime, program = import_quietly("runtime"), self._program
        started = time.perf_counter()
        profile = runtime.profile(self._graph, cpu(DEVICES), program.inputs)
        self.figures["calibrate_s"] = time.perf_counter() - started
        graph, costs = profile.graph, profile.costs
        started = time.perf_counter()
        place(graph, costs)
        self.figures["place_s"] = time.perf_counter() - started
        cut = runtime.profile(self._cut, cpu(DEVICES), self._cut_program.inputs)
        self.figures["cut_vertices"] = len(cut.graph.work_vertices)
        one = all_on(graph, costs, 0)
        with ExitStack() as stack:
            engine = stack.enter_context(runtime.TensorFlowExecutor(program.inputs, program.fetch, keep_inputs=True))
            tiles = stack.enter_context(runtime.TensorFlowExecutor(self._cut_program.inputs, self._cut_program.fetch, keep_inputs=True))
            self._fidelity(graph, costs, engine)
            self._fidelity(cut.graph, cut.costs, tiles, "cut_")
            alone = stack.enter_context(PlainTensorFlow(self._file))
            alone.run("default")  # while it starts, it takes both cores
            calls = {"alone": lambda: alone.run("default"), "one_device": lambda: engine.execute(graph, costs, one).makespan_s}
            calls |= {f"placed {name}": lambda a=a: engine.execute(graph, costs, a).makespan_s for name, a in _finalists(graph, costs)}
            calls |= {f"cut {name}": lambda a=a: tiles.execute(cut.graph, cut.costs, a).makespan_s
                      for name, a in _finalists(cut.graph, cut.costs)}
            for count in IN_FLIGHT:
                calls[f"{count} in flight"] = self._in_flight(stack, graph, costs, count)
            seconds = _in_turns(calls, turns)
        best, best_cut = (min((name for name in seconds if name.startswith(kind)), key=seconds.__getitem__) for kind in ("placed", "cut"))
        self.figures |= {"alone_s": seconds["alone"], "one_device_s": seconds["one_device"], "placed_s": seconds[best], "placed_by": best,
                         "one_over_placed": seconds["one_device"] / seconds[best], "alone_over_placed": seconds["alone"] / seconds[best],
                         "cut_s": seconds[best_cut], "cut_by": best_cut, "one_over_cut": seconds["one_device"] / seconds[best_cut],
                         "alone_over_cut": seconds["alone"] / seconds[best_cut],
                         "two_in_flight_s": seconds["2 in flight"], "alone_over_two": seconds["alone"] / seconds["2 in flight"],
                         "four_in_flight_s": seconds["4 in flight"], "alone_over_four": seconds["alone"] / seconds["4 in flight"]}

    def _in_flight(self, stack: ExitStack, graph, costs, count: int) -> Callable[[], float]:
        """A call that runs batches, and gives the seconds of one."""
        few = repeat_graph(graph, costs.topology, count, count)
        pattern = few.pattern(place_batches(few, budget_s=SEARCH_S).assignment)
        batches = repeat_graph(graph, costs.topology, BATCHES, count)
        program, assignment = self._program.repeated(batches, 0), batches.assignment(pattern)
        engine = stack.enter_context(import_quietly("runtime").TensorFlowExecutor(program.inputs, program.fetch, dispatch="order",
                                                                                  keep_inputs=True))
        return lambda: engine.execute(batches.graph, batches.costs, assignment).makespan_s / BATCHES

    def _fidelity(self, graph, costs, engine, begin: str = "") -> None:
        assignments = spread_assignments(graph, costs, FIDELITY, np.random.default_rng(0))
        measured_s = np.zeros((len(assignments), REPEATS))
        for r in range(REPEATS):
            for i, assignment in enumerate(assignments):
                measured_s[i, r] = engine.execute(graph, costs, assignment).makespan_s
        simulated_s = np.array([simulate(graph, costs, assignment).makespan_s for assignment in assignments])
        judged = agreement(simulated_s, np.median(measured_s, axis=1))
        self.figures |= {f"{begin}median_error": judged.median_error, f"{begin}rank_correlation": judged.rank_correlation}


def _finalists(graph, costs) -> list[tuple[str, Assignment]]:
    """The simple placements, and the best that a search finds."""
    return [*baselines(graph, costs, 0, "fifo").items(), ("searched", place(graph, costs, budget_s=SEARCH_S).assignment)]


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
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(WARM + turns):
        for name, call in calls.items():
            call()
            seconds[name].append(call())
    return {name: float(np.median(values[WARM:])) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
