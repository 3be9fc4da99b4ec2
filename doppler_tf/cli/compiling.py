"""Says what is being compiled, while the user waits for it."""

from __future__ import annotations

import functools

from doppler_tf.cli.loudness import note

_OURS = ("doppler_tf", "agents")


@functools.cache  # to be told once, however often commands run in one process
def announce_compiling() -> None:
    """From now on a note says what Numba compiles (the first time only: it stays on disk). What XLA compiles, or loads from disk (once a
    process and shape), `agents` logs when it traces."""
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
