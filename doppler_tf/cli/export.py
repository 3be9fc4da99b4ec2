"""Export a trained policy as a SavedModel that places any graph, for TensorFlow Serving or TensorFlow alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

FUNCTION = "doppler_tf.api.exporting.export"
EXAMPLE = "python -m doppler_tf export runs/chainmm --out runs/chainmm/policies"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("run", type=Path, metavar="RUN|CHECKPOINT", help="trained policy")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of models; writes DIR/N with the next free number N")


def render(result: dict[str, Any]) -> list:
    """A table of facts."""
    from doppler_tf.report.tables import facts

    return [facts("", {"model": str(result["model"]), "signatures": ", ".join(result["signatures"]),
                       "trained on": f"{', '.join(result['graphs'])} on {result['topology']}", "updates": f"{result['step']:,}",
                       "look at it": f"saved_model_cli show --dir {result['model']} --all"})]
