"""Seconds of a whole process: `--help`, and `place` by heuristics and by a trained policy: `make bench NAME=coldstart`.

The first use compiles and fills the caches of Numba and XLA on disk. The second use shows what later users wait.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.tables import finish, show, timed

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Prints the table and the JSON line."""
    with tempfile.TemporaryDirectory() as folder:
        graph, run = Path(folder) / "llama_layer.json", Path(folder) / "run"
        settings = [x for pair in ("imitation=0", "simulated=64") for x in ("--set", pair)]
        seconds("workload", "llama_layer", "--devices", "4", "--out", str(graph))
        seconds("train", str(graph), "--topology", "p100x4", "--run-dir", str(run), *settings)
        place = ["place", str(graph), "--topology", "p100x4"]
        commands = {"--help": ["--help"], "place": place, "place --policy": [*place, "--policy", str(run)]}
        result = {name: {"first_s": seconds(*command), "second_s": seconds(*command)} for name, command in commands.items()}
    show("seconds of a whole process (213 vertices, 4 devices)", result)
    finish(result)


def seconds(*command: str) -> float:
    """Wall-clock seconds of one command in a separate process."""
    return timed(lambda: subprocess.run([sys.executable, "-m", "doppler_tf", *command], cwd=ROOT, check=True, capture_output=True))[0]


if __name__ == "__main__":
    main()
