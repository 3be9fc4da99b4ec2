"""Print a script that lets bash, zsh or tcsh complete `doppler_tf`: commands, options, files, and names where there are some.

shtab makes the scripts. What it does not do is added here: a command that works in every folder, words with `:`, `@` or `=` in bash, names
beside files, and names in a list.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from doppler_tf.errors import ConfigError, field_error

EXAMPLE = "python -m doppler_tf completion tcsh"
FOR_NOW = 'eval "$(.venv/bin/python -m doppler_tf completion bash)"'
SHELLS, NAME = ("bash", "zsh", "tcsh"), "doppler_tf"
_FOLDERS = ("RUN", "DIR", "RUN|CHECKPOINT")
_FILES = ("GRAPH", "FILE", "G.json", "A.json", "OUT.json", "OUT.png", "SUITE.toml", "FILE.md", "PAGE.html")
FREE = ("N", "S", "X", "K", "M", "J", "KEY=VALUE")  # numbers and settings: nothing is offered
# The command is `python -m doppler_tf` in the root of the repository; a shell completes by the first word of a line alone.
_COMMAND = f"""
{NAME}() {{
  PYTHONSAFEPATH=1 PYTHONPATH=%s${{PYTHONPATH:+:$PYTHONPATH}} %s -m {NAME} "$@"
}}
"""
_TCSH_COMMAND = f"""
alias {NAME} "env PYTHONSAFEPATH=1 PYTHONPATH=%s %s -m {NAME}"
"""
# bash parts words at `:`, `@` and `=` (cpu:4, annealing@5s), the command does not: the words are put together again, and what stands before
# the last of these characters is taken off the candidates, as it stays on the line.
_BASH_WORDS = f"""
_{NAME}() {{
  local line="${{COMP_LINE:0:COMP_POINT}}" parting="${{COMP_WORDBREAKS//[^:@=]/}}" word stays=""
  local -a COMP_WORDS
  read -ra COMP_WORDS <<< "$line"
  [[ $line == *[[:space:]] ]] && COMP_WORDS+=("")
  local COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
  word="${{COMP_WORDS[COMP_CWORD]}}"
  _shtab_{NAME}
  [[ -n $parting ]] && stays="${{word%"${{word##*[$parting]}}"}}"
  [[ -e ${{COMPREPLY[0]-}} ]] && compopt -o filenames 2>/dev/null
  COMPREPLY=("${{COMPREPLY[@]#"$stays"}}")
}}

complete -o bashdefault -F _{NAME} {NAME}
"""


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

    return {"shell": args.shell, "script": script(build_parser(), args.shell, Path(__file__).resolve().parents[2])}


def render(result: dict[str, Any]) -> list[str]:
    """The script as it is."""
    return [result["script"]]


def script(parser: argparse.ArgumentParser, shell: str, root: Path) -> str:
    """The script; afterwards the parser is of no use for parsing. Args: root: the folder of the repository."""
    import shtab

    parser.prog = NAME
    for command, action in actions(parser):
        found = candidates(command, action)
        if isinstance(found, tuple):
            action.choices = found
        elif found is not None:
            action.complete = found
    made = shtab.complete(parser, shell, NAME)
    command = _TCSH_COMMAND if shell == "tcsh" else _COMMAND
    paths = tuple(shlex.quote(str(path)) for path in (root, Path(sys.executable).absolute()))
    return "\n".join([made, *([_BASH_WORDS] if shell == "bash" else []), command % paths])


def actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Every argument that takes a value, with its command."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        for action in command._actions:
            if action.nargs != 0:
                yield name, action


def candidates(command: str, action: argparse.Action) -> tuple[str, ...] | str | dict | None:
    """What is offered for an argument: a tuple of names, or what shtab calls files, folders and our functions; None for what is FREE."""
    metavar = str(action.metavar)
    if metavar in _FOLDERS:
        return "directory"
    if metavar in _FILES:
        return "file"
    if metavar == "T":
        return _or_file("topology", topologies())
    if metavar == "NAME|FILE":
        return _or_file("config", configs())
    if metavar.startswith(("NAME", "A,B")):
        names = _names(command, action.dest)
        return _list("methods", names) if metavar.startswith("A,B") else names
    return tuple(metavar.split("|")) if "|" in metavar else None


def topologies() -> tuple[str, ...]:
    """Presets; of those with a number, a few."""
    from doppler_tf.topology import PRESETS

    return (*PRESETS, *(f"{kind}:{number}" for kind in ("cpu", "ideal") for number in (2, 4, 8)))


def configs() -> tuple[str, ...]:
    """Named settings of training; they stand in `agents`, which brings TensorFlow, and a test holds the two equal."""
    return ("default", "annealed", "paper")


def _names(command: str, argument: str) -> tuple[str, ...]:
    """What may be named there."""
    from data.workloads import NAMES
    from doppler_tf.cli.benchmark.suite import LEARNED_METHODS
    from doppler_tf.heuristics import HEURISTICS

    return {("workload", "name"): NAMES, ("bench", "workload"): NAMES, ("train", "method"): LEARNED_METHODS,
            ("place", "method"): ("auto", *HEURISTICS, "policy"), ("compare", "methods"): (*HEURISTICS, "policy"),
            ("bench", "method"): ("auto", *HEURISTICS, *LEARNED_METHODS)}[command, argument]


def _or_file(name: str, words: Sequence[str]) -> dict:
    """One of these words, or a file."""
    function, joined = f"_{NAME}_{name}", " ".join(words)
    return {"bash": function, "zsh": function, "tcsh": f"({joined})",
            "preamble": {"bash": f'{function}() {{\n  compgen -W "{joined}" -- "$1"\n  compgen -f -- "$1"\n}}',
                         "zsh": f"{function}() {{\n  compadd -- {joined}\n  _files\n}}"}}


def _list(name: str, words: Sequence[str]) -> dict:
    """Some of these words, parted by commas."""
    function, joined = f"_{NAME}_{name}", " ".join(words)
    return {"bash": function, "zsh": function, "tcsh": f"({joined})",
            "preamble": {"bash": f'{function}() {{\n  compgen -P "${{1%"${{1##*,}}"}}" -W "{joined}" -- "${{1##*,}}"\n}}',
                         "zsh": f"{function}() {{\n  _values -s , {name} {joined}\n}}"}}
