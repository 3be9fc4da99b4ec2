"""Parses the command line, runs one command, prints its tables or its JSON object, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from doppler_tf import __version__
from doppler_tf.api.rooms import check_rooms
from doppler_tf.cli import (
    bench,
    calibrate,
    capture,
    compare,
    completion,
    convert,
    doctor,
    export,
    export_placed,
    info,
    place,
    report,
    run,
    simulate,
    trace,
    train,
    worker,
    workload,
)
from doppler_tf.cli.options import add_verbosity, natural, refuse_overwriting
from doppler_tf.cli.output import print_json, print_tables
from doppler_tf.errors import ConfigError, DopplerError, UserError
from doppler_tf.notes import set_verbosity

# The name of the installed command, and how the program is called if it is not installed.
INSTALLED, MODULE = "doppler-tf", "python -m doppler_tf"
# A command is a module. Its docstring is its help, `EXAMPLE` is a command that works, `MORE_EXAMPLES` may be others, and `add_arguments`
# adds its options.
# `FUNCTION` does the work: its parameters are called as the options are, and what it returns, or has as `figures`, is the result.
# Failing that, `run(args)` returns the result. `render(result)` shows the same figures as tables. An optional `exit_code(result)` reports
# a result that is partly a failure.
COMMANDS: dict[str, ModuleType] = {"workload": workload, "capture": capture, "convert": convert, "info": info, "place": place,
                                   "simulate": simulate, "train": train, "report": report, "run": run, "compare": compare, "export": export,
                                   "export-placed": export_placed, "trace": trace, "calibrate": calibrate, "bench": bench,
                                   "worker": worker, "doctor": doctor, "completion": completion}
DONE, FAILED, USERS_MISTAKE = 0, 1, 2
_LOG = logging.getLogger(__name__)


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError: one line without usage text, which names the command's --help."""

    def parse_known_args(self, args=None, namespace=None):
        """As argparse's, but a command reports its unknown arguments itself."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def build_parser(commands: Mapping[str, ModuleType] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of all commands; `args.command` is the chosen command's module."""
    prog = INSTALLED if Path(sys.argv[0]).name == INSTALLED else MODULE
    parser = _Parser(prog=prog, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                     description="Places the operations of a dataflow graph on devices so that a work-conserving runtime finishes soonest.",
                     epilog=_example(f"{workload.EXAMPLE}\n  {place.EXAMPLE}", prog))
    parser.add_argument("--version", action="version", version=f"doppler_tf {__version__}")
    add_verbosity(parser, default=False)
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in commands.items():
        purpose = (module.__doc__ or name).splitlines()[0]
        examples = "\n  ".join([module.EXAMPLE, *getattr(module, "MORE_EXAMPLES", ())])
        command = parsers.add_parser(name, help=purpose, description=purpose, epilog=_example(examples, prog), allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
        command.set_defaults(seed=0)  # unless the command sets another default
        module.add_arguments(command)
        command.add_argument("--seed", type=natural, metavar="N", help="seed of everything random (default: 0)")
        command.add_argument("--json", action="store_true", help="print one JSON object on stdout, all else on stderr")
        add_verbosity(command)
        command.set_defaults(command=module)
    return parser


def main(argv: Sequence[str] | None = None, commands: Mapping[str, ModuleType] = COMMANDS) -> int:
    """Runs one of `commands` and returns the exit code: 0 done, 2 the user's mistake, 1 anything else."""
    argv, verbose = sys.argv[1:] if argv is None else list(argv), False
    try:
        parser = build_parser(commands)
        args = parser.parse_args(argv, argparse.Namespace(parser=parser))
        verbose = args.verbose
        set_verbosity(verbose, args.quiet)
        _LOG.debug("doppler_tf %s, Python %s: %s", __version__, platform.python_version(), shlex.join(argv))
        check_rooms()
        refuse_overwriting(args)
        with _library_output_on_stderr():
            if getattr(args, "memory", None) is not None:
                args.topology = _limited(args.topology, args.memory)
            result = args.command.run(args) if hasattr(args.command, "run") else _call(args)
        _LOG.debug("done; %.2f s of processor time in this process", time.process_time())
        if not args.quiet:
            print_tables(args.command.render(result), sys.stderr if args.json else sys.stdout)
        if args.json:
            print_json(result)
        sys.stdout.flush()
        return args.command.exit_code(result) if hasattr(args.command, "exit_code") else DONE
    except SystemExit as stop:  # --help and --version
        return stop.code if isinstance(stop.code, int) else DONE
    except BrokenPipeError:
        return _drop_stdout()
    except (Exception, KeyboardInterrupt) as error:
        return _fail(error, "--json" in argv, verbose)


def _call(args: argparse.Namespace) -> Mapping[str, Any]:
    """The result of a command's function."""
    from inspect import signature

    room, _, name = args.command.FUNCTION.rpartition(".")
    function = getattr(import_module(room), name)
    found = function(**{option: value for option, value in vars(args).items() if option in signature(function).parameters})
    return getattr(found, "figures", found)


def _limited(topology: str | None, sizes: Sequence[float]):
    """The topology with other limits of memory. Raises UserError: no topology, or another number of devices."""
    from doppler_tf.api.inputs import load_topology

    if topology is None:
        raise ConfigError("--memory: expected --topology T beside it, got none; add it, or leave out --memory")
    loaded = load_topology(topology)
    if len(sizes) not in (1, loaded.num_devices):
        raise ConfigError(f"--memory: expected a size, or one for each of the {loaded.num_devices} devices of {topology}, got {len(sizes)}")
    return loaded.with_memory(sizes[0] if len(sizes) == 1 else list(sizes))


@contextlib.contextmanager
def _library_output_on_stderr() -> Iterator[None]:
    """Sends what Python and C libraries print to stderr, because scripts read one JSON object from stdout."""
    with contextlib.ExitStack() as stack, contextlib.redirect_stdout(sys.stderr):
        with contextlib.suppress(OSError):  # a process may have been started without stdout or stderr
            kept = os.dup(1)
            stack.callback(os.close, kept)
            os.dup2(2, 1)
            stack.callback(os.dup2, kept, 1)
            stack.callback(_flush_c)
        yield


def _flush_c() -> None:
    """Writes the output that C libraries still buffer."""
    import ctypes

    ctypes.CDLL(None).fflush(None)


def _fail(error: BaseException, as_json: bool, verbose: bool) -> int:
    """Prints the error in one line on stderr, with `as_json` also in an object on stdout, and returns the exit code."""
    code, message = _explain(error)
    if verbose or os.environ.get("DOPPLER_TRACEBACK") == "1":
        traceback.print_exception(error)
    print(f"error: {message}", file=sys.stderr)
    if as_json:
        try:
            print_json({"error": message})
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_stdout()
    return code


def _explain(error: BaseException) -> tuple[int, str]:
    """The exit code and a message of one line."""
    if isinstance(error, KeyboardInterrupt):
        return FAILED, ": ".join(["interrupted", *map(str, error.args)])
    if isinstance(error, DopplerError):
        return (USERS_MISTAKE if isinstance(error, UserError) else FAILED), str(error)
    reason = next(iter(str(error).splitlines()), "")
    return FAILED, f"{type(error).__name__}{': ' if reason else ''}{reason}; -v shows where"


def _drop_stdout() -> int:
    """After the reader of stdout is gone (`| head`), keeps the interpreter from printing a BrokenPipeError when it exits."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED


def _example(text: str, prog: str) -> str:
    return f"example:\n  {text.replace(MODULE, prog)}"
