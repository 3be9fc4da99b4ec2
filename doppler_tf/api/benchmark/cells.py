"""The cells of a suite, each one method on one graph, topology and seed; which cells have complete records."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from data import build_workload
from doppler_tf.api.benchmark.suite import EXECUTES, PLACES, SAMPLES, TRAINS, GraphSpec, MethodSpec, Suite
from doppler_tf.api.benchmark.suite_file import train_config
from doppler_tf.errors import ConfigError, FormatError, field_error
from doppler_tf.formats.files import file_name, read_json
from doppler_tf.formats.graph_json import read_graph, write_graph
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import Topology

CELL_SCHEMA = "doppler-cell/1"
# Folders below the folder of a bench.
CELLS, GRAPHS, RUNS, ASSIGNMENTS = "cells", "graphs", "runs", "assignments"


@dataclass(frozen=True)
class Cell:
    """One method on one graph, topology and seed.

    Attributes:
      key: a readable name, also of its files.
      label, graph, topology, seed: its row and column in the tables. `+` joins several graphs.
      job: everything needed to run it, as JSON.
      made_for: the hashes and settings on which its outcome depends, as JSON. A record counts only if its `made_for` is equal.
      needs: keys of the cells that must be complete before, by their purpose.
    """

    key: str
    label: str
    graph: str
    topology: str
    seed: int
    job: Mapping[str, Any]
    made_for: Mapping[str, Any]
    needs: Mapping[str, str] = field(default_factory=dict)


def plan(suite: Suite, folder: Path) -> dict[str, Cell]:
    """All cells of a suite by key, each after the cells that it needs. Writes the graphs into `folder`.

    Raises:
      UserError: a graph, topology or setting that cannot be used.
    """
    cells: dict[str, Cell] = {}
    planner = _Planner(suite, folder, cells)
    for section in suite.sections:
        for topology in section.topologies:
            for graph in section.graphs:
                for label in section.methods:
                    for seed in range(section.seeds):
                        planner.add(label, graph, topology, seed)
    return cells


def cell_key(label: str, graph: str, topology: str, seed: int) -> str:
    """The name of a cell's files."""
    known = Path(topology).stem if topology.endswith(".json") else topology
    return "--".join(file_name(part) for part in (known, graph, label, f"seed{seed}"))


