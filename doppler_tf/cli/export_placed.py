"""Export a captured model under an assignment as a SavedModel whose operations name their devices, for TensorFlow alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.cli.options import add_assignment, add_graph, add_topology

FUNCTION = "doppler_tf.api.exporting.export_placed"
EXAMPLE = "python -m doppler_tf export-placed my_model.json --assignment placed.json --out my_model.placed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    add_graph(parser)
    add_assignment(parser, dispatch=False)
    add_topology(parser, required=False)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR",
                        help="folder to write: a SavedModel, and in devices.json the device of each operation")


def render(result: dict[str, Any]) -> list:
    """A table of facts."""
    from doppler_tf.report.tables import facts

    return [facts("", {"model": str(result["model"]), "signature": result["signature"], "devices": str(result["devices_file"]),
                       **{device: f"{count:,} operations" for device, count in result["operations_by_device"].items()}})]
