"""What is said on stderr: errors alone (-q), notes as well, or all that our loggers say (-v); and what is being compiled."""

from __future__ import annotations

import argparse
import functools
import logging
import sys

_OURS = ("doppler_tf", "data", "runtime", "agents")
_LOG = logging.getLogger("doppler_tf.cli")


def add_verbosity(parser: argparse.ArgumentParser, default: bool | str = argparse.SUPPRESS) -> None:
    """-v and -q; default: False for the parser of all commands, whose findings a command's own leaves alone."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-v", "--verbose", action="store_true", default=default,
                        help="log on stderr what is done, and when; after an error, where it arose")
    either.add_argument("-q", "--quiet", action="store_true", default=default,
                        help="no tables, notes and bars: errors alone, and the object of --json")


def set_verbosity(verbose: bool = False, quiet: bool = False) -> None:
    """From now on our loggers, and they alone, are heard on stderr."""
    for room in _OURS:
        log = logging.getLogger(room)
        log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        log.propagate = False  # absl's handler at the root would say it again
        for handler in [each for each in log.handlers if isinstance(each, _OnStderr)]:
            log.removeHandler(handler)
        log.addHandler(_OnStderr(verbose))


def note(message: str) -> None:
    """A line for the person at the screen."""
    _LOG.info("%s", message)


def is_quiet() -> bool:
    """Whether notes are not wanted."""
    return not _LOG.isEnabledFor(logging.INFO)


def bars_wanted() -> bool:
    """Whether somebody can see a progress bar move, and wants to."""
    return sys.stderr.isatty() and not is_quiet()


@functools.cache  # however often commands run in one process, it is told once
def announce_compiling() -> None:
    """From now on a note says which of our modules Numba compiles. That is the first time only, as the code stays on disk.

    For XLA, which compiles or loads from disk once a process and shape, `agents` logs when it traces.
    """
    from numba.core import event

    class OneNoteAModule(event.Listener):
        def __init__(self):
            self._said = set()

        def on_start(self, started) -> None:
            room, *rest = started.data["dispatcher"].py_func.__module__.split(".")
            part = ".".join([room, *rest[:1]])
            if room in _OURS and part not in self._said:
                self._said.add(part)
                note(f"compiling {part} (the first time only; it stays on disk)")

        def on_end(self, ended) -> None:
            """Nothing to say."""

    event.register("numba:compile", OneNoteAModule())


class _OnStderr(logging.Handler):
    """Prints on what sys.stderr is at the moment: a progress bar that stands there makes room."""

    def __init__(self, verbose: bool):
        super().__init__()
        if verbose:
            self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(self.format(record), file=sys.stderr, flush=True)
