"""Train policies on one or more graphs: first imitation, then simulated REINFORCE, then real REINFORCE."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler_tf.cli.messages import bars_wanted, note
from doppler_tf.cli.options import ANY_DISPATCH, add_cluster, add_topology, add_workers, any_rule, key_value, natural, positive_real
from doppler_tf.errors import ConfigError, FormatError, field_error

if TYPE_CHECKING:
    from agents.agent import Gradients
    from agents.config import TrainConfig
    from agents.shards import Sampled
    from doppler_tf.costs import CostModel
    from doppler_tf.executor import Executor
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.heuristics.tied_graph import TiedGraph
    from doppler_tf.tasks import Here, OnRay

    Loaded = Sequence[tuple[DataflowGraph, CostModel]]

EXAMPLE = "python -m doppler_tf train chainmm.json --topology p100x4 --run-dir runs/chainmm --simulated 2000"
STAGES = ("imitation", "simulated", "real")
# Runs of each graph in the real stage if --real is not given: with an executor or a time scale, and with --real-minutes.
DEFAULT_REAL, MOST_REAL = 128, 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("graphs", type=Path, nargs="+", metavar="GRAPH", help="graph files (doppler-graph/1)")
    add_topology(parser)
    add_cluster(parser)
    parser.add_argument("--run-dir", type=Path, required=True, metavar="RUN", help="folder of checkpoints, summaries and the config")
    parser.add_argument("--method", metavar="NAME",
                        help="method to train: doppler (default), sel_only or plc_only (one of its two policies; the critical path does "
                             "the rest), joint, per_step (SEL and PLC with message passing in every step), placeto or gdp")
    parser.add_argument("--imitation", type=natural, metavar="N", help="teacher episodes")
    parser.add_argument("--simulated", type=natural, metavar="N", help="episodes with simulated rewards")
    parser.add_argument("--real", type=natural, metavar="N",
                        help="measured runs of each graph, including those of the final choice (default: 0, but "
                             f"{DEFAULT_REAL} with --executor, --time-scale or --emulate); 0 if a graph has no kernels and no time scale "
                             "is given")
    parser.add_argument("--real-minutes", type=positive_real, metavar="M",
                        help="end the real stage after M minutes, or after --real runs if they take less")
    parser.add_argument("--executor", metavar="tf|emulated", help="for the real stage (default: emulated with a time scale, else tf)")
    parser.add_argument("--time-scale", type=positive_real, metavar="X", help="emulated: a modelled second takes X seconds")
    parser.add_argument("--timeout-s", type=positive_real, metavar="S",
                        help="a real run fails if one vertex or transfer takes longer than S seconds (default: no limit)")
    parser.add_argument("--emulate", metavar="T",
                        help="emulated: the true topology of the devices, hidden from training (default: --topology)")
    parser.add_argument("--init", type=Path, metavar="RUN|CHECKPOINT",
                        help="start from another run's best policies instead of untrained ones; its graphs and devices may differ")
    parser.add_argument("--tie", action="store_true",
                        help="learn from two copies of what repeats in a graph, such as the layers of a model, which share devices; the "
                             "best assignment and `place --policy RUN` then place all copies alike (default rule: b_level)")
    parser.add_argument("--resume", action="store_true", help="continue from the run folder's last checkpoint")
    parser.add_argument("--dispatch", type=any_rule, metavar=ANY_DISPATCH,
                        help="rule that orders the queues; auto: by the order in which SEL chose, and at the end the fastest rule "
                             "(default: auto)")
    add_workers(parser, "parts of each simulated batch")
    parser.add_argument("--config", metavar="NAME|FILE", help="settings: default, annealed, reinforce, paper, or a file with a JSON object")
    parser.add_argument("--set", type=key_value, action="append", default=[], metavar="KEY=VALUE", help="one setting; repeatable")
    parser.set_defaults(seed=None)  # --seed, even 0, must win over --config and --set, so it must be known whether it was given


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Trains; returns the results by graph."""
    from doppler_tf.cli.inputs import load_costs
    from doppler_tf.cli.tensorflow import import_quietly
    from doppler_tf.tasks import OnRay

    if args.executor not in (None, "tf", "emulated"):
        raise field_error(ConfigError, "train", "", "--executor", "tf or emulated", args.executor)
    started = time.perf_counter()
    loaded = [load_costs(path, args.topology, args.costs) for path in args.graphs]
    _check_names(args.graphs, [graph for graph, _ in loaded])
    wholes, tied = loaded, _tied(args, loaded)
    if tied:
        loaded = [(each.graph, each.costs) for each in tied]
    import_quietly("agents.config")
    config = _config(args, loaded)
    # The executor comes first. Its devices must exist before TensorFlow starts, and importing TF-GNN starts it.
    with _executor(config, loaded, args.timeout_s, args.cluster) as executor, _tasks(args, config) as tasks:
        training = import_quietly("agents.training")
        graphs = [graph for graph, _ in loaded]
        workers = import_quietly("agents.shards").Workers(tasks, work) if isinstance(tasks, OnRay) else None
        if workers is not None:
            note(f"{workers.tasks.workers} workers start; their first update takes about a minute")
        trained = training.train(graphs, loaded[0][1].topology, args.run_dir, config, executor=executor, resume=args.resume,
                                 progress=bars_wanted(), init=args.init, workers=workers)
    repeated = [_repeat(args.run_dir, *case, each, config.dispatch) for case, each in zip(wholes, tied, strict=False)]
    return {"topology": loaded[0][1].topology.name, "run_dir": args.run_dir, "graphs": trained, "seconds": time.perf_counter() - started,
            **({"repeated": {row["graph"]: row for row in repeated}} if repeated else {})}


