"""`workload`: the graph of a named workload or of its training step, cut in a given way or in the one whose best placement ends first."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data import build_tilings, build_workload
from data.training import OPTIMIZERS
from data.workloads import NAMES as NAMES
from data.workloads import TILINGS as CUTS
from doppler_tf.alternatives import place_alternatives
from doppler_tf.api.inputs import load_topology
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.formats.graph_json import write_graph
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.notes import note
from doppler_tf.report.description import describe
from doppler_tf.report.progress import progress_bar

PUBLISHED, AUTO, NEVER = "published", "auto", "never"
TILINGS, RECOMPUTE = (*CUTS, AUTO), (NEVER, "always", AUTO)
# Seconds in which `auto` searches.
BUDGET_S = 10.0


def write_workload(name: str, devices: int, out: Path, scale: str = "paper", option: Sequence[tuple[str, str]] = (),
                   tiling: str = PUBLISHED, pieces: int | None = None, topology: str | None = None, budget_s: float | None = None,
                   training: bool = False, optimizer: str | None = None, recompute: str = NEVER, seed: int = 0) -> dict[str, Any]:
    """Writes the graph of `build_workload`. With tiling or recompute `auto` it is of several graphs the one whose best placement on
    `topology` ends first: those of `build_tilings`, or one with recomputation and one without, or both kinds of each tiling.

    Args: those of the command.
    """
    for given, value in (("--optimizer", optimizer), ("--recompute", None if recompute == NEVER else recompute)):
        if value is not None and not training:
            raise ConfigError(f"{given}: expected --training beside it, got {value} alone; add --training")
    if optimizer not in (None, *OPTIMIZERS):
        raise field_error(ConfigError, "", "", "--optimizer", f"one of {', '.join(OPTIMIZERS)}", optimizer)
    if training and optimizer is None:
        optimizer = "sgd"
    if tiling not in TILINGS:
        raise field_error(ConfigError, "", "", "--tiling", f"one of {', '.join(TILINGS)}", tiling)
    if recompute not in RECOMPUTE:
        raise field_error(ConfigError, "", "", "--recompute", f"one of {', '.join(RECOMPUTE)}", recompute)
    choosing = "--tiling auto" if tiling == AUTO else "--recompute auto" if recompute == AUTO else None
    if choosing and topology is None:
        raise ConfigError(f"{choosing}: --topology: expected a topology on which to place, got none; add --topology T")
    for given, value in (("--topology", topology), ("--budget-s", budget_s)):
        if value is not None and not choosing:
            raise ConfigError(f"{given}: expected --tiling auto beside it, got --tiling {tiling}; add it, or --recompute auto, or leave "
                              f"out {given}")
    if pieces is not None and tiling != "eindecomp":
        raise ConfigError(f"--pieces: expected --tiling eindecomp beside it, got --tiling {tiling}; add it, or leave out --pieces")
    options = {key: _size(name, key, value) for key, value in option}
    repeated = next((key for i, (key, _) in enumerate(option) if key in dict(option[:i])), None)
    if repeated is not None:
        values = ", ".join(value for key, value in option if key == repeated)
        raise field_error(ConfigError, "workload", name, repeated, "one value", values)
    graphs = {}
    for again in {NEVER: (False,), AUTO: (False, True), "always": (True,)}[recompute]:
        made = (build_tilings(name, devices, scale, seed, optimizer, again, **options) if tiling == AUTO else
                {tiling: build_workload(name, devices, scale, seed, tiling, pieces, optimizer, again, **options)})
        graphs |= {f"{cut}, recomputed" if again else cut: graph for cut, graph in made.items()}
    graph, tried = _fastest(graphs, topology, budget_s, seed) if choosing else (*graphs.values(), {})
    write_graph(out, graph)
    return {**describe(graph), **tried, "out": out}


def _fastest(graphs: Mapping[str, DataflowGraph], topology: str, budget_s: float | None,
             seed: int) -> tuple[DataflowGraph, dict[str, Any]]:
    """The graph whose best placement ends first, and what was tried."""
    target = load_topology(topology)
    with progress_bar("placing") as move:
        found = place_alternatives(graphs, target, BUDGET_S if budget_s is None else budget_s, seed, always=list(graphs)[:1], progress=move)
    chosen = next(iter(found))
    if not math.isfinite(found[chosen].makespan_s):
        note(f"nothing that was tried fits on {target.name}; {chosen} is written all the same: give it more memory, or a host")
    tried = {name: {"vertices": each.graph.num_vertices,
                    "constructed_s": None if each.constructed is None else each.constructed.makespan_s,
                    "searched_s": None if each.searched is None else each.searched.makespan_s,
                    "makespan_s": each.makespan_s if math.isfinite(each.makespan_s) else None} for name, each in found.items()}
    return found[chosen].graph, {"topology": target.name, "tiling": chosen, "tilings": tried}


def _size(name: str, key: str, value: str) -> int | float:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(value)
    raise field_error(ConfigError, "workload", name, key, "a number", value)
