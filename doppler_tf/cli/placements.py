"""Places a graph as the options of `place` say, and several graphs as tasks."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from doppler_tf import placement
from doppler_tf.assignment import Assignment
from doppler_tf.batches import Batches, repeat_graph
from doppler_tf.cli.inputs import load_costs, load_policy
from doppler_tf.cli.messages import bars_wanted
from doppler_tf.cli.output import batch_figures
from doppler_tf.costs import CostModel
from doppler_tf.errors import ConfigError
from doppler_tf.formats.assignment_json import write_assignment
from doppler_tf.formats.files import held
from doppler_tf.graph import DataflowGraph
from doppler_tf.placement import check_method
from doppler_tf.report.progress import progress_bar
from doppler_tf.simulator import Simulator
from doppler_tf.tasks import each_done, open_tasks

if TYPE_CHECKING:
    from doppler_tf.cli.inputs import Policy


class How(NamedTuple):
    """Options of `place`."""

    method: str
    samples: int | None
    seed: int
    dispatch: str
    budget_s: float | None
    noise: float | None
    in_flight: int | None
    policy: Path | None


def place_as(how: How, graph: DataflowGraph, costs: CostModel) -> tuple[placement.Placement, Batches | None]:
    """A placement of the graph, or of the batches in flight that it also returns."""
    learned = {} if how.policy is None else {"policy": _policy(how.policy)}
    options = how.method, how.samples, how.seed, how.dispatch, how.budget_s, learned
    if how.in_flight is None:
        return placement.place(graph, costs, *options, how.noise), None
    batches = repeat_graph(graph, costs.topology, how.in_flight, how.in_flight)
    return placement.place_batches(batches, *options), batches


def figures(placed: placement.Placement, batches: Batches | None, assignment: Assignment) -> dict[str, Any]:
    """What `place` tells of an assignment that it has found."""
    throughput = {} if batches is None else batch_figures(batches, Simulator().execute(batches.graph, batches.costs, assignment))
    return {"method": assignment.method, "dispatch": assignment.dispatch, "makespan_s": placed.makespan_s, **throughput,
            "lower_bound_s": placed.lower_bound_s, "seconds": placed.seconds, "members": dict(placed.makespans_s),
            "rules": {name: each.dispatch for name, each in placed.assignments.items()}, "noisy_means_s": dict(placed.noisy_means_s)}


def place_several(how: How, files: Mapping[str, Path], topology: str, costs: str, out: Path | None, ray: str | None,
                  jobs: int | None) -> dict[str, Any]:
    """Places each graph and writes its assignment as soon as it is found.

    Args:
      files: by graph; the names are also those of the assignment files.
      topology, costs: as `load_costs` takes them.
      out: the folder of assignment files.
      ray, jobs: as in `open_tasks`.

    Returns:
      `graphs` with the figures of each, and `failed` with the errors of others.

    Raises:
      UserError: a file that is no graph, or has no costs on the topology; no such method; `out` cannot be written, or another command
        writes there. Nothing has been placed then.
      KeyboardInterrupt: with the number of graphs placed.
    """
    started, found, failed = time.perf_counter(), {}, {}
    cases = {name: load_costs(path, topology, costs) for name, path in files.items()}
    # What would fail for each graph is refused at once.
    check_method(how.method, () if how.policy is None else ("policy",))
    if how.policy is not None:
        _policy(how.policy)
    try:
        with (contextlib.nullcontext() if out is None else held(out, "--out"), progress_bar("graphs", 0, len(cases), bars_wanted()) as move,
              open_tasks(ray, jobs, len(cases)) as tasks):
            for name, made, error in each_done(tasks, _place, {name: (how, *case) for name, case in cases.items()}):
                if error:
                    failed[name] = error
                else:
                    found[name], assignment = made
                    if out is not None:
                        found[name]["out"] = out / f"{name}.json"
                        _write(found[name]["out"], how, cases[name], assignment, found[name]["makespan_s"])
                move(len(found) + len(failed))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{len(found)} of {len(cases)} graphs are placed") from None
    return {"topology": next(iter(cases.values()))[1].topology.name, "graphs": {name: found[name] for name in cases if name in found},
            "failed": failed, "seconds": time.perf_counter() - started, "out": out}


def graph_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Graph files by name: those given, and every .json file of folders given.

    Raises:
      ConfigError: a folder without such files, or two files of one name.
    """
    files: dict[str, Path] = {}
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ConfigError(f"{path}: expected a folder of graph files (.json), got one without; make graphs with `workload`")
        for file in inside:
            name = file.stem.removesuffix(".graph")
            if name in files:
                raise ConfigError(f"{file}: expected graph files of different names, got {files[name]}, too; rename one")
            files[name] = file
    return files


def _place(how: How, graph: DataflowGraph, costs: CostModel) -> tuple[dict[str, Any], Assignment]:
    placed, batches = place_as(how, graph, costs)
    return figures(placed, batches, placed.assignment), placed.assignment


def _write(path: Path, how: How, case: tuple[DataflowGraph, CostModel], assignment: Assignment, makespan_s: float) -> None:
    graph, costs = case
    if how.in_flight is not None:
        batches = repeat_graph(graph, costs.topology, how.in_flight, how.in_flight)
        graph, costs = batches.graph, batches.costs
    write_assignment(path, graph, costs, assignment, makespan_s, how.in_flight)


@functools.cache  # a process places several graphs with it
def _policy(path: Path) -> Policy:
    return load_policy(path)
