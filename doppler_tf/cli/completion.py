"""Print a script that lets bash, zsh or tcsh complete `doppler-tf`: commands, options, files, and names where there are some.

shtab writes the script from the parser. This file tells it what each argument takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from doppler_tf.errors import ConfigError, field_error

EXAMPLE = "python -m doppler_tf completion bash"
SHELLS, PROGRAM = ("bash", "zsh", "tcsh"), "doppler-tf"
# `agents` has them, too, but importing it brings TensorFlow; a test compares the two.
CONFIGS = ("default", "annealed", "reinforce", "paper")
COUNTED = tuple(f"{kind}:{number}" for kind in ("cpu", "ideal") for number in (2, 4, 8))  # a few presets that take a number
_KINDS = dict.fromkeys(("RUN", "DIR", "RUN|CHECKPOINT"), "directory") | dict.fromkeys(
    ("GRAPH", "FILE", "G.json", "A.json", "OUT.json", "OUT.png", "SUITE.toml", "FILE.md", "PAGE.html", "FILE.npz"), "file")
# What follows goes into shell functions, for bash and zsh: one of the words or a file; some of the words with commas between them.
_OR_FILE = 'compgen -W "$words" -f -- "$1"', "compadd -- ${=words}; _files"
_IN_LIST = 'compgen -P "${1%"${1##*,}"}" -W "$words" -- "${1##*,}"', "_values -s , methods ${=words}"
FREE = ("N", "S", "X", "K", "M", "J", "P", "SIZE[,SIZE...]", "KEY=VALUE", "HOST:PORT")  # numbers, settings, addresses: nothing is offered
# bash splits words at `:`, `@` and `=` (cpu:4, annealing@5s); the command does not. shtab therefore gets the words of the whole line. bash
# replaces only the piece in $2, so the part of the word before it is cut from every candidate.
_BASH_WORDS = """

_doppler_tf() {
  local -a COMP_WORDS
  read -ra COMP_WORDS <<< "${COMP_LINE:0:COMP_POINT}|"
  local COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
  local word="${COMP_WORDS[COMP_CWORD]%|}"
  COMP_WORDS[COMP_CWORD]="$word"
  _shtab_doppler_tf
  [[ -e ${COMPREPLY[0]-} ]] && compopt -o filenames 2>/dev/null
  COMPREPLY=("${COMPREPLY[@]#"${word%"$2"}"}")
}
complete -o bashdefault -F _doppler_tf doppler-tf"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("shell", metavar="|".join(SHELLS), help='the shell to write for; in bash and zsh, eval "$(...)" switches it on')


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The script that shtab writes for our parser."""
    if args.shell not in SHELLS:
        raise field_error(ConfigError, "completion", "", "shell", f"one of {', '.join(SHELLS)}", args.shell)
    import shtab

    parser = args.parser
    parser.prog = PROGRAM
    for command, action in actions(parser):
        found = candidates(command, action)
        setattr(action, "choices" if isinstance(found, tuple) else "complete", found)
    return {"shell": args.shell, "script": shtab.complete(parser, args.shell) + (_BASH_WORDS if args.shell == "bash" else "")}


def render(result: dict[str, Any]) -> list[str]:
    """The script alone."""
    return [result["script"]]


def actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    """Every argument that takes a value, with its command."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return ((name, action) for name, command in commands.choices.items() for action in command._actions if action.nargs != 0)


def candidates(command: str, action: argparse.Action) -> tuple[str, ...] | str | dict[str, Any]:
    """The words that are offered for an argument, none where it is free, or a value for shtab's attribute `complete`."""
    from doppler_tf.api.benchmark.suite import LEARNED_METHODS
    from doppler_tf.api.workloads import NAMES
    from doppler_tf.graph.topology import PRESETS
    from doppler_tf.heuristics import HEURISTICS

    metavar = str(action.metavar)
    if metavar in _KINDS:
        return _KINDS[metavar]
    if metavar == "T":
        return _function("topology", ("local", *PRESETS, *COUNTED), *_OR_FILE)
    if metavar == "NAME|FILE":
        return _function("config", CONFIGS, *_OR_FILE)
    if metavar.startswith("A,B"):
        return _function("methods", (*HEURISTICS, "policy"), *_IN_LIST)
    if metavar.startswith("NAME"):
        return {("workload", "name"): NAMES, ("bench", "workload"): NAMES, ("train", "method"): LEARNED_METHODS,
                ("place", "method"): ("auto", *HEURISTICS, "policy"),
                ("bench", "method"): ("auto", *HEURISTICS, *LEARNED_METHODS)}[command, action.dest]
    return tuple(metavar.split("|")) if "|" in metavar else ()


def _function(name: str, words: Sequence[str], bash: str, zsh: str) -> dict[str, Any]:
    """Candidates from a shell function; bash, zsh: its body, which reads $words."""
    function, joined = f"_doppler_tf_{name}", " ".join(words)
    body = f'{function}() {{ local words="{joined}"; %s; }}'
    return {"bash": function, "zsh": function, "tcsh": f"({joined})", "preamble": {"bash": body % bash, "zsh": body % zsh}}
