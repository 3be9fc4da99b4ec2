"""How well a cost model predicts measurements: figures, and the report in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.heuristics.mixtures import rank_correlation
from doppler_tf.report.tables import NOTHING, markdown_table, percent, quantity, time_unit
from doppler_tf.schedule.assignment import Assignment, plan_transfers
from doppler_tf.schedule.simulator import Simulator
from doppler_tf.schedule.trace import Trace, woken

TRANSFER = "transfer"
GIVEN, PROFILED = "given", "profiled"
MODELS = {GIVEN: "the costs of the graph and topology as given",
          PROFILED: "kernels and links as measured in other runs of the graph, stored in `graph.json` and `topology.json`"}


@dataclass(frozen=True)
class Agreement:
    """Simulated against measured makespans of several assignments.

    Attributes:
      median_error, worst_error: of |simulated / measured - 1|.
      bias: median of simulated / measured - 1; if it is above 0, the model is too slow.
      rank_correlation: Spearman's; NaN if either is constant.
    """

    median_error: float
    worst_error: float
    bias: float
    rank_correlation: float


def agreement(simulated_s: np.ndarray, measured_s: np.ndarray) -> Agreement:
    """Args: simulated_s, measured_s: float64 [A], one makespan per assignment; measured ones are above 0."""
    error = simulated_s / measured_s - 1
    return Agreement(float(np.median(np.abs(error))), float(np.abs(error).max()), float(np.median(error)),
                     rank_correlation(simulated_s, measured_s))


class Durations:
    """Seconds that vertices and transfers took in runs, and that models predict for them.

    If the trace has a log, a vertex takes from the instruction to the news of its end. This is how long its device was occupied. A transfer
    takes its own time only; its wait for the destination does not occupy the link. Where devices share tensors, it takes what it takes to
    wake the device that waits for it (`woken`); one for which none waits tells nothing.
    """

    def __init__(self, graph: DataflowGraph, models: Mapping[str, CostModel]):
        """Args: models: by name."""
        self._graph, self._models = graph, models
        self._vertex: dict[tuple, list[float]] = defaultdict(list)
        self._transfer: dict[tuple, list[tuple[float, ...]]] = defaultdict(list)

    def add(self, trace: Trace, assignment: Assignment) -> None:
        """Adds one run. Its transfers must be in the order of `plan_transfers`."""
        log, (waited_s, messages) = trace.log or trace, woken(trace)
        for v, d, seconds in zip(log.vertex.tolist(), log.device.tolist(), (log.end_s - log.start_s - waited_s).tolist(), strict=True):
            self._vertex[v, d].append(seconds)
        modelled = [plan_transfers(self._graph, model, assignment.device).cost_s for model in self._models.values()]
        took_s = np.where(log.transfer_start_s < log.transfer_end_s, trace.transfer_end_s - trace.transfer_start_s, np.nan)
        took_s[list(messages)] = list(messages.values())
        rows = np.stack([took_s, *modelled], axis=1).tolist()
        for key, row in zip(np.stack([trace.tensor(self._graph), trace.source, trace.destination], axis=1).tolist(), rows, strict=True):
            if not np.isnan(row[0]):
                self._transfer[tuple(key)].append(row)

    def by_kind(self) -> dict[str, dict[str, float]]:
        """Mean seconds by kind of vertex (the costliest first), and of all transfers.

        Returns:
          By kind `count` (of distinct vertices or transfers that ran), `measured_s`, and NAME_s for each model. If a vertex ran several
          times on one device, its median counts.
        """
        at = np.array(list(self._vertex), np.int64)
        measured_s = np.array([np.median(seconds) for seconds in self._vertex.values()])
        modelled_s = [model.exec_s[at[:, 0], at[:, 1]] for model in self._models.values()]
        kinds = np.array(self._graph.kinds)[at[:, 0]]
        rows = {kind: self._row(len(np.unique(at[kinds == kind, 0])), *(times[kinds == kind] for times in (measured_s, *modelled_s)))
                for kind in np.unique(kinds).tolist()}
        rows = dict(sorted(rows.items(), key=lambda row: -row[1]["count"] * row[1]["measured_s"]))
        if self._transfer:
            medians = np.array([np.median(times, axis=0) for times in self._transfer.values()])
            rows[TRANSFER] = self._row(len(medians), *medians.T)
        return rows

    def _row(self, count: int, *times_s: np.ndarray) -> dict[str, float]:
        names = ("measured", *self._models)
        return {"count": count, **{f"{name}_s": float(times.mean()) for name, times in zip(names, times_s, strict=True)}}


def compare_models(graph: DataflowGraph, models: Mapping[str, CostModel], assignments: Sequence[Assignment],
                   runs_s: np.ndarray) -> dict[str, Any]:
    """`models`: agreement by model; `makespans`: one record per assignment; `spread`: the median relative range of an assignment's runs."""
    measured_s = np.median(runs_s, axis=1)
    simulated_s = {name: [Simulator().execute(graph, model, assignment).makespan_s for assignment in assignments]
                   for name, model in models.items()}
    devices = [len(np.unique(assignment.device[graph.work_vertices])) for assignment in assignments]
    records = [{"method": assignment.method, "devices": devices[i], "measured_s": float(measured_s[i]),
                **{f"{name}_s": values[i] for name, values in simulated_s.items()}} for i, assignment in enumerate(assignments)]
    return {"models": {name: asdict(agreement(np.array(values), measured_s)) for name, values in simulated_s.items()},
            "spread": float(np.median(np.ptp(runs_s, axis=1) / measured_s)) if runs_s.shape[1] > 1 else None, "makespans": records}