def _tied(args: argparse.Namespace, loaded: Loaded) -> list[TiedGraph]:
    """With --tie the small graphs, else none. Raises ConfigError if nothing repeats in a graph."""
    from doppler_tf.heuristics.tied_graph import tie

    found = []
    for path, (graph, costs) in zip(args.graphs, loaded, strict=True):
        tied = tie(graph, costs)
        if args.tie and tied is None:
            raise ConfigError(f"{path}: --tie: expected a graph in which something repeats at least three times, such as layers, and some "
                              "of it can be left out, got none; leave out --tie")
        if args.tie:
            found.append(tied)
        elif tied is not None and not args.resume:
            note(f"{path}: parts repeat; --tie learns {tied.graph.work_vertices.size:,} of {graph.work_vertices.size:,} vertices")
    return found


def _repeat(run_dir: Path, graph: DataflowGraph, costs: CostModel, tied: TiedGraph, dispatch: str) -> dict[str, Any]:
    """Writes the best assignment of a small graph for the whole graph; returns its figures. What does not fit in memory is not written."""
    from doppler_tf.bounds import lower_bounds
    from doppler_tf.formats.assignment_json import read_assignment, write_assignment
    from doppler_tf.formats.files import file_name
    from doppler_tf.heuristics.judging import judge

    small = run_dir / "assignments" / f"{file_name(tied.graph.name)}.json"
    best = tied.whole(read_assignment(small, tied.graph, tied.costs))
    makespan_s, best = judge(graph, costs, [best], dispatch)[0]
    path = run_dir / "whole" / f"{file_name(graph.name)}.json" if math.isfinite(makespan_s) else None
    if path is not None:
        write_assignment(path, graph, costs, best, makespan_s)
    return {"graph": graph.name, "vertices": int(graph.work_vertices.size), "makespan_s": makespan_s,
            "lower_bound_s": lower_bounds(graph, costs).best_s, "assignment": path}


def _tasks(args: argparse.Namespace, config: TrainConfig) -> contextlib.AbstractContextManager[Here | OnRay]:
    """Workers for the parts of simulated batches, if there are any."""
    from doppler_tf.tasks import open_tasks

    return open_tasks(args.ray, args.jobs, config.batch if config.simulated else 1)


def work(request: bytes) -> Sampled | Gradients | None:
    """`agents.shards.work` in a worker process, which has one core. TensorFlow asks for threads when it starts."""
    from doppler_tf.cli.tensorflow import import_quietly

    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    return import_quietly("agents.shards").work(request)


def render(result: dict[str, Any]) -> list:
    """A table of one row per graph, one of the real runs, and how to use the results."""
    from doppler_tf.report.tables import NOTHING, facts, grid, over, time_unit

    graphs = result["graphs"]
    rows, runs = [], []
    for name, row in graphs.items():
        greedy_s, best_s, bound_s = row["greedy_makespan_s"], row["best_makespan_s"], row["lower_bound_s"]
        unit = time_unit([greedy_s, best_s, bound_s])
        by = row["best_method"].removeprefix("policy").removeprefix(", ")  # "": a policy found it alone
        rows.append((name, unit.text(greedy_s), unit.text(best_s) + (f", {by}" if by else ""), unit.text(bound_s), over(best_s, bound_s),
                     f"{row['episodes']:,}"))
        if measured := row.get("measured"):
            medians = [(measured[f"{key}_s"], measured[f"{key}_runs"]) for key in ("before", "greedy", "best")]
            shown = [NOTHING if median_s is None else f"{unit.text(median_s)} ({count})" for median_s, count in medians]
            if (method := measured.get("method", "policy")) != "policy":
                shown[-1] += f", {method.removeprefix('policy, ')}"
            runs.append((name, *shown, f"{measured['runs']:,}", f"{measured['failed']:,}"))
    columns = ("graph", "greedy", "best", "lower bound", "best above it", "episodes")
    measured = ("graph", "greedy before", "greedy", "best", "runs", "failed")
    repeated = result.get("repeated", {}).values()
    unit = time_unit([row["makespan_s"] for row in repeated])
    wholes = [(row["graph"], f"{row['vertices']:,}", unit.text(row["makespan_s"]),
               over(row["makespan_s"], row["lower_bound_s"]), str(row["assignment"] or NOTHING)) for row in repeated]
    columns_of_wholes = ("graph", "vertices", "best", "above the lower bound", "written to")
    return [grid(f"trained on {result['topology']}, simulated", columns, rows),
            *([grid("all copies alike, simulated", columns_of_wholes, wholes)] if wholes else []),
            *([grid("real runs: medians (of how many)", measured, runs)] if runs else []),
            facts("", {"policy": f"place --policy {result['run_dir']}", "best assignments": f"{result['run_dir']}/assignments/",
                       "watch": f"tensorboard --logdir {result['run_dir']}",
                       "took": f"{result['seconds']:.1f} s; all updates of the run took {next(iter(graphs.values()))['seconds']:.1f} s"})]


