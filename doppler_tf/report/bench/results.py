"""Pure functions that turn the records of a `bench` into rows, tables and the page.

A record is the result of one cell: `method`, `graph`, `topology`, `seed`, `status` (`done` or `failed`), `best_makespan_s` (best of all
samples), `greedy_makespan_s`, `best_seen_s` (while learning), `lower_bound_s`, `seconds`, `episodes`, `simulations`, and `executed`
(measured by the wall clock, not simulated). A missing figure is None.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from doppler_tf.report.bench.paper import FIGURES_MS, RATIOS
from doppler_tf.report.tables import NOTHING, markdown_table, over, time_unit

Record = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]
# Fields of a row, in the order of the CSV file.
FIELDS = ("topology", "graph", "method", "seeds", "failed", "mean_s", "least_s", "most_s", "greedy_s", "best_seen_s", "lower_bound_s",
          "best_known_s", "above_bound", "above_best", "seconds", "episodes", "simulations", "executed")


def best_known(records: Iterable[Record]) -> dict[tuple[str, str], dict[str, Any]]:
    """By (graph, topology): `lower_bound_s`, the largest bound that a cell proved, and `best_known_s`, the fastest simulated makespan."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for record in _modelled(records):
        here = found.setdefault((record["graph"], record["topology"]), {"lower_bound_s": 0.0, "best_known_s": math.inf})
        here["lower_bound_s"] = max(here["lower_bound_s"], record.get("lower_bound_s") or 0.0)
        here["best_known_s"] = min(here["best_known_s"], record["best_makespan_s"], record.get("best_seen_s") or math.inf)
    return found


def fastest(records: Iterable[Record], graph: str, topology: str) -> Record | None:
    """The record with the fastest simulated assignment; ties go to the first."""
    here = [record for record in _modelled(records) if (record["graph"], record["topology"]) == (graph, topology)]
    return min(here, key=lambda record: record["best_makespan_s"], default=None)


def summarise(records: Sequence[Record], methods: Sequence[str], graphs: Sequence[str], topologies: Sequence[str],
              seeds: int | None = None) -> list[dict[str, Any]]:
    """One row per method, graph and topology, over the seeds below `seeds` (None: all). Best figures are those of all records.

    Returns:
      Rows with FIELDS. Seconds, episodes and greedy makespans are means over seeds, `least_s` and `most_s` the extremes. `above_bound` and
      `above_best` are the mean's relative distances, 0.1 for 10%. If every seed failed, figures are None and `error` gives the reason.
    """
    known = best_known(records)
    rows = []
    for topology in topologies:
        for graph in graphs:
            for method in methods:
                here = [record for record in records if (record["method"], record["graph"], record["topology"]) == (method, graph, topology)
                        and (seeds is None or record["seed"] < seeds)]
                if here:
                    rows.append(_row(topology, graph, method, here, known.get((graph, topology), {})))
    return rows


def matrix_table(rows: Sequence[Mapping[str, Any]], reference: str = "", paper: Mapping[str, str] | None = None,
                 spread: bool = True) -> Table:
    """One row per method, one column per graph: mean (least to most), ratio to the mean of `reference`, and the paper's figure beside it.

    Args:
      paper: by method, the paper's row, a key of FIGURES_MS or RATIOS.
      spread: whether to show least and most.
    """
    paper, places = paper or {}, list(dict.fromkeys((row["graph"], row["topology"]) for row in rows))
    several = len({topology for _, topology in places}) > 1
    at = {(row["method"], row["graph"], row["topology"]): row for row in rows}
    columns, table = ["method"], [[method] for method in dict.fromkeys(row["method"] for row in rows)]
    for graph, topology in places:
        mine = [at.get((line[0], graph, topology)) for line in table]
        unit = time_unit([row["mean_s"] for row in mine if row is not None])
        base = at.get((reference, graph, topology), {}).get("mean_s")
        columns.append(f"{graph} on {topology}" if several else graph)
        for line, row in zip(table, mine, strict=True):
            line.append(NOTHING if row is None else "failed" if row["mean_s"] is None else
                        (_mean_and_range(row, unit) if spread else unit.text(row["mean_s"]))
                        + (f" ×{row['mean_s'] / base:.3f}" if base else ""))
        theirs = [_paper(paper.get(line[0]), graph, paper.get(reference)) for line in table]
        if any(theirs):
            columns.append("paper")
            for line, text in zip(table, theirs, strict=True):
                line.append(text or NOTHING)
    return columns, table


