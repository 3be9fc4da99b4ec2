"""Notes to the user, progress and what is logged: all by Python's `logging`, from which a command prints on stderr.

A library's user hears notes where the level of the logger `doppler_tf` is INFO or below. Bars are shown in a terminal, unless that
logger has been given a higher level.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings

_ROOMS = ("doppler_tf", "data", "runtime", "agents")
_LOG = logging.getLogger(__name__)


def set_verbosity(verbose: bool = False, quiet: bool = False) -> None:
    """From now on the loggers of our packages, and no others, write to stderr: errors (`quiet`), notes, too, or all (`verbose`).

    Python's warnings are shown to the verbose alone.
    """
    if not (verbose or sys.warnoptions):
        warnings.simplefilter("ignore")
    for room in _ROOMS:
        log = logging.getLogger(room)
        log.setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)
        log.propagate = False  # absl's handler at the root would repeat it
        for handler in [each for each in log.handlers if isinstance(each, _OnStderr)]:
            log.removeHandler(handler)
        log.addHandler(_OnStderr(verbose))


def is_verbose() -> bool:
    """Whether the user wants to read all that is logged."""
    return _LOG.isEnabledFor(logging.DEBUG)


def hush_libraries() -> None:
    """In a process that runs a command without -v, TensorFlow's Python code logs errors alone. Call it after importing TensorFlow."""
    if not is_verbose() and any(isinstance(each, _OnStderr) for each in logging.getLogger("doppler_tf").handlers):
        for library in ("tensorflow", "absl"):
            logging.getLogger(library).setLevel(logging.ERROR)


def note(message: str) -> None:
    """A line for the user; a command prints it on stderr, unless -q is given."""
    _LOG.info("%s", message)


def bars_wanted() -> bool:
    """Whether stderr is a terminal, and nobody has given our logger a level above INFO."""
    unsaid = logging.getLogger("doppler_tf").level == logging.NOTSET
    return sys.stderr.isatty() and (unsaid or _LOG.isEnabledFor(logging.INFO))


@functools.cache  # registers once, even if one process runs several commands
def announce_compiling() -> None:
    """From now on one note says that Numba compiles our code. Numba compiles once and keeps the code on disk.

    XLA compiles, or loads from disk, once per process and shape; `agents` logs when it traces.
    """
    from numba.core import event

    class OneNote(event.Listener):
        announced = False

        def on_start(self, started) -> None:
            if not self.announced and started.data["dispatcher"].py_func.__module__.partition(".")[0] in _ROOMS:
                self.announced = True
                note("compiling simulator and heuristics (once, for a minute or so; the code stays on disk)")

        def on_end(self, ended) -> None:
            """Numba requires this method."""

    event.register("numba:compile", OneNote())


class _OnStderr(logging.Handler):
    """Prints on the current sys.stderr, which a progress bar replaces while it is shown."""

    def __init__(self, verbose: bool):
        super().__init__()
        if verbose:
            self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(self.format(record), file=sys.stderr, flush=True)
