"""docs/cli.md names every command and option, and its samples are what the commands print."""

from __future__ import annotations

import re

import pytest

from docs import samples
from doppler_tf.cli import completion
from doppler_tf.cli.app import COMMANDS, build_parser
from tests.cli.test_program import ROOT

PAGE = samples.PAGE.read_text(encoding="utf-8")
GENERAL, *SECTIONS = re.split("^## ", PAGE, flags=re.MULTILINE)
SECTION = {section.partition("\n")[0]: section for section in SECTIONS}
EXPECTED_MISTAKE = samples.EXIT
PAGES = (PAGE, *((ROOT / name).read_text(encoding="utf-8") for name in
                ("README.md", "docs/demo.md", "docs/tutorial.md", "docs/howto.md", "docs/sweeps.md", "docs/training_step.md")))
OURS = [sample for page in PAGES for sample in samples.samples(page) if sample.is_ours]

A_PAGE = """
Words.

    $ doppler-tf info g.json \\
        --topology ideal:2
    graph diamond
      vertices   3 and 1 inputs
      ...
      depth      7

      lower bound   4.0 s

    $ doppler-tf info absent.json; echo "exit $?"
    error: absent.json: ...; check the path
    exit 0

    $ ls
More words.
"""


def options() -> list[tuple[str, str]]:
    """Every option of every command."""
    commands = dict.fromkeys(command for command, _ in completion.actions(build_parser()))
    parsers = next(action for action in build_parser()._actions if action.choices).choices
    return [(command, option) for command in commands for option in parsers[command]._option_string_actions]


def test_every_command_has_a_section_and_a_sample():
    assert list(SECTION) == list(COMMANDS)
    assert {sample.argv[0] for sample in OURS} >= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_named(command):
    text = GENERAL + SECTION[command]
    absent = [option for name, option in options() if name == command and not re.search(rf"(?<![\w-]){option}(?![\w-])", text)]
    assert not absent, f"not in the section of {command}, nor before the first"


@pytest.mark.parametrize("sample", OURS, ids=lambda sample: f"{sample.line + 1}")
def test_every_sample_parses(sample):
    if EXPECTED_MISTAKE not in sample.command:
        build_parser().parse_args(sample.argv)


def test_quick_samples_print_what_the_page_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong, lines = [], PAGE.splitlines()
    for sample in samples.samples(PAGE):
        if sample.is_quick:
            wrong += [f"cli.md:{number + 1}: {lines[number].strip()!r}, printed: {printed!r}"
                      for number, printed in samples.stale(sample, samples.call(sample))]
    assert not wrong, "python -m docs.samples writes them anew"


def test_what_is_compared_and_written_anew(diamond, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    first, second, other = samples.samples(A_PAGE)
    assert (first.argv, first.is_quick, other.is_ours) == (["info", "g.json", "--topology", "ideal:2"], True, False)
    printed = ["graph diamond", "  vertices   3 and 1 inputs  ", "  edges   2", "  depth   2", "", "  lower bound  5.0 s "]
    assert samples.stale(first, printed) == [(8, "  depth   2")]
    assert samples.stale(first, printed[:3]) == [(8, None), (10, None)]
    assert samples.stale(second, samples.call(second)) == [(14, "exit 2")]
    page = A_PAGE.replace("info g.json", "doctor g.json")  # which is not quick
    assert samples.refresh(page) == (page.replace("exit 0", "exit 2"), [])
