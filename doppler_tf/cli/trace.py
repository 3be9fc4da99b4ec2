"""Check whether a trace is valid and work conserving, and show busy shares, causes of idle time and the critical chain."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.options import add_pictures, natural_real

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_LINKS, SHOWN_ELEMENTS = 56, 20
FUNCTION = "doppler_tf.api.traces.stored"
EXAMPLE = "python -m doppler_tf trace run.trace.json --gantt run.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="trace file that `simulate` or `run` wrote")
    parser.add_argument("--tolerance-s", type=natural_real, metavar="S",
                        help="tolerance on wall-clock times (default: 1%% of the makespan); the dispatcher's log is judged exactly")
    add_pictures(parser, trace=False)


def render(result: dict[str, Any]) -> list:
    """Tables of facts, of devices, of links and of the critical chain, and the first violations."""
    from doppler_tf.cli.output import device_table, offload_facts
    from doppler_tf.report.tables import facts, grid, over, percent, time_unit, yes_no

    unit, clock = time_unit([result["makespan_s"]]), result["clock"]
    rows = {"assignment": result["method"] or "by hand", "devices": result["device_kind"], "dispatch": result["dispatch"],
            "makespan": unit.text(result["makespan_s"]), "lower bound of the model": unit.text(result["lower_bound_s"]),
            "above the bound": over(result["makespan_s"], result["lower_bound_s"]), "valid": yes_no(result["trace_valid"]),
            "work conserving": yes_no(result["work_conserving"]), **offload_facts(result)}
    if clock is not None:
        rows[f"on the clock, within {unit.text(clock['tolerance_s'])}"] = (f"valid {yes_no(clock['valid'])}, "
                                                                           f"work conserving {yes_no(clock['work_conserving'])}")
    tables = [facts(f"{result['graph']} on {result['topology']}", rows), device_table(result)]
    for shares, name in ((result["busy_links"], "link"), (result["busy_cards"], "network card")):
        if len(shares) > SHOWN_LINKS:
            busiest = set(sorted(shares, key=shares.get, reverse=True)[:SHOWN_LINKS])
            shares, name = {link: share for link, share in shares.items() if link in busiest}, f"the {SHOWN_LINKS} busiest {name}s"
        if shares:
            tables.append(grid("", (name, "busy"), [(link, percent(share)) for link, share in shares.items()]))
    tables += _chain_tables(result)
    if result["violations"]:
        shown = result["first_violations"]
        tables.append(facts(f"violations, {len(shown)} of {result['violations']}", {str(i + 1): text for i, text in enumerate(shown)}))
    return tables


def _chain_tables(result: Mapping[str, Any]) -> list[RenderableType]:
    """Tables of the critical chain's sums and of its elements, at most SHOWN_ELEMENTS, the longest."""
    from doppler_tf.report.tables import facts, grid, percent, time_unit

    chain = result["critical_chain"]
    if chain is None:
        return []
    elements, whole = chain["elements"], time_unit([result["makespan_s"]])
    seconds = {kind: chain[f"{kind}_s"] for kind in ("exec", "transfer", "waiting")}
    total = sum(seconds.values()) or 1.0
    before = ["", *(element["name"] for element in elements)]
    durations_s = [element["end_s"] - element["start_s"] + element["waiting_s"] for element in elements]
    unit = time_unit([max(durations_s)])  # the makespan's unit would round the elements of a long run to nothing
    shown = sorted(sorted(range(len(elements)), key=lambda i: -durations_s[i])[:SHOWN_ELEMENTS])
    rows = [(e["name"], e["lane"], unit.text(e["start_s"]), unit.text(e["end_s"]),
             f"{e['waited_for']} ({before[i]})" if i else e["waited_for"], unit.text(e["waiting_s"]))
            for i, e in ((i, elements[i]) for i in shown)]
    many = f", the {len(shown)} longest of {len(elements):,} elements" if len(shown) < len(elements) else ""
    return [facts("critical chain, by kind", {kind: f"{whole.text(value)}, {percent(value / total)}" for kind, value in seconds.items()}),
            grid(f"critical chain from the start of the run{many}", ("what", "lane", "start", "end", "waited for", "waiting"), rows)]
