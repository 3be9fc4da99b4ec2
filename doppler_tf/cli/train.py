"""Train policies on one or more graphs: first imitation, then simulated REINFORCE, then real REINFORCE."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import ANY_DISPATCH, add_cluster, add_topology, add_workers, any_rule, key_value, natural, positive_real

FUNCTION = "doppler_tf.api.training.train"
EXAMPLE = "python -m doppler_tf train chainmm.json --topology p100x4 --run-dir runs/chainmm --simulated 2000"


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
                             "128 with --executor, --time-scale or --emulate); 0 if a graph has no kernels and no time scale "
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