def long_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per graph and method with all figures. Graph and topology have columns if they differ; empty columns are left out."""
    varying = [key for key in ("topology", "graph") if len({row[key] for row in rows}) > 1]
    columns = [*varying, "method", "mean", "least to most", "greedy", "above bound", "above best",
               "episodes", "simulations", "seconds"]
    units = {(row["graph"], row["topology"]): time_unit([r["mean_s"] for r in rows if (r["graph"], r["topology"]) ==
                                                         (row["graph"], row["topology"])]) for row in rows}
    table = []
    for row in rows:
        unit = units[row["graph"], row["topology"]]
        figures = ["failed", *[NOTHING] * 7] if row["mean_s"] is None else [
            unit.text(row["mean_s"]), _range(row, unit), unit.text(row["greedy_s"]), over(row["mean_s"], row["lower_bound_s"]),
            over(row["mean_s"], row["best_known_s"]), _count(row["episodes"]), _count(row["simulations"]), _seconds(row["seconds"])]
        table.append([*(row[key] for key in varying), row["method"], *figures])
    kept = [i for i, column in enumerate(columns) if i <= len(varying) + 1 or any(line[i] != NOTHING for line in table)]
    return [columns[i] for i in kept], [[line[i] for i in kept] for line in table]


def results_page(title: str, text: str, sections: Sequence[Mapping[str, Any]], failures: Mapping[str, str], made_by: str) -> str:
    """The page of a `bench` in Markdown: the suite's text with tables and pictures of the results.

    Args:
      sections: each with `title`, `text`, `table` (None: only text), and `pictures`, paths relative to the page by caption.
      failures: errors by cell, for the end of the page.
      made_by: the command, for the head of the page.
    """
    parts = [f"# {title}" if title else "", f"<!-- made by `{made_by}`; do not edit -->", text.strip()]
    for section in sections:
        parts += [f"## {section['title']}" if section["title"] else "", section["text"].strip()]
        if section["table"] is not None:
            parts.append(markdown_table(*section["table"]))
        parts += [f"![{caption}]({path})" for caption, path in section["pictures"].items()]
    if failures:
        parts += ["## Cells that failed",
                  markdown_table(["cell", "error"], [[f"`{key}`", error] for key, error in failures.items()], words=True)]
    return "\n\n".join(part for part in parts if part) + "\n"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header line; missing figures are empty."""
    content = io.StringIO()
    writer = csv.DictWriter(content, FIELDS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return content.getvalue()


def _row(topology: str, graph: str, method: str, here: Sequence[Record], known: Mapping[str, Any]) -> dict[str, Any]:
    done = [record for record in here if record["status"] == "done" and record.get("best_makespan_s") is not None]
    row = dict.fromkeys(FIELDS) | {"topology": topology, "graph": graph, "method": method, "seeds": len(done),
                                   "failed": sum(record["status"] != "done" for record in here), "executed": False}
    if not done:
        return row | {"error": next((record["error"] for record in here if record.get("error")), None)}
    makespans = [record["best_makespan_s"] for record in done]
    seen = [record["best_seen_s"] for record in done if record.get("best_seen_s") is not None]
    row |= {"mean_s": mean(makespans), "least_s": min(makespans), "most_s": max(makespans), "best_seen_s": min(seen, default=None),
            **{name: _mean(done, key) for name, key in (("greedy_s", "greedy_makespan_s"), ("seconds", "seconds"), ("episodes", "episodes"),
                                                       ("simulations", "simulations"))}}
    if any(record.get("executed") for record in done):
        return row | {"executed": True}
    return row | {**known, "above_bound": _above(row["mean_s"], known["lower_bound_s"]),
                  "above_best": _above(row["mean_s"], known["best_known_s"])}


def _modelled(records: Iterable[Record]) -> Iterable[Record]:
    """The records with a simulated makespan."""
    return (record for record in records
            if record["status"] == "done" and record.get("best_makespan_s") is not None and not record.get("executed"))


def _mean(records: Sequence[Record], key: str) -> float | None:
    values = [record[key] for record in records if record.get(key) is not None]
    return mean(values) if values else None


def _above(value: float, base: float) -> float | None:
    return value / base - 1 if base else None


def _mean_and_range(row: Mapping[str, Any], unit) -> str:
    extremes = _range(row, unit)
    return unit.text(row["mean_s"]) if extremes == NOTHING else f"{unit.text(row['mean_s'])} ({extremes})"


def _range(row: Mapping[str, Any], unit) -> str:
    """Least and most; NOTHING if they print alike."""
    least, most = (unit.text(row[key]).removesuffix(unit.suffix) for key in ("least_s", "most_s"))
    return NOTHING if least == most else f"{least} to {most}"


def _paper(name: str | None, graph: str, reference: str | None) -> str:
    """The paper's figure and its ratio to the paper's reference; empty if the paper has none."""
    if name in RATIOS:
        ratio = RATIOS[name].get(graph)
        return "" if ratio is None else f"×{ratio:.3f}"
    figure = FIGURES_MS.get(name or "", {}).get(graph)
    base = FIGURES_MS.get(reference or "", {}).get(graph)
    return "" if figure is None else f"{figure:.1f} ms" + (f" ×{figure / base:.3f}" if base else "")


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f} s" if value < 1 else f"{value:,.1f} s"
