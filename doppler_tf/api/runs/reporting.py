"""`report`: the page on a training run, and the traces that it links to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler_tf.api.runs.learning_curves import learning_charts
from doppler_tf.api.runs.trained_run import Trained, read_figures, read_traces, read_trained
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.formats.chrome_trace import TraceFile, write_trace
from doppler_tf.formats.files import check_writable, file_name, write_bytes
from doppler_tf.notes import note
from doppler_tf.report.html.page import page
from doppler_tf.report.html.section import Outcome, trace_link
from doppler_tf.report.methods import compared_methods
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator


def write_report(run: str | Path, out: str | Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Writes a page on a training run: figures, methods, the best assignment over time, learning curves, the graph by device.

    Args:
      run: the folder that `train` wrote.
      out: the page (default: report/index.html in the run's folder); simulated traces are written beside it.
      seed: of the methods that the policy is compared with.

    Returns:
      What the command prints with `--json`.

    Raises:
      CheckpointError: the run is not finished, or damaged. FormatError: `out` cannot be written.
    """
    run = Path(run)
    out = check_writable(out or run / "report" / "index.html")
    figures, config = read_figures(run), import_quietly("agents.config").stored_config(run).to_json()
    trained = read_trained(run, figures)
    traces, refused = read_traces(run / "traces")
    for line in refused:
        note(f"not linked: {line}")
    outcomes, graphs = [], {}
    for one in trained:
        outcome, graphs[one.graph.name] = _examine(run, one, config, len(trained), traces, out, seed)
        outcomes.append(outcome)
    write_bytes(out, page(run.resolve().name, config, outcomes).encode())
    return {"run": run, "page": out, "graphs": graphs}


def _examine(run: Path, one: Trained, config: Mapping[str, Any], graphs: int, traces: Mapping[Path, TraceFile], out: Path, seed: int):
    """One graph's part of the page, and the same figures for the result; writes the simulated trace."""
    graph, ran = one.graph, offloaded(one.graph, one.costs, one.assignment)
    trace = Simulator().execute(*ran)
    simulated = out.with_name(f"{out.stem}.{file_name(graph.name)}.trace.json")
    write_trace(simulated, *ran, trace)
    measured = {path: it for path, it in traces.items() if it.graph.graph_hash == ran[0].graph_hash}
    bound_s = max([one.figures["lower_bound_s"], *(it.assignment.proven_bound_s for it in measured.values())])
    figures = {**one.figures, "lower_bound_s": bound_s}
    methods = compared_methods(graph, one.costs, trace.makespan_s, figures["greedy_makespan_s"], config["dispatch"], seed)
    links = [trace_link(simulated, out, "the best assignment, simulated", trace.makespan_s),
             *(trace_link(path, out, f"a run on {it.trace.device_kind} devices", it.trace.makespan_s) for path, it in measured.items())]
    charts = learning_charts(run, max(1, config["batch"] // graphs), graph.name)
    made, costs, assignment = ran
    outcome = Outcome(made, costs, figures, assignment, trace, methods, charts, links)
    return outcome, {**figures, "topology": one.costs.topology.name, "simulated_makespan_s": trace.makespan_s, "trace": simulated,
                     "measured_traces": list(measured), "methods": {row["name"]: row["makespan_s"] for row in methods}}