def read_cell(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The complete record of a cell, made for the same hashes and settings; None if the cell must run (again)."""
    try:
        record = read_json(folder / CELLS / f"{cell.key}.json")
    except FormatError:
        return None
    current = isinstance(record, dict) and record.get("schema") == CELL_SCHEMA and record.get("made_for") == cell.made_for
    return record if current and record.get("status") == "done" else None


def complete_cells(folder: Path, cells: Mapping[str, Cell]) -> dict[str, dict[str, Any]]:
    """Complete records by key. A cell runs again if another cell needs its files and they are gone."""
    records = {key: record for key, cell in cells.items() if (record := read_cell(folder, cell)) is not None}
    for key in reversed(cells):  # a cell comes after the cells that it needs
        if key in records:
            continue
        for role, other in cells[key].needs.items():
            file = {"init": folder / RUNS / other / "config.json", "of": folder / ASSIGNMENTS / f"{other}.json"}.get(role)
            if file is not None and not file.exists():
                records.pop(other, None)
    return records


def record_of(cell: Cell, figures: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a cell: its identity, `made_for` and figures."""
    return {"schema": CELL_SCHEMA, "key": cell.key, "method": cell.label, "graph": cell.graph, "topology": cell.topology, "seed": cell.seed,
            "status": "done", "does": cell.job["does"], "needs": dict(cell.needs), "made_for": cell.made_for,
            "files": {"graph": cell.job["graphs"][0]}, **figures}


class _Planner:
    """Makes cells. It reads every graph and topology once."""

    def __init__(self, suite: Suite, folder: Path, cells: dict[str, Cell]):
        self._suite, self._folder, self._cells = suite, folder, cells
        self._topologies: dict[str, Topology] = {}
        self._graphs: dict[tuple[str, str], tuple[str, str, int]] = {}

    def add(self, label: str, graph: str, topology: str, seed: int) -> str:
        """Adds a cell after the cells that it needs; returns its key."""
        key = cell_key(label, graph, topology, seed)
        if key in self._cells:
            other = self._cells[key]
            if (other.label, other.graph, other.topology) != (label, graph, topology):
                raise field_error(ConfigError, "bench", "", "methods, graphs, topologies", f"names that differ as file names, unlike "
                                  f"{other.label!r} on {other.graph}, {other.topology}", f"{label} on {graph}, {topology}", "rename one")
            return key
        method = self._suite.methods[label]
        needs = {}
        for role in ("init", "of", "simulations_of", "seconds_of"):
            other = getattr(method, role)
            if other and role == "init":
                needs[role] = self.add(other, method.init_graph or graph, method.init_topology or topology, seed)
            elif other:
                needs[role] = self.add(other, graph, topology, seed)
        files = [self._graph(name, topology) for name in graph.split("+")]  # path, hash and number of vertices
        if len(files) > 1 and method.does != TRAINS:
            raise field_error(ConfigError, "bench", label, "graph", "one graph for a method that does not train", graph)
        job = {"does": method.does, "topology": topology, "graphs": [path for path, *_ in files],
               "vertices": sum(count for *_, count in files), **self._settings(method, seed)}
        made_for = {"graphs": [graph_hash for _, graph_hash, _ in files], "topology": self._topology(topology).topology_hash, "seed": seed,
                    "job": {name: value for name, value in job.items() if name not in ("graphs", "topology", "vertices")},
                    "needs": {role: _digest(self._cells[other].made_for) for role, other in needs.items()}}
        if method.policy:
            made_for["policy"] = _policy_digest(Path(method.policy))
        self._cells[key] = Cell(key, label, graph, topology, seed, job, json.loads(json.dumps(made_for)), needs)
        return key

    def _settings(self, method: MethodSpec, seed: int) -> dict[str, Any]:
        dispatch = {"dispatch": method.dispatch or self._suite.dispatch}
        if method.does == TRAINS:
            return {"config": asdict(train_config(method, seed, "bench")) | dispatch, **dispatch,
                    "samples": method.samples or self._suite.samples,
                    "time_scale": "time_scale" in method.settings}
        if method.does == SAMPLES:
            return {"policy": method.policy, "samples": method.samples or self._suite.samples, **dispatch}
        if method.does == EXECUTES:
            return {name: getattr(method, name) for name in ("executor", "repeats", "kernel_ms")}
        assert method.does == PLACES
        return {name: getattr(method, name) for name in ("method", "samples", "simulations", "seconds")} | dispatch

    def _topology(self, spec: str) -> Topology:
        if spec not in self._topologies:
            self._topologies[spec] = read_topology(spec)
        return self._topologies[spec]

    def _graph(self, name: str, topology: str) -> tuple[str, str, int]:
        """A graph's file, hash and number of vertices; the file of a workload is written if it is missing."""
        if (name, topology) not in self._graphs:
            self._graphs[name, topology] = self._write(self._suite.graphs[name], topology)
        return self._graphs[name, topology]

    def _write(self, graph: GraphSpec, topology: str) -> tuple[str, str, int]:
        devices = graph.devices or self._topology(topology).num_devices
        if graph.file:
            path, made = Path(graph.file), read_graph(graph.file)
        else:
            made = build_workload(graph.workload, devices, graph.scale, graph.seed, graph.tiling, graph.pieces,
                                  graph.optimizer or None, **graph.options)
            path = self._folder / GRAPHS / file_name(f"{graph.name}-{made.graph_hash[:12]}.json")
            if not path.exists():
                write_graph(path, made)
        build_costs(made, self._topology(topology), graph.file or graph.name)
        return str(path), made.graph_hash, made.num_vertices


def _digest(made_for: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(made_for, sort_keys=True).encode()).hexdigest()


def _policy_digest(path: Path) -> str:
    """A hash of a trained policy's identity: settings and results of its run, and the checkpoint's name."""
    run = path if (path / "config.json").exists() else path.parent.parent
    files: Iterable[Path] = (run / "config.json", run / "result.json")
    content = b"".join(file.read_bytes() for file in files if file.exists())
    return hashlib.sha256(content + path.name.encode()).hexdigest()
