"""What a command returns: tables for persons, one JSON object for scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 120


def print_json(result: Mapping[str, Any]) -> None:
    """One line on stdout; numbers that JSON does not have become null."""
    print(json.dumps(plain(result), allow_nan=False))


def print_tables(renderables: Iterable, file: IO[str]) -> None:
    """rich renderables, as wide as the terminal; piped, wide enough for any table of ours. Strings as they are, without rich."""
    for renderable in renderables:
        if isinstance(renderable, str):
            print(renderable, file=file)
        else:
            _console(file).print(renderable)


def _console(file: IO[str]) -> Console:
    from rich.console import Console

    console = Console(file=file, highlight=False, markup=False, emoji=False)  # names of vertices may hold brackets and colons
    if not console.is_terminal:
        console.width = WIDTH
    return console


def plain(value: Any) -> Any:
    """The value in JSON's own types."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, without importing NumPy for --help's sake
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
