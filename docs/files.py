"""docs/files.md, every file with its first line: `python -m docs.files` writes the page anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from doppler_tf.report.tables import markdown_table

PAGE = Path(__file__).with_name("files.md")
ROOT = PAGE.parents[1]
ROOMS = ("doppler_tf", "data", "runtime", "agents", "benchmarks", "examples", "docs")
HEAD = """# Files

Every file by folder, with its first line. `.venv/bin/python -m docs.files` writes this page; change the first lines instead.
[architecture.md](architecture.md) says how the folders work together. `tests/` mirrors them.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_chapter(folder) for folder in folders())


def folders() -> Iterator[Path]:
    """The folders that hold Python files, each before the folders in it."""
    for room in ROOMS:
        inside = sorted(path.parent for path in (ROOT / room).rglob("*.py"))
        yield from dict.fromkeys(folder for folder in inside if "__pycache__" not in folder.parts)


def first_line(path: Path) -> str:
    """What the docstring of a file begins with."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def _chapter(folder: Path) -> str:
    about = first_line(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
    rows = [(f"`{path.name}`", first_line(path)) for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
    table = markdown_table(("file", "what it does"), rows, words=True) + "\n" if rows else ""
    return f"\n## {folder.relative_to(ROOT)}/\n\n{about}\n\n{table}".replace("\n\n\n", "\n\n")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {sum(1 for _ in folders())} folders")
