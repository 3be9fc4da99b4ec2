"""How much is said on stderr: errors alone (-q), notes as well, or all that our loggers say, and when (-v)."""

from __future__ import annotations

import argparse
import logging
import sys

_OURS = ("doppler_tf", "data", "runtime", "agents")
_LOG = logging.getLogger("doppler_tf.cli")


def add_loudness(parser: argparse.ArgumentParser, default: bool | str = argparse.SUPPRESS) -> None:
    """-v and -q; default: False for the parser of all commands, whose findings a command's own leaves alone."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-v", "--verbose", action="store_true", default=default,
                        help="log on stderr what is done, and when; after an error, where it arose")
    either.add_argument("-q", "--quiet", action="store_true", default=default,
                        help="no tables, notes and bars: errors alone, and the object of --json")


def set_loudness(verbose: bool = False, quiet: bool = False) -> None:
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


class _OnStderr(logging.Handler):
    """Prints on what sys.stderr is at the moment: a progress bar that stands there makes room."""

    def __init__(self, verbose: bool):
        super().__init__()
        if verbose:
            self.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(self.format(record), file=sys.stderr, flush=True)
