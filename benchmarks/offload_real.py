"""Plans for too little memory on real kernels: `python -m benchmarks.offload --real`.

Two logical CPUs run ResNet50 at 64 px, InceptionV3 at 96 px, four layers of a transformer's encoder and two small Llama layers, at shares
of the peak that they take without a limit. All kernels are measured first; weights are tensors. Then a run without limits, the plans and
the pager of `benchmarks.offload` take turns; figures are medians of makespans. Outputs are compared with those of the original, and the
bytes that tensors hold with the limit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from data import build_workload
from doppler_tf.api.executors import Program
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.frozen import with_weights_as_operands
from doppler_tf.graph.topology import cpu
from doppler_tf.offload.compiler import ON_DEMAND
from doppler_tf.offload.planning import plan_offload
from doppler_tf.placement import place
from doppler_tf.schedule.assignment import Assignment
from doppler_tf.schedule.offloaded import kept_on_host, offloaded
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import peak_bytes
from doppler_tf.schedule.validation import validate_trace

DEVICES, PIECES, SHARES, TOLERANCE = 2, 2, (0.6, 0.4), 1e-5


def real_rows(turns: int) -> dict[str, dict]:
    """A row for each model and share of its peak."""
    runtime = import_quietly("runtime")
    runtime.prepare_devices(DEVICES)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, graph, program in _programs(Path(folder)):
            effort = runtime.Effort(budget_s=20.0)
            profile = runtime.profile(graph, cpu(DEVICES), program.inputs, effort)
            found |= _rows(name, profile.graph, profile.costs, program, turns)
    return found


def _programs(folder: Path) -> Iterator[tuple]:
    """Names, graphs and programs, one after the other, as they hold much memory."""
    zoo, capture = import_quietly("benchmarks.model_zoo"), import_quietly("data.capture").capture
    made = {"resnet50": zoo.application(zoo.applications.ResNet50, 64),
            "inception_v3": zoo.application(zoo.applications.InceptionV3, 96),
            "transformer": lambda folder: zoo.transformer(folder, 4)}
    for name, build in made.items():
        graph = with_weights_as_operands(capture(build(folder), model_folder=folder / name, pieces=PIECES))
        yield name, graph, import_quietly("runtime.models.captured_program").CapturedProgram(graph)
    graph = build_workload("llama_stack", DEVICES, scale="small", layers=2)
    yield "llama_stack", graph, Program(graph)


def _rows(name: str, graph: DataflowGraph, costs: CostModel, program, turns: int) -> dict[str, dict]:
    free = place(graph, costs).assignment
    predicted = {"without": Simulator().execute(graph, costs, free)}
    peak = float(peak_bytes(graph, costs, free, predicted["without"]).max())
    ways: dict[str, tuple[DataflowGraph, CostModel, Assignment]] = {"without": (graph, costs, free)}
    for share in SHARES:
        short = build_costs(graph, costs.topology.with_memory(share * peak))
        ways[f"plan {share}"] = offloaded(graph, short, place(graph, short).assignment)
        ways[f"pager {share}"] = offloaded(graph, short, plan_offload(graph, short, free, ON_DEMAND)[1])
    predicted = {way: Simulator().execute(*ran).makespan_s for way, ran in ways.items()}
    measured: dict[str, list[float]] = {way: [] for way in ways}
    errors: dict[str, float] = {}
    executor = import_quietly("runtime").TensorFlowExecutor
    with ExitStack() as stack:
        kept = {way: kept_on_host(graph, ran[0]) for way, ran in ways.items()}
        engines = {way: stack.enter_context(executor(program.inputs, [kept[way].get(t, t) for t in program.fetch])) for way in ways}
        for turn in range(turns + 1):
            for way, ran in ways.items():
                trace = engines[way].execute(*ran)
                if turn:  # the first run of each counts for nothing
                    measured[way].append(trace.makespan_s)
                    continue
                assert validate_trace(*ran, trace.log).work_conserving, (name, way)
                assert (trace.peak_tensor_bytes <= ran[1].memory_bytes).all(), (name, way)
                outputs = engines[way].outputs
                errors[way] = program.relative_error({**outputs, **{t: outputs[there] for t, there in kept[way].items()}})
                assert errors[way] <= TOLERANCE, (name, way, errors[way])
    middle = {way: np.percentile(seconds, [25, 50, 75]) for way, seconds in measured.items()}
    return {f"{name} {share:.0%}": {
        "limit_mb": share * peak / 1e6, "loaded_mb": _loaded_bytes(*ways[f"plan {share}"][:2], graph.num_vertices) / 1e6,
        "without_s": middle["without"][1], "without_over_predicted": middle["without"][1] / predicted["without"],
        **_figures("plan", middle[f"plan {share}"], predicted[f"plan {share}"], middle["without"][1]),
        **_figures("pager", middle[f"pager {share}"], predicted[f"pager {share}"], middle["without"][1]),
        "error": f"{errors[f'plan {share}']:.1e}"} for share in SHARES}


def _figures(name: str, quartiles: np.ndarray, predicted_s: float, without_s: float) -> dict[str, float]:
    low_s, median_s, high_s = quartiles.tolist()
    return {f"{name}_s": median_s, f"{name}_spread_share": (high_s - low_s) / median_s, f"{name}_over_predicted": median_s / predicted_s,
            f"{name}_over_without": median_s / without_s}


def _loaded_bytes(graph: DataflowGraph, costs: CostModel, first_load: int) -> float:
    return float(costs.output_bytes[first_load:][[kind == "reload" for kind in graph.kinds[first_load:]]].sum())
