"""Printing of results as a JSON object or tables, and the table and files of a trace that several commands share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from rich.console import Console, RenderableType

    from doppler_tf.assignment import Assignment
    from doppler_tf.batches import Batches
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.trace import Trace

WIDTH = 120
IDLE_HEADERS = ("for input", "for link", "for memory", "overhead", "nothing left")  # as report.idle.CAUSES


def print_json(result: Mapping[str, Any]) -> None:
    """One line on stdout; infinity and NaN become null."""
    print(json.dumps(plain(result), allow_nan=False))


def print_tables(renderables: Iterable, file: IO[str]) -> None:
    """Prints strings unchanged, and rich renderables as wide as the terminal, or WIDTH columns wide if `file` is no terminal."""
    for renderable in renderables:
        if isinstance(renderable, str):
            print(renderable, file=file)
        else:
            _console(file).print(renderable)


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    console = Console(file=file, highlight=False, markup=False, emoji=False)  # names of vertices may hold brackets and colons
    if not console.is_terminal:
        console.width = WIDTH
    return console


def plain(value: Any) -> Any:
    """The value in JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy arrays and scalars; importing NumPy would slow --help down
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def device_table(result: Mapping[str, Any]) -> RenderableType:
    """Devices with busy share, peak memory and, if the result has it, idle slot time by cause."""
    from doppler_tf.report.tables import grid, percent, quantity, time_unit

    peaks = result["peak_bytes"] or {}
    usage = {name: (name, percent(share), quantity(peaks.get(name), "B")) for name, share in result["busy"].items()}
    if result.get("idle") is None:
        return grid("", ("device", "busy", "peak memory"), list(usage.values()))
    unit = time_unit([sum(causes.values()) for causes in result["idle"].values()])
    rows = [(*usage[name], *map(unit.text, (sum(causes.values()), *causes.values()))) for name, causes in result["idle"].items()]
    return grid("", ("device", "busy", "peak memory", "idle", *IDLE_HEADERS), rows)


def write_pictures(args: argparse.Namespace, graph: DataflowGraph, costs: CostModel, assignment: Assignment, trace: Trace,
                   lower_bound_s: float) -> None:
    """Writes the files that `--trace` and `--gantt` name."""
    if getattr(args, "trace", None) is not None:
        from doppler_tf.formats.chrome_trace import write_trace

        write_trace(args.trace, graph, costs, assignment, trace)
    if args.gantt is not None:
        from doppler_tf.report.gantt import write_gantt

        write_gantt(args.gantt, graph, costs, trace, lower_bound_s, assignment.method)


def batch_figures(batches: Batches, trace: Trace, simulated: Trace | None = None) -> dict[str, Any]:
    """The fields of a run of several batches: their numbers, throughput and latency, and those simulated beside a real run."""
    found = {"repeat": batches.repeats, "in_flight": batches.in_flight, **batches.figures(trace)}
    if simulated is not None:
        found |= {f"simulated_{name}": value for name, value in batches.figures(simulated).items()}
    return found


def batch_facts(result: Mapping[str, Any]) -> dict[str, str]:
    """The rows of a table of facts that `batch_figures` fills; none for a single call."""
    from doppler_tf.report.tables import time_unit

    if "repeat" not in result:
        return {}
    unit = time_unit([result["latency_s"]])
    beside = {name: f" (simulated {text})" for name, text in (
        ("throughput_per_s", f"{result['simulated_throughput_per_s']:.4g}"), ("latency_s", unit.text(result["simulated_latency_s"])),
    )} if "simulated_latency_s" in result else {}
    return {"batches": f"{result['repeat']:,}, {result['in_flight']} in flight",
            "batches by second": f"{result['throughput_per_s']:.4g}{beside.get('throughput_per_s', '')}",
            "latency of a batch": f"{unit.text(result['latency_s'])}{beside.get('latency_s', '')}"}
