"""Find assignments of graphs with one method or the portfolio, and choose the best by simulation or by measured runs."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from doppler_tf.cli import options

FUNCTION = "doppler_tf.api.placing.place_files"
EXAMPLE = "python -m doppler_tf place chainmm.json --topology p100x4 --out placed.json --gantt chainmm.png"
MORE_EXAMPLES = ("python -m doppler_tf place graphs/ --topology v100x8 --budget-s 60 --out placed/ --jobs 8",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("graphs", nargs="+", type=Path, metavar="GRAPH",
                        help="graph file (doppler-graph/1); or several, or a folder of them, each placed by itself")
    options.add_topology(parser)
    parser.add_argument("--method", default="auto", metavar="NAME",
                        help="a heuristic (critical_path, heft, cpop, peft, etf, fcp, min_min, enumerative, partition, round_robin, "
                             "one_device, random), a search (annealing, local_search, tied_search, random_search, cp_sat) or policy; "
                             "auto (the default) is the portfolio")
    parser.add_argument("--policy", type=Path, metavar="RUN|CHECKPOINT", help="trained policy, for the portfolio or --method policy")
    parser.add_argument("--samples", type=options.sample_count, metavar="K",
                        help="try at most K assignments with each randomised method (default: 50; for a policy 64; for a search 200,000 "
                             "or fewer)")
    parser.add_argument("--budget-s", type=options.positive_real, metavar="S",
                        help="take S seconds; the portfolio then also searches (annealing, local_search, cp_sat)")
    parser.add_argument("--dispatch", type=options.any_rule, default="auto", metavar=options.ANY_DISPATCH,
                        help="rule that orders the queues; auto: the fastest for each assignment; hill climbing then moves priorities, too "
                             "(default: auto)")
    options.add_batches(parser, repeat=False)
    parser.add_argument("--measure", type=options.positive, metavar="N",
                        help="choose by N runs in total of the assignments found and simple placements, on this machine (the graph needs "
                             "kernels) or, with --time-scale, on emulated devices")
    options.add_cluster(parser)
    parser.add_argument("--time-scale", type=options.positive_real, metavar="X",
                        help="with --measure: run on emulated devices, where a modelled second takes X seconds")
    parser.add_argument("--noise", type=options.share, metavar="S",
                        help="choose by the mean of 20 simulations in which every time varies by about this share, such as 0.05")
    parser.add_argument("--offload", type=options.one_of("auto", "never"), default="auto", metavar="auto|never",
                        help="auto: where the topology has a host and the graph does not fit in the devices' memory, tensors are kept "
                             "there for a while (default: auto)")
    parser.add_argument("--out", type=Path, metavar="A.json|DIR", help="assignment file to write; for several graphs a folder")
    options.add_pictures(parser, trace=False)
    options.add_workers(parser, "graphs")


def render(result: dict[str, Any]) -> list:
    """Tables of the portfolio's members, of the measured runs and of facts."""
    from doppler_tf.cli.output import batch_facts, offload_facts
    from doppler_tf.report.tables import facts, grid, over, time_unit

    if "graphs" in result:
        return _several_tables(result)
    bound_s, members = result["lower_bound_s"], result["members"]
    unit = time_unit([result["makespan_s"], *members.values()])
    noisy = result["noisy_means_s"]
    rows = [(name, result["rules"][name], unit.text(makespan_s), over(makespan_s, bound_s), *([unit.text(noisy[name])] if noisy else []))
            for name, makespan_s in members.items()]
    winner = list(members).index(result["method"]) if result["method"] in members else None
    columns = ("method", "dispatch", "makespan", "above the bound", *(["with noise"] if noisy else []))
    return [grid(f"{result['graph']} on {result['topology']}", columns, rows, winner),
            *([_measured_table(result)] if "measured" in result else []),
            *([result["reason"], ""] if result.get("reason") else []),
            facts("", {**_choice(result), **batch_facts(result), **offload_facts(result), "lower bound": unit.text(bound_s),
                       "placed in": f"{result['seconds']:.2f} s", "dispatch": result["dispatch"],
                       "written to": str(result["out"] or "nowhere; --out A.json writes it")})]


def exit_code(result: dict[str, Any]) -> int:
    """1 if one of several graphs could not be placed."""
    return 1 if result.get("failed") else 0


def _several_tables(result: dict[str, Any]) -> list:
    from doppler_tf.report.tables import facts, grid, over, time_unit

    unit = time_unit([row["makespan_s"] for row in result["graphs"].values()])
    rows = [(name, row["method"], row["dispatch"], unit.text(row["makespan_s"]), over(row["makespan_s"], row["lower_bound_s"]),
             f"{row['seconds']:.2f} s") for name, row in result["graphs"].items()]
    return [grid(f"on {result['topology']}", ("graph", "method", "dispatch", "makespan", "above the bound", "placed in"), rows),
            *([facts("failed", result["failed"])] if result["failed"] else []),
            facts("", {"took": f"{result['seconds']:.1f} s", "written to": str(result["out"] or "nowhere; --out DIR writes them")})]


def _choice(result: dict[str, Any]) -> dict[str, str]:
    """What runs have chosen, and why that is not the one with the lowest median, if it is not."""
    if "measured" not in result:
        return {}
    ran = {name: row["median_s"] for name, row in result["measured"].items() if row["median_s"] is not None}
    fastest = min(ran, key=ran.__getitem__, default=result["chosen"])
    return {"chosen": result["chosen"] + ("" if fastest == result["chosen"] else f", as {fastest} is not clearly faster")}


def _measured_table(result: dict[str, Any]):
    from doppler_tf.report.tables import NOTHING, grid, time_unit

    rows = sorted(result["measured"].items(), key=lambda item: math.inf if item[1]["median_s"] is None else item[1]["median_s"])
    unit = time_unit([row[key] for _, row in rows for key in ("simulated_s", "high_s")])
    shown = [(name, unit.text(row["simulated_s"]), unit.text(row["median_s"]),
              f"{unit.text(row['low_s'])} to {unit.text(row['high_s'])}" if row["runs"] else NOTHING, f"{row['runs']:,}")
             for name, row in rows]
    winner = [name for name, _ in rows].index(result["chosen"])
    return grid("measured: medians", ("finalist", "simulated", "measured", "half of all", "runs"), shown, winner)
