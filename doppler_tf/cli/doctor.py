"""Check this machine and what is installed: versions, Keras, devices, threads, memory, disk; and say what to do about problems."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

EXAMPLE = "python -m doppler_tf doctor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command, which has no options of its own."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Checks everything; what a check finds wrong is its result, no error."""
    from doppler_tf.cli.checks import all_checks
    from doppler_tf.cli.loudness import note

    note("importing all libraries; this may take a minute")
    checks = [{"check": check.check, "state": check.state, "found": check.found, "remedy": check.remedy or None} for check in all_checks()]
    return {"problems": sum(check["state"] == "problem" for check in checks), "checks": checks}


def render(result: dict[str, Any]) -> list:
    """A table of checks and one of remedies; plain lines where rich itself is missing."""
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
    """1 where there is a problem."""
    return 1 if result["problems"] else 0
