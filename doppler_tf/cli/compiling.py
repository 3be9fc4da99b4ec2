"""Says what is being compiled, while the user waits for it."""

from __future__ import annotations

import functools
import logging

from doppler_tf.cli.output import note

_OURS = ("doppler_tf", "agents")


@functools.cache  # to be told once, however often commands run in one process
def announce_compiling() -> None:
    """From now on a note on stderr says what Numba compiles (the first time only: it stays on disk) and what XLA does, or loads
    from disk (once a process and shape; `agents` logs it when it traces)."""
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
    log = logging.getLogger("agents")
    log.setLevel(logging.INFO)
    log.propagate = False  # absl's handler at the root would say it again
    log.addHandler(_Notes())


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())
