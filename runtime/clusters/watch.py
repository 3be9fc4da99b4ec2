"""A call that may wait for another machine: a thread does it, and the caller asks now and then whether the machine still answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

# After a failure, the time that threads have to return from their present task.
GRACE_S = 0.5


def watched(call: Callable[[], T], check: Callable[[], None], check_s: float | None, timeout_s: float | None = None) -> T:
    """What `call` returns.

    Args:
      check: called every `check_s` seconds until `call` has ended; None: never. What it raises ends the wait.
      timeout_s: of the whole call; None: any.

    Raises:
      What `call` or `check` raises. TimeoutError: `call` takes longer. A thread that has not ended half a second later is abandoned.
    """
    if check_s is None and timeout_s is None:
        return call()
    until_s, outcome = perf_counter() + (threading.TIMEOUT_MAX if timeout_s is None else timeout_s), Future()
    thread = threading.Thread(target=_perform, args=(call, outcome), daemon=True, name=f"watched {getattr(call, '__name__', '')}")
    thread.start()
    try:
        while not wait([outcome], max(0.0, min(until_s - perf_counter(), threading.TIMEOUT_MAX if check_s is None else check_s))).done:
            if perf_counter() >= until_s:
                raise TimeoutError(f"expected an end within {timeout_s:g} s")
            if check_s is not None:
                check()
        return outcome.result()
    finally:
        thread.join(GRACE_S)


def _perform(call: Callable[[], T], outcome: Future[T]) -> None:
    try:
        outcome.set_result(call())
    except BaseException as error:
        outcome.set_exception(error)
