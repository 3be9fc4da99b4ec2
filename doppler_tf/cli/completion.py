"""Print a script that lets bash, zsh or tcsh complete `doppler_tf`: commands, options, files, and names where there are some."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from doppler_tf.errors import ConfigError, field_error

EXAMPLE = "python -m doppler_tf completion tcsh"
FOR_NOW = 'eval "$(.venv/bin/python -m doppler_tf completion bash)"'
SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.epilog = "\n  ".join((parser.epilog or "", FOR_NOW))
    parser.add_argument("shell", metavar="|".join(SHELLS), help="the shell to write for; the script also defines the command `doppler_tf`, "
                                                                "which works in every folder")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The script, as shtab writes it for our parser."""
    if args.shell not in SHELLS:
        raise field_error(ConfigError, "completion", "", "shell", f"one of {', '.join(SHELLS)}", args.shell)
    from doppler_tf.cli.app import build_parser
    from doppler_tf.cli.candidates import script

    return {"shell": args.shell, "script": script(build_parser(), args.shell, Path(__file__).resolve().parents[2])}


def render(result: dict[str, Any]) -> list[str]:
    """The script as it is."""
    return [result["script"]]
