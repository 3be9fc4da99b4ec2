"""Writes the results of a `bench`: results.json, results.csv, pictures and the page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import workload_cuts, workload_program
from doppler_tf.api.benchmark.cells import ASSIGNMENTS
from doppler_tf.api.benchmark.suite import Section, Suite
from doppler_tf.api.inputs import load_assignment, load_costs
from doppler_tf.formats.files import file_name, write_bytes, write_json
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.report.bench.bars import bars_png
from doppler_tf.report.bench.curves import curves_png
from doppler_tf.report.bench.paper import SOURCE
from doppler_tf.report.bench.results import best_known, csv_text, fastest, long_table, matrix_table, results_page, summarise
from doppler_tf.report.bench.tiling import tilings_png
from doppler_tf.report.gantt import write_gantt
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.schedule.simulator import Simulator

Record = Mapping[str, Any]


def write_results(out: Path, suite: Suite, records: Sequence[Record], page_path: Path,
                  made_by: str) -> tuple[list[dict[str, Any]], dict[str, Path]]:
    """Writes all files made from the records.

    Returns:
      The sections, each with `title`, `layout`, `reference`, `paper` and the `rows` of its table; and the files by name.
    """
    sections, shown = [], []
    pictures = page_path.parent / page_path.stem
    for i, section in enumerate(suite.sections):
        rows = summarise(records, section.methods, section.graphs, section.topologies, section.seeds)
        sections.append({"title": section.title, "layout": section.layout, "reference": section.reference, "paper": dict(section.paper),
                         "rows": rows})
        table = None if not rows else (matrix_table(rows, section.reference, section.paper) if section.layout == "matrix"
                                       else long_table(rows))
        made = _pictures(out, section, i, rows, records, pictures)
        shown.append({"title": section.title, "text": section.text, "table": table,
                      "pictures": {caption: f"{page_path.stem}/{name}" for caption, name in made.items()}})
    labels, graphs, topologies = (list(dict.fromkeys(record[key] for record in records)) for key in ("method", "graph", "topology"))
    rows = summarise(records, labels, [name for name in graphs if "+" not in name], topologies)  # `+` joins graphs of a training
    failures = {record["key"]: record["error"] for record in records if record["status"] != "done"}
    files = {"page": page_path, "rows": out / "results.csv", "figures": out / "results.json"}
    write_bytes(page_path, results_page(suite.title, suite.text, shown, failures, made_by).encode())
    write_bytes(files["rows"], csv_text(rows).encode())
    write_json(files["figures"], {"paper": SOURCE, "rows": rows, "sections": sections, "cells": list(records)}, indent=1)
    return sections, files


def _pictures(out: Path, section: Section, number: int, rows: Sequence[Mapping[str, Any]], records: Sequence[Record],
              folder: Path) -> dict[str, str]:
    """Draws a section's pictures; returns their file names by caption."""
    made = {}
    about = section.title or f"section {number + 1}"
    begin = re.sub(r"[^a-z0-9]+", "-", about.lower()).strip("-")
    if "bars" in section.pictures and any(row.get("best_known_s") for row in rows):
        made[f"{about}: makespans above the best known"] = f"{begin}.bars.png"
        write_bytes(folder / f"{begin}.bars.png", bars_png(about, rows))
    known = best_known(records)
    for topology in section.topologies:
        if "curves" in section.pictures:
            learned = [record for record in records if record["method"] in section.methods and record["graph"] in section.graphs
                       and record["topology"] == topology and record["seed"] < section.seeds and record.get("learned")
                       and record["does"] == "trains"]
            if learned:
                name = f"{begin}.{file_name(topology)}.curves.png"
                made[f"{about}: learning curves on {topology}, mean and range over seeds"] = name
                best_s = {graph: known[graph, topology]["best_known_s"] for graph in section.graphs if (graph, topology) in known}
                write_bytes(folder / name, curves_png(f"{about}, {topology}", learned, best_s))
        if "tilings" in section.pictures and (picture := _tilings(about, section, records, topology)) is not None:
            name = f"{begin}.{file_name(topology)}.tilings.png"
            made[f"{about}: into how many parts each expression cuts each label, {topology}"] = name
            write_bytes(folder / name, picture)
        if "gantt" in section.pictures:
            for graph in section.graphs:
                record = fastest(records, graph, topology)
                if record is not None and (out / ASSIGNMENTS / f"{record['key']}.json").exists():
                    name = f"{file_name(graph)}.{file_name(topology)}.gantt.png"
                    made[f"{graph} on {topology}: the best assignment, {record['method']}"] = name
                    _gantt(out, record, known[graph, topology]["lower_bound_s"], folder / name)
    return made


def _tilings(about: str, section: Section, records: Sequence[Record], topology: str) -> bytes | None:
    """How the workloads of a section are cut; None where they are not one program or no workloads."""
    files = {record["graph"]: record["files"]["graph"] for record in records
             if record["graph"] in section.graphs and record["topology"] == topology and record["status"] == "done"}
    read = {name: read_graph(Path(files[name])).attributes.get("workload") for name in section.graphs if name in files}
    if not read or None in read.values() or len({record["name"] for record in read.values()}) > 1:
        return None
    cuts = {name: workload_cuts(record) for name, record in read.items()}
    return tilings_png(f"{about}, {topology}", cuts, list(workload_program(next(iter(read.values()))).sizes))


def _gantt(out: Path, record: Record, bound_s: float, path: Path) -> None:
    graph, costs = load_costs(Path(record["files"]["graph"]), record["topology"])
    ran = offloaded(graph, costs, load_assignment(out / ASSIGNMENTS / f"{record['key']}.json", graph, costs, offload=True))
    write_gantt(path, *ran[:2], Simulator().execute(*ran), bound_s, record["method"])
