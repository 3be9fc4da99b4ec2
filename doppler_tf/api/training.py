"""`train`: policies on one or more graphs: first imitation, then simulated REINFORCE, then real REINFORCE."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.api.executors import ByGraph, emulated_executor, has_kernels, kernel_executor, load_program, true_topology
from doppler_tf.api.inputs import ClusterLike, load_cluster, load_costs
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, FormatError, field_error
from doppler_tf.formats.assignment_json import read_assignment, write_assignment
from doppler_tf.formats.files import file_name, read_json
from doppler_tf.graph.costs import CostModel
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.heuristics.judging import judge
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.tied_graph import TiedGraph
from doppler_tf.heuristics.repeats.tied_graph import tie as tie_graph
from doppler_tf.notes import bars_wanted, note
from doppler_tf.offload.planning import fitted, without_shortage
from doppler_tf.schedule.assignment import AUTO
from doppler_tf.schedule.bounds import lower_bounds
from doppler_tf.tasks import OnRay, open_tasks

if TYPE_CHECKING:
    from agents.config import TrainConfig
    from agents.policies.agent import Gradients
    from agents.training.measuring import Executors
    from agents.training.shards import Sampled

Loaded = Sequence[tuple[DataflowGraph, CostModel]]
# Runs of each graph in the real stage if `real` is not given: with an executor or a time scale, and with `real_minutes`.
DEFAULT_REAL, MOST_REAL = 128, 1_000_000


def train(graphs: Sequence[GraphLike], topology: TopologyLike, run_dir: str | Path, *, costs: str = "given", method: str | None = None,
          imitation: int | None = None, simulated: int | None = None, real: int | None = None, real_minutes: float | None = None,
          executor: str | None = None, time_scale: float | None = None, timeout_s: float | None = None, emulate: str | None = None,
          init: str | Path | None = None, tie: bool = False, resume: bool = False, dispatch: str | None = None,
          config: str | Path | None = None, set: Iterable[tuple[str, str]] = (), jobs: int | None = None, ray: str | None = None,
          cluster: ClusterLike | None = None, seed: int | None = None) -> dict[str, Any]:
    """Trains policies; returns what the command prints with `--json`. `agents.train` is what it calls.

    Args:
      graphs, topology, costs, cluster: as of `run`; several graphs.
      run_dir: folder of checkpoints, summaries and the config.
      method: `doppler` (the default), or the name of another trained method.
      imitation, simulated: episodes.
      real: measured runs of each graph, with those of the final choice (default: 0, but 128 with `executor`, `time_scale` or `emulate`).
      real_minutes: ends the real stage.
      executor, time_scale, timeout_s, emulate: of the real stage, as of `run`; the executor is `emulated` with a time scale, else `tf`.
      init: a run or checkpoint with the policies to start from.
      tie: learns from two copies of what repeats in a graph.
      resume: continues from the last checkpoint.
      config: a name among `agents.CONFIGS`, or a JSON file; set: single settings, as JSON, by name; other arguments win over both.
      jobs, ray: worker processes for parts of each simulated batch.

    Raises:
      UserError: settings that do not go together.
    """
    if executor not in (None, "tf", "emulated"):
        raise field_error(ConfigError, "train", "", "--executor", "tf or emulated", executor)
    started = time.perf_counter()
    wholes = loaded = [load_costs(graph, topology, costs) for graph in graphs]
    _check_names(graphs, loaded)
    tied = _tied(graphs, loaded, tie, resume)
    if tied:
        loaded = [(each.graph, each.costs) for each in tied]
    import_quietly("agents.config")
    single = {"imitation": imitation, "simulated": simulated, "real": real, "method": method, "seed": seed, "dispatch": dispatch,
              "executor": executor or ("emulated" if time_scale or emulate else None), "time_scale": time_scale,
              "real_minutes": real_minutes, "emulate": emulate}
    given = {key: _value(text) for key, text in set} | {key: value for key, value in single.items() if value is not None}
    if resume:
        if given or config:
            note(f"--resume: the settings stored in {run_dir} hold; those given now are not used")
        settings = import_quietly("agents.config").stored_config(run_dir)
    else:
        settings = _settings(given, single, _base(config), loaded, tie)
    if settings.real and any(without_shortage(*each) is not each[1] for each in loaded):
        note("--real: what is run must fit in memory, so the host takes nothing; with --real 0 policies learn what it makes possible")
    # The executor comes first. Its devices must exist before TensorFlow starts, and importing TF-GNN starts it.
    with (_executor(settings, loaded, timeout_s, cluster) as engine,
          open_tasks(ray, jobs, settings.batch if settings.simulated else 1) as tasks):
        training = import_quietly("agents.training.run")
        workers = import_quietly("agents.training.shards").Workers(tasks, work) if isinstance(tasks, OnRay) else None
        if workers is not None:
            note(f"{workers.tasks.workers} workers start; their first update takes about a minute")
        trained = training.train([graph for graph, _ in loaded], loaded[0][1].topology, run_dir, settings, executor=engine, resume=resume,
                                 progress=bars_wanted(), init=init, workers=workers)
    repeated = [_repeat(Path(run_dir), *case, each, settings.dispatch) for case, each in zip(wholes, tied, strict=False)]
    return {"topology": loaded[0][1].topology.name, "run_dir": run_dir, "graphs": trained, "seconds": time.perf_counter() - started,
            **({"repeated": {row["graph"]: row for row in repeated}} if repeated else {})}


def work(request: bytes) -> Sampled | Gradients | None:
    """`agents.training.shards.work` in a worker process, which has one core. TensorFlow asks for threads when it starts."""
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    return import_quietly("agents.training.shards").work(request)


def _tied(graphs: Sequence[GraphLike], loaded: Loaded, wanted: bool, resume: bool) -> list[TiedGraph]:
    """If they are wanted the small graphs, else none. Raises ConfigError if nothing repeats in a graph."""
    found = []
    for given, (graph, costs) in zip(graphs, loaded, strict=True):
        tied, where = tie_graph(Problem(graph, costs)), _where(given, graph)
        if wanted and tied is None:
            raise ConfigError(f"{where}: --tie: expected a graph in which something repeats at least three times, such as layers, and some "
                              "of it can be left out, got none; leave out --tie")
        if wanted:
            found.append(tied)
        elif tied is not None and not resume:
            note(f"{where}: parts repeat; --tie learns {tied.graph.work_vertices.size:,} of {graph.work_vertices.size:,} vertices")
    return found


def _repeat(run_dir: Path, graph: DataflowGraph, costs: CostModel, tied: TiedGraph, dispatch: str) -> dict[str, Any]:
    """Writes the best assignment of a small graph for the whole graph; returns its figures. What does not fit in memory is not written."""
    small = run_dir / "assignments" / f"{file_name(tied.graph.name)}.json"
    best = tied.whole(read_assignment(small, tied.graph, tied.costs))
    makespan_s, best = judge(Problem(graph, without_shortage(graph, costs)), [best], dispatch)[0]
    makespan_s, best = fitted(Problem(graph, costs, best.dispatch), makespan_s, best)
    path = run_dir / "whole" / f"{file_name(graph.name)}.json" if math.isfinite(makespan_s) else None
    if path is not None:
        write_assignment(path, graph, costs, best, makespan_s)
    return {"graph": graph.name, "vertices": int(graph.work_vertices.size), "makespan_s": makespan_s,
            "lower_bound_s": lower_bounds(graph, costs).best_s, "assignment": path}


def _where(given: GraphLike, graph: DataflowGraph) -> str:
    """What messages call a graph: its file, or its name."""
    return str(given) if isinstance(given, str | os.PathLike) else graph.name


def _check_names(graphs: Sequence[GraphLike], loaded: Loaded) -> None:
    first: dict[str, str] = {}
    for given, (graph, _) in zip(graphs, loaded, strict=True):
        where = _where(given, graph)
        if graph.name in first:
            raise ConfigError(f"{where}: graph.name: expected a name of its own, got {graph.name!r}, which {first[graph.name]} has too; "
                              f"rename one")
        first[graph.name] = where


def _settings(given: dict[str, Any], single: Mapping[str, Any], base: TrainConfig, loaded: Loaded, tied: bool) -> TrainConfig:
    """The settings `base`, overridden by those given, of which `single` are those with an argument of their own."""
    if tied and base.dispatch == AUTO:  # the order of two copies says little about more, b-levels hold for any number
        given.setdefault("dispatch", "b_level")
    if "real" not in given and not base.real:
        if "real_minutes" in given:
            given["real"] = MOST_REAL
        elif single["executor"]:
            given["real"] = DEFAULT_REAL
    config = type(base).from_json(given, "train", base)
    if config.emulate and config.executor != "emulated":
        raise field_error(ConfigError, "train", "", "--emulate", "emulated devices (--executor emulated)", f"--executor {config.executor}")
    if config.real and single["time_scale"] is None and not config.emulate and not all(has_kernels(graph) for graph, _ in loaded):
        note("real stage: 0 episodes, because a graph has no kernels and no --time-scale is given")
        return type(base).from_json({"real": 0}, base=config)
    return config


def _base(name: str | Path | None) -> TrainConfig:
    """Settings by name or from a file."""
    from agents.config import CONFIGS, TrainConfig

    if name is None or name in CONFIGS:
        return CONFIGS[name or "default"]
    record = read_json(name)
    if not isinstance(record, Mapping):
        raise field_error(FormatError, str(name), "", "document", f"a JSON object, or one of {', '.join(CONFIGS)}", record)
    return TrainConfig.from_json(record, str(name))


@contextlib.contextmanager
def _executor(config: TrainConfig, loaded: Loaded, timeout_s: float | None,
              cluster: ClusterLike | None) -> Iterator[Executors | None]:
    """The real stage's executor, or None without real runs; of kernels two, the second one of large calls. Their threads are joined."""
    if cluster is not None and not (config.real and config.executor == "tf"):
        raise ConfigError("--cluster: expected real runs of kernels (--real N, --executor tf), got none; leave it out")
    with contextlib.ExitStack() as stack:
        if not config.real:
            yield None
        elif config.executor == "emulated":
            truth = true_topology(config.emulate, loaded)
            yield stack.enter_context(emulated_executor("emulated", config.time_scale, config.seed, timeout_s, truth))
        else:
            # Before training runs TensorFlow's first operation.
            cluster = load_cluster(cluster, loaded[0][1].topology)
            if cluster is None:
                import_quietly("runtime").prepare_devices(loaded[0][1].num_devices)
            programs = [(graph, load_program(graph)) for graph, _ in loaded]
            yield tuple(ByGraph([(graph, stack.enter_context(kernel_executor(
                "tf", program, timeout_s, cluster, keep_inputs=cluster is not None, merge=merge))) for graph, program in programs])
                for merge in (False, True))


def _value(text: str) -> Any:
    """A setting as JSON, else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
