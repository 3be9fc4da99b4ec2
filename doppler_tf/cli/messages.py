"""Messages on stderr: errors alone (-q), notes as well, or all that our loggers say (-v); a note while Numba compiles."""

from __future__ import annotations

import argparse
import functools
import logging
import sys

_OURS = ("doppler_tf", "data", "runtime", "agents")
_LOG = logging.getLogger("doppler_tf.cli")


def add_verbosity(parser: argparse.ArgumentParser, default: bool | str = argparse.SUPPRESS) -> None:
    """Adds -v and -q. The default is False in the parser of all commands; a command's own parser then leaves the value alone."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-v", "--verbose", action="store_true", default=default,
                        help="log on stderr what is done, and when; after an error, where it arose")
    either.add_argument("-q", "--quiet", action="store_true", default=default,
                        help="no tables, notes and bars: errors alone, and the object of --json")


def set_verbosity(verbose: bool = False, quiet: bool = False) -> None:
    """From now on our loggers, and no others, write to stderr."""
    for room in _OURS:
        log = logging.getLogger(room)
        log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        log.propagate = False  # absl's handler at the root would print it again
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


@functools.cache  # the note is printed once a process, however many commands run in it
def announce_compiling() -> None:
    """From now on one note is printed when Numba compiles code of ours. Compiled code stays on disk, so later runs print none.

    XLA compiles, or loads from disk, once a process and shape; `agents` logs that itself.
    """
    from numba.core import event

    class OneNote(event.Listener):
        said = False

        def on_start(self, started) -> None:
            if not self.said and started.data["dispatcher"].py_func.__module__.partition(".")[0] in _OURS:
                self.said = True
                note("compiling simulator and heuristics (once, up to half a minute; the code stays on disk)")

        def on_end(self, ended) -> None:
            """No note at the end."""

    event.register("numba:compile", OneNote())


class _OnStderr(logging.Handler):
    """Prints to the sys.stderr of the moment, so that lines appear above a progress bar."""

    def __init__(self, verbose: bool):
        super().__init__()
        if verbose:
            self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(self.format(record), file=sys.stderr, flush=True)
