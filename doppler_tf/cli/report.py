"""Write a page on a training run: figures, methods, the best assignment over time, learning curves, the graph by device."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.messages import note
from doppler_tf.cli.options import output_file

if TYPE_CHECKING:
    from doppler_tf.cli.trained_run import Trained
    from doppler_tf.formats.chrome_trace import TraceFile

EXAMPLE = "python -m doppler_tf report runs/chainmm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder that `train` wrote")
    parser.add_argument("--out", type=output_file, metavar="PAGE.html", help="page to write (default: RUN/report/index.html)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Writes the page and beside it the simulated traces that it links to."""
    from doppler_tf.cli.trained_run import read_figures, read_traces, read_trained
    from doppler_tf.formats.files import check_writable, write_bytes
    from doppler_tf.report.html.page import page

    out = args.out or check_writable(args.run / "report" / "index.html")
    figures, config = read_figures(args.run), _config(args.run)
    trained = read_trained(args.run, figures)
    traces, refused = read_traces(args.run / "traces")
    for line in refused:
        note(f"not linked: {line}")
    outcomes, graphs = [], {}
    for one in trained:
        outcome, graphs[one.graph.name] = _examine(args, one, config, len(trained), traces, out)
        outcomes.append(outcome)
    write_bytes(out, page(args.run.resolve().name, config, outcomes).encode())
    return {"run": args.run, "page": out, "graphs": graphs}


def render(result: dict[str, Any]) -> list:
    """A table with one row per graph, and the path of the page."""
    from doppler_tf.report.methods import fastest_heuristic
    from doppler_tf.report.tables import facts, grid, over, time_unit

    rows = []
    for name, row in result["graphs"].items():
        first = fastest_heuristic(row["methods"])
        unit = time_unit([row["best_makespan_s"], row["lower_bound_s"]])
        rows.append((name, unit.text(row["best_makespan_s"]), unit.text(row["lower_bound_s"]),
                     over(row["best_makespan_s"], row["lower_bound_s"]), f"{unit.text(row['methods'].get(first))} ({first})"))
    return [grid("", ("graph", "best", "lower bound", "best above it", "fastest heuristic"), rows),
            facts("", {"page": str(result["page"])})]


def _config(run: Path) -> dict[str, Any]:
    from doppler_tf.cli.tensorflow import import_quietly

    return import_quietly("agents.config").stored_config(run).to_json()


def _examine(args: argparse.Namespace, one: Trained, config: Mapping[str, Any], graphs: int, traces: Mapping[Path, TraceFile], out: Path):
    """One graph's part of the page, and the same figures for the result; writes the simulated trace."""
    from doppler_tf.cli.learning_curves import learning_charts
    from doppler_tf.formats.chrome_trace import write_trace
    from doppler_tf.formats.files import file_name
    from doppler_tf.report.html.section import Outcome, trace_link
    from doppler_tf.report.methods import compared_methods
    from doppler_tf.simulator import Simulator

    graph = one.graph
    trace = Simulator().execute(graph, one.costs, one.assignment)
    simulated = out.with_name(f"{out.stem}.{file_name(graph.name)}.trace.json")
    write_trace(simulated, graph, one.costs, one.assignment, trace)
    measured = {path: it for path, it in traces.items() if it.graph.graph_hash == graph.graph_hash}
    bound_s = max([one.figures["lower_bound_s"], *(it.assignment.proven_bound_s for it in measured.values())])
    figures = {**one.figures, "lower_bound_s": bound_s}
    methods = compared_methods(graph, one.costs, trace.makespan_s, figures["greedy_makespan_s"], config["dispatch"], args.seed)
    links = [trace_link(simulated, out, "the best assignment, simulated", trace.makespan_s),
             *(trace_link(path, out, f"a run on {it.trace.device_kind} devices", it.trace.makespan_s) for path, it in measured.items())]
    charts = learning_charts(args.run, max(1, config["batch"] // graphs), graph.name)
    outcome = Outcome(graph, one.costs, figures, one.assignment, trace, methods, charts, links)
    return outcome, {**figures, "topology": one.costs.topology.name, "simulated_makespan_s": trace.makespan_s, "trace": simulated,
                     "measured_traces": list(measured), "methods": {row["name"]: row["makespan_s"] for row in methods}}
