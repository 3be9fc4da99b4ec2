"""The samples of docs/cli.md: `python -m docs.samples` calls the quick ones again and writes what they print where the page says otherwise.

A sample is an indented `$ doppler-tf …` and the lines below it. The page may leave lines out (`...` or nothing) and
parts of a line (`...`); what it has is compared in order, without regard to spaces and to seconds of wall clock. Samples share a folder.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from doppler_tf.cli import main

PAGE = Path(__file__).with_name("cli.md")
PROMPT, CALL, EXIT = "    $ ", "doppler-tf ", '; echo "exit $?"'
_QUICK = ("workload", "info", "place", "simulate", "compare", "trace")
# Of these commands, what takes long or reads what a slow one wrote.
_SLOW = ("--policy", "--budget-s", "--measure", "--tiling auto", "--layers 500", "--vertices 100000", "run.trace.json", "runs/calibrated")
_SECONDS = re.compile(r"\b[0-9][0-9.,]* s\b")


@dataclass(frozen=True)
class Sample:
    """A command of the page.

    Attributes:
      line: the number of its first line, from 0.
      command: as it is typed, in one line.
      first: the number of the first line that it printed.
      shown: the lines that it printed, without the indent.
    """

    line: int
    command: str
    first: int
    shown: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        """Whether it calls doppler_tf."""
        return self.command.startswith(CALL)

    @property
    def argv(self) -> list[str]:
        """What follows the program's name."""
        return shlex.split(self.command.removesuffix(EXIT).removeprefix(CALL).partition(" > ")[0])

    @property
    def is_quick(self) -> bool:
        """Whether it can be called again in a second or two, without TensorFlow."""
        return self.is_ours and self.argv[0] in _QUICK and not any(words in self.command for words in _SLOW)


def samples(text: str) -> Iterator[Sample]:
    """The samples of a page, in order."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith(PROMPT)]
    for start in starts:
        first = start + 1
        while lines[first - 1].endswith("\\"):
            first += 1
        end = first
        while end < len(lines) and end not in starts and (not lines[end] or lines[end].startswith("    ")):
            end += 1
        command = " ".join(line.strip().removeprefix("$ ").removesuffix("\\").strip() for line in lines[start:first])
        yield Sample(start, command, first, tuple(line.removeprefix("    ") for line in lines[first:end]))


def call(sample: Sample) -> list[str]:
    """What the command prints in the present folder, both streams and the exit code where the sample shows it."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(sample.argv)
    return [*said.getvalue().splitlines(), *([f"exit {code}"] if sample.command.endswith(EXIT) else [])]


def stale(sample: Sample, printed: Sequence[str]) -> list[tuple[int, str | None]]:
    """Lines of the page that were not printed, by number, and what was printed instead: the next line that begins with the same words; None
    where none does."""
    found, at = [], 0
    for i, line in enumerate(sample.shown, start=sample.first):
        if line.strip() in ("", "..."):
            continue
        same = next((j for j in range(at, len(printed)) if _alike(line, printed[j])), None)
        if same is None:
            same = next((j for j in range(at, len(printed)) if _name(printed[j]) == _name(line)), None)
            found.append((i, None if same is None else printed[same].rstrip()))
        at = at if same is None else same + 1
    return found


def _alike(line: str, printed: str) -> bool:
    """Whether a line of the page is what was printed."""
    parts = [re.escape(part) for part in _plain(line).split("...")]
    return re.fullmatch(".*".join(parts), _plain(printed)) is not None


def _plain(line: str) -> str:
    return " ".join(_SECONDS.sub("# s", line).split())


def _name(line: str) -> str:
    """The first cell of a row, the first word of a sentence."""
    cells = re.split(r"\s{2,}", line.strip())
    return cells[0] if len(cells) > 1 else line.split(maxsplit=1)[0] if cells[0] else ""


def refresh(text: str) -> tuple[str, list[str]]:
    """The page with what quick samples print now, and what a person has to mend: lines that nothing takes the place of."""
    lines, left = text.splitlines(), []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for sample in samples(text):
            if sample.is_quick:
                for number, printed in stale(sample, call(sample)):
                    if printed is None:
                        left.append(f"{PAGE.name}:{number + 1}: not printed any more: {lines[number].strip()}")
                    else:
                        lines[number] = f"    {printed}"
    return "\n".join(lines) + "\n", left


if __name__ == "__main__":
    written = PAGE.read_text(encoding="utf-8")
    fresh, problems = refresh(written)
    PAGE.write_text(fresh, encoding="utf-8")
    changed = sum(a != b for a, b in zip(written.splitlines(), fresh.splitlines(), strict=True))
    print("\n".join([f"{PAGE}: {changed} lines are new", *problems]))
    sys.exit(1 if problems else 0)
