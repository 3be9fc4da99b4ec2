"""Check this machine and its libraries (versions, Keras, devices, threads, memory, disk), and name a remedy for every problem."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

EXAMPLE = "python -m doppler_tf doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command, which adds no options."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs all checks. A problem is a result, not an error."""
    from doppler_tf.api.checks import all_checks, summary
    from doppler_tf.notes import note

    note("importing all libraries; this may take a minute")
    return summary(all_checks())


def render(result: dict[str, Any]) -> list:
    """A table of checks and one of remedies; plain lines if rich is missing."""
    checks = result["checks"]
    remedies = {check["check"]: check["remedy"] for check in checks if check["remedy"]}
    try:
        from doppler_tf.report.tables import facts, grid
    except ImportError:
        return [*(f"{check['check']}: {check['state']}: {check['found']}" for check in checks),
                *(f"remedy for {name}: {remedy}" for name, remedy in remedies.items())]
    table = grid("", ("check", "state", "found"), [(check["check"], check["state"], check["found"]) for check in checks], words=True)
    return [table, *([facts("remedies", remedies)] if remedies else [])]


def exit_code(result: Mapping[str, Any]) -> int:
    """1 if there is a problem."""
    return 1 if result["problems"] else 0