def _check_names(paths: Sequence[Path], graphs: Sequence[DataflowGraph]) -> None:
    first: dict[str, Path] = {}
    for path, graph in zip(paths, graphs, strict=True):
        if graph.name in first:
            raise ConfigError(f"{path}: graph.name: expected a name of its own, got {graph.name!r}, which {first[graph.name]} has too; "
                              f"rename one")
        first[graph.name] = path


def _config(args: argparse.Namespace, loaded: Loaded) -> TrainConfig:
    """The settings: `--config`, overridden by `--set`, overridden by single options. A resumed run keeps its own settings."""
    from agents.config import TrainConfig
    from doppler_tf.assignment import AUTO
    from doppler_tf.cli.executors import has_kernels

    given = {key: _value(text) for key, text in args.set}
    for key in (*STAGES, "method", "seed", "dispatch", "executor", "time_scale", "real_minutes", "emulate"):
        if getattr(args, key) is not None:
            given[key] = getattr(args, key)
    if (args.time_scale or args.emulate) and not args.executor:
        given["executor"] = "emulated"
    if args.resume:
        from agents.config import stored_config

        if given or args.config:
            note(f"--resume: the settings stored in {args.run_dir} hold; those given now are not used")
        return stored_config(args.run_dir)
    base = _base(args.config)
    if args.tie and base.dispatch == AUTO:  # the order of two copies says little about more, b-levels hold for any number
        given.setdefault("dispatch", "b_level")
    if "real" not in given and not base.real:
        if "real_minutes" in given:
            given["real"] = MOST_REAL
        elif args.executor or args.time_scale or args.emulate:
            given["real"] = DEFAULT_REAL
    config = TrainConfig.from_json(given, "train", base)
    if config.emulate and config.executor != "emulated":
        raise field_error(ConfigError, "train", "", "--emulate", "emulated devices (--executor emulated)", f"--executor {config.executor}")
    if config.real and args.time_scale is None and not config.emulate and not all(has_kernels(graph) for graph, _ in loaded):
        note("real stage: 0 episodes, because a graph has no kernels and no --time-scale is given")
        return TrainConfig.from_json({"real": 0}, base=config)
    return config


def _base(name: str | None) -> TrainConfig:
    """Settings by name or from a file."""
    from agents.config import CONFIGS, TrainConfig
    from doppler_tf.formats.files import read_json

    if name is None or name in CONFIGS:
        return CONFIGS[name or "default"]
    record = read_json(name)
    if not isinstance(record, Mapping):
        raise field_error(FormatError, name, "", "document", f"a JSON object, or one of {', '.join(CONFIGS)}", record)
    return TrainConfig.from_json(record, name)


@contextlib.contextmanager
def _executor(config: TrainConfig, loaded: Loaded, timeout_s: float | None, cluster_file: Path | None) -> Iterator[Executor | None]:
    """The real stage's executor, or None without real runs. Its threads are joined at the end."""
    from doppler_tf.cli.executors import ByGraph, load_program, make_executor, true_topology
    from doppler_tf.cli.inputs import load_cluster
    from doppler_tf.cli.tensorflow import import_quietly

    if cluster_file is not None and not (config.real and config.executor == "tf"):
        raise ConfigError("--cluster: expected real runs of kernels (--real N, --executor tf), got none; leave it out")
    with contextlib.ExitStack() as stack:
        if not config.real:
            yield None
        elif config.executor == "emulated":
            truth = true_topology(config.emulate, loaded)
            yield stack.enter_context(make_executor("emulated", None, config.time_scale, config.seed, timeout_s, truth))
        else:
            # Before training runs TensorFlow's first operation.
            cluster = load_cluster(cluster_file, loaded[0][1].topology)
            if cluster is None:
                import_quietly("runtime").prepare_devices(loaded[0][1].num_devices)
            yield ByGraph([(graph, stack.enter_context(make_executor("tf", load_program(graph), 1.0, config.seed, timeout_s,
                                                                     keep_inputs=cluster is not None, cluster=cluster)))
                           for graph, _ in loaded])


def _value(text: str) -> Any:
    """A setting as JSON, else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