def link_records(costs: CostModel) -> list[dict[str, Any]]:
    """One record per link: source, destination, latency and bandwidth; shares of the devices' time where there are any."""
    topology, names, shares = costs.topology, costs.topology.device_names, costs.topology.shares
    return [{"source": names[s], "destination": names[t], "latency_s": float(topology.latency_s[s, t]),
             "bandwidth_bytes_per_s": float(topology.bandwidth_bytes_per_s[s, t]),
             **({} if shares is None else {"source_share": float(shares[0, s, t]), "destination_share": float(shares[1, s, t])})}
            for s, t in np.argwhere(topology.links).tolist()]


def markdown(result: Mapping[str, Any]) -> str:
    """The report of `calibrate` in Markdown, with `scatter.png` beside it."""
    models, runs = result["models"], result["repeats"]
    each = "each run once" if runs == 1 else f"each with the median of {runs} runs"
    lines = [f"# {result['graph']} on {result['topology']}: simulated and measured", "",
             f"{result['assignments']} assignments, from one device to all, on the `{result['executor']}` executor, {each}. Models:", "",
             *(f"- `{name}`: {MODELS[name]}" for name in models), "",
             "## Makespans", "", "![simulated against measured makespans](scatter.png)", "", markdown_table(*makespan_table(models)), "",
             f"Error is |simulated / measured - 1|, bias its median with sign; rank correlation is Spearman's.{_noise(result)}", "",
             "## One vertex or transfer", "", markdown_table(*kind_table(result["kinds"], list(models))), "",
             "Means by kind. *In runs* is the time from the instruction to the news of the end, while other vertices ran too."]
    if result["links"]:
        lines += ["", "## Links", "", markdown_table(*link_table(result["links"]))]
    return "\n".join(lines) + "\n"


def _noise(result: Mapping[str, Any]) -> str:
    if result["spread"] is None:
        return ""
    return f" Runs of one assignment lie {percent(result['spread'])} apart. Smaller differences between models mean nothing."


def makespan_table(models: Mapping[str, Mapping[str, float]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and one row per model."""
    rows = [(name, percent(row["median_error"]), percent(row["worst_error"]), _signed(row["bias"]),
             number(row["rank_correlation"])) for name, row in models.items()]
    return ("model", "median error", "worst error", "bias", "rank correlation"), rows


def kind_table(kinds: Mapping[str, Mapping[str, float]], models: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and one row per kind: for each model its time, and its error against the time measured in runs."""
    unit = time_unit([row["measured_s"] for row in kinds.values()])
    rows = [(kind, f"{row['count']:,}", unit.text(row["measured_s"]),
             *(cell for name in models for cell in (unit.text(row[f"{name}_s"]), _error(row[f"{name}_s"], row["measured_s"]))))
            for kind, row in kinds.items()]
    return ("kind", "number", "in runs", *(cell for name in models for cell in (name, "error"))), rows


def link_table(links: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Columns, and one row for each group of links with equal figures."""
    groups: dict[tuple, list[str]] = defaultdict(list)
    for link in links:
        figures = tuple(value for key, value in link.items() if key not in ("source", "destination"))
        groups[figures].append(f"{link['source']} to {link['destination']}")
    rows = [(names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", f"{latency_s * 1e6:.1f} us",
             quantity(bandwidth, "B/s"), *map(percent, shares)) for (latency_s, bandwidth, *shares), names in groups.items()]
    return ("link", "latency", "bandwidth", *(("source's time", "destination's time") if len(next(iter(groups), ())) > 2 else ())), rows


def number(value: float) -> str:
    """A number with three decimals."""
    return f"{value:.3f}" if np.isfinite(value) else NOTHING


def _error(model_s: float, measured_s: float) -> str:
    return _signed(model_s / measured_s - 1) if measured_s > 0 else NOTHING


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}%"
