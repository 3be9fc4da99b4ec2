"""`bench`: methods on graphs, topologies and seeds under one simulator, as tables, pictures and a page; finished cells are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from doppler_tf.api.benchmark.cell_queue import run_cells
from doppler_tf.api.benchmark.cells import plan
from doppler_tf.api.benchmark.results_files import write_results
from doppler_tf.api.benchmark.suite import Override, Suite
from doppler_tf.api.benchmark.suite_file import read_suite, suite_from_record
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.formats.files import held
from doppler_tf.heuristics import SEARCHES


def bench(out: Path, suite: Path | None = None, workload: Sequence[str] = (), graph: Sequence[str] = (), topology: Sequence[str] = (),
          method: Sequence[str] = (), budget_s: float | None = None, dispatch: str | None = None, seeds: int | None = None,
          imitation: int | None = None, simulated: int | None = None, real: int | None = None, samples: int | None = None,
          page: Path | None = None, jobs: int | None = None, ray: str | None = None) -> dict[str, Any]:
    """Runs the cells that have no results yet, and writes tables, pictures and the page.

    Args: those of the command; suite: a file that says what is compared; None: every method on every workload and graph file, on every
      topology.
    """
    started = time.perf_counter()
    stages = {"imitation": imitation, "simulated": simulated, "real": real}
    override = Override(seeds, samples, {stage: count for stage, count in stages.items() if count is not None})
    direct = {"workload": workload, "graph": graph, "topology": topology, "method": method, "budget-s": budget_s, "dispatch": dispatch}
    given = next((name for name, value in direct.items() if value), None)
    if suite is None:
        planned = _direct_suite(workload, graph, topology, method, budget_s, dispatch or "auto", override)
    elif given is None:
        planned = read_suite(suite, override)
    else:
        raise ConfigError(f"bench: --{given}: expected no such option beside {suite}, got it; put it into the suite or leave the suite out")
    with held(out, "--out"):
        cells = plan(planned, out)
        records, ran = run_cells(out, cells, ray, jobs)
    made_by = f"python -m doppler_tf bench {suite}" if suite else "python -m doppler_tf bench"
    sections, files = write_results(out, planned, list(records.values()), page or out / "results.md", made_by)
    failed = {key: record["error"] for key, record in records.items() if record["status"] != "done"}
    return {"out": out, "cells": len(cells), "ran": len(ran), "kept": len(cells) - len(ran), "failed": failed, "sections": sections,
            "files": files, "seconds": time.perf_counter() - started}


def _direct_suite(workload: Sequence[str], graph: Sequence[str], topology: Sequence[str], method: Sequence[str], budget_s: float | None,
                  dispatch: str, override: Override) -> Suite:
    """A suite of one section."""
    for name, value in {"--workload or --graph": workload or graph, "--topology": topology, "--method": method}.items():
        if not value:
            raise field_error(ConfigError, "bench", "", name, "at least one without a suite", "none", "`bench --help` has an example")
    methods = {text: _method(text, budget_s) for text in method}
    graphs = {Path(file).stem.removesuffix(".graph"): {"file": file} for file in graph}
    names = [*workload, *graphs]
    duplicate = next((name for name in names if names.count(name) > 1 or len(graphs) < len(graph)), None)
    if duplicate is not None:
        raise field_error(ConfigError, "bench", "", "--workload, --graph", "different names", duplicate, "rename a file")
    for name in workload:
        graphs[name] = {"workload": name}
    section = {"methods": list(methods), "graphs": names, "topologies": topology, "layout": "long", "title": "All methods",
               "pictures": ["bars", "curves", "gantt"]}
    return suite_from_record({"title": "Methods compared", "dispatch": dispatch, "methods": methods, "graphs": graphs,
                              "sections": [section]}, "bench", override)


def _method(text: str, budget_s: float | None) -> dict[str, Any]:
    """The suite's record of a method written as NAME, NAME@N or NAME@Ss."""
    name, at, budget = text.partition("@")
    budgeted = name in SEARCHES or name == "auto"
    if not at:
        return {"method": name, **({"seconds": budget_s} if budgeted and budget_s else {})}
    if not budgeted:
        raise field_error(ConfigError, "bench", "", "--method", f"a budget only after {', '.join(SEARCHES)} or auto", text)
    kind, number = ("seconds", float) if budget.endswith("s") else ("simulations", int)
    try:
        found = number(budget.removesuffix("s"))
        if 0 < found < math.inf:
            return {"method": name, kind: found}
    except ValueError:
        pass
    raise field_error(ConfigError, "bench", "", "--method", "NAME@N (simulations) or NAME@Ss (seconds)", text)
