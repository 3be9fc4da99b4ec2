"""Trains the network that proposes moves to searches: `make pretrain` (half an hour on two cores; it goes on where it was interrupted).

Graphs are drawn by `data.generated`; those of seeds from HELD_OUT on are never trained on. Examples are kept in build/proposals.
"""

from __future__ import annotations

from doppler_tf.api.tensorflow import prepare_tensorflow

prepare_tensorflow()

# ruff: noqa: E402
# isort: split
import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

import doppler_tf.heuristics.search.proposals
from benchmarks.move_examples import HIDDEN, Examples, examples
from data.generated import FAMILIES, generated_problem
from data.generated import Problem as Generated
from doppler_tf.cli.options import add_workers
from doppler_tf.errors import UserError
from doppler_tf.formats.files import write_bytes, write_json
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.search.proposals import FEATURES, SCHEMA, Proposals
from doppler_tf.notes import set_verbosity
from doppler_tf.report.progress import progress_bar
from doppler_tf.tasks import each_done, open_tasks

GRAPHS, HELD_OUT = 400, 1_000_000
# Vertices and devices of the graphs.
VERTICES, DEVICES = (60, 5000), (2, 4, 4, 8, 8, 16, 32, 64)
EPOCHS, BATCH, RATE = 10, 1024, 4e-3
# Examples of a graph count as if this share of its moves shortened the run, but at most so many times.
_SHORTENING, _MOST_WEIGHT = 0.02, 3.0
SHIPPED = Path(doppler_tf.heuristics.search.proposals.__file__).with_name("proposals.json")


def main() -> None:
    """Collects examples of all graphs, trains, and writes the network into the package."""
    parser = argparse.ArgumentParser(prog="benchmarks.pretrain", description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=GRAPHS, help=f"number of generated graphs (default: {GRAPHS})")
    parser.add_argument("--folder", type=Path, default=Path("build/proposals"), help="where examples are kept (default: build/proposals)")
    parser.add_argument("--without", choices=FAMILIES, help="a family to leave out, to see what is learned of it from others")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="file to write (default: the one in the package)")
    add_workers(parser, "graphs")
    args = parser.parse_args()
    set_verbosity()
    args.folder.mkdir(parents=True, exist_ok=True)
    seeds = [seed for seed in range(args.graphs) if family_of(seed) != args.without]
    try:
        failed = collect(seeds, args.folder, args.ray, args.jobs)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command continues")
    if failed:
        sys.exit("\n".join(f"error: graph {seed}: {error}" for seed, error in failed.items()))
    found = [kept(seed, args.folder) for seed in seeds]
    write_proposals(fit(found), args.out, {"graphs": args.graphs, "without": args.without, "moves": sum(len(e.shortens) for e in found)})
    print(f"written to {args.out}")


def family_of(seed: int) -> str:
    """The family of the training graph of a seed."""
    return FAMILIES[seed % len(FAMILIES)]


def training_problem(seed: int) -> Generated:
    """The training graph of a seed, with its costs."""
    rng = np.random.default_rng([seed, 34])
    least = int(np.exp(rng.uniform(*np.log(VERTICES))))
    vertices = VERTICES if family_of(seed) == "program" else (least, int(1.2 * least) + 20)
    return generated_problem(seed, vertices, int(rng.choice(DEVICES)), family_of(seed))


def labelled(seed: int) -> Examples:
    """The examples of a seed."""
    graph, costs, _ = training_problem(seed)
    return examples(Problem(graph, costs, "order" if seed // len(FAMILIES) % 2 else "fifo"), seed)


def collect(seeds: Sequence[int], folder: Path, ray: str | None, jobs: int | None) -> dict[int, str]:
    """Writes the examples that are not in the folder. Args: ray, jobs: as in `open_tasks`. Returns the errors of seeds that failed."""
    missing = [seed for seed in seeds if not place_of(seed, folder).exists()]
    done, failed = len(seeds) - len(missing), {}
    with progress_bar("examples", done, len(seeds)) as move, open_tasks(ray, jobs, len(missing)) as tasks:
        for seed, found, error in each_done(tasks, labelled, {seed: (seed,) for seed in missing}):
            if error:
                failed[seed] = error
            else:
                keep(found, place_of(seed, folder))
            done += 1
            move(done)
    return failed


def place_of(seed: int, folder: Path) -> Path:
    """The file of a seed's examples."""
    return folder / f"{seed:05d}.npz"


def keep(found: Examples, path: Path) -> None:
    """Writes examples."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **found._asdict())
    write_bytes(path, buffer.getvalue())


def kept(seed: int, folder: Path) -> Examples:
    """The examples of a seed, from the folder if they are there."""
    path = place_of(seed, folder)
    if not path.exists():
        keep(labelled(seed), path)
    with np.load(path) as stored:
        return Examples(stored["features"], stored["shortens"])


def write_proposals(proposals: Proposals, path: Path, provenance: dict) -> None:
    """Writes `doppler-proposals/1`."""
    weights = {name: np.round(value, 6).tolist() for name, value in proposals._asdict().items() if name != "preference"}
    write_json(path, {"schema": SCHEMA, "provenance": provenance, "features": FEATURES, "weights": weights})


def fit(graphs: Sequence[Examples], seed: int = 0) -> Proposals:
    """Trains a network to tell the moves that shorten a run, each graph with about the same weight. (Logistic loss, Adam.)"""
    some = [each for each in graphs if each.shortens.any()]
    x = np.concatenate([each.features for each in some]).astype(np.float64)
    y = np.concatenate([each.shortens for each in some]).astype(np.float32)
    weight = np.concatenate([np.full(len(each.shortens), min(_MOST_WEIGHT, _SHORTENING / each.shortens.mean())) for each in some])
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6
    tf.keras.utils.set_random_seed(seed)
    network = tf.keras.Sequential([*(tf.keras.layers.Dense(HIDDEN, activation="relu") for _ in range(2)), tf.keras.layers.Dense(1)])
    rate = tf.keras.optimizers.schedules.CosineDecay(RATE, EPOCHS * -(-len(x) // BATCH))
    network.compile(tf.keras.optimizers.Adam(rate), tf.keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=True)
    network.fit((x - mean) / deviation, y, sample_weight=weight, epochs=EPOCHS, batch_size=BATCH, verbose=0)
    first, first_bias, second, second_bias, last, _ = [each.astype(np.float64) for each in network.get_weights()]
    first = first / deviation[:, None]  # so that the network takes features as they are
    return Proposals(first, first_bias - mean @ first, second, second_bias, last[:, 0])


if __name__ == "__main__":
    main()
