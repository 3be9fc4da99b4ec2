"""TensorFlow's devices, on which a test watches what is done, or lets it fail."""

from collections.abc import Callable
from typing import Any

from doppler_tf.schedule.dispatch import Dispatcher
from runtime import Engine, TensorFlowBackend
from runtime.backend import Session

Before = Callable[..., None]


class WatchedBackend(TensorFlowBackend):
    """Calls `before("run_vertex", vertex, device)` and `before("run_transfer", transfer, tensor, source, destination)` on the thread
    that then does it."""

    def __init__(self, before: Before, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._before = before

    def open(self, *run: Any) -> Session:
        return _WatchedSession(super().open(*run), self._before)


class _WatchedSession:
    def __init__(self, session: Session, before: Before):
        self._session, self._before = session, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run_vertex(self, *args: int) -> None:
        self._before("run_vertex", *args)
        self._session.run_vertex(*args)

    def run_transfer(self, *args: int) -> None:
        self._before("run_transfer", *args)
        self._session.run_transfer(*args)


def watched_executor(before: Before, *args: Any, timeout_s: float | None = None, restart_on_loss: bool = False, **options: Any) -> Engine:
    """Args: before: see `WatchedBackend`; the rest as TensorFlowExecutor's."""
    return Engine(WatchedBackend(before, *args, **options), Dispatcher, timeout_s, restart_on_loss)
