"""Printing of results as a JSON object or tables, and the tables of a trace that several commands share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any

from doppler_tf.formats.files import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

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


def offload_facts(result: Mapping[str, Any]) -> dict[str, str]:
    """The row of a table of facts that tells what crosses the links of the host; none where nothing does."""
    from doppler_tf.report.tables import quantity

    if "offload" not in result:
        return {}
    found = result["offload"]
    return {"offload": f"{quantity(found['to_host_bytes'], 'B')} to the host, {quantity(found['from_host_bytes'], 'B')} back in "
                       f"{found['reloads']:,} loads, {found['kept_on_host']:,} results stay there"}
