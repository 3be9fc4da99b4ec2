"""Independent calls of functions, done in this process or by worker processes on Ray, which no other file knows."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import pickle
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from doppler_tf.errors import ConfigError, DopplerError

LOCAL = "local"
# A task is begun at most so often if its workers are lost, and a worker if it cannot start.
_TRIES = 3
# A note says that no worker has started after this time.
_PATIENCE_S = 20.0
# Whoever listens at an address answers within this time.
_ANSWER_S = 10.0
# Memory that this machine's workers share for arguments and results, which are small; Ray takes no less than 75 MiB.
_STORE_BYTES = 100 << 20
_LOG = logging.getLogger(__name__)


class Ended(NamedTuple):
    """A task that has ended. Attributes: value: what its function returned; error: why it failed, in one line ("": it did not)."""

    key: Hashable
    value: Any
    error: str


class Here:
    """One worker, this process, which does a task when somebody waits for it."""

    def __init__(self):
        self._task: _Task | None = None

    @property
    def busy(self) -> bool:
        """Whether a task has been started and has not ended."""
        return self._task is not None

    def idle(self) -> list[int]:
        """Numbers of the workers that can begin a task now."""
        return [] if self.busy else [0]

    def start(self, worker: int, key: Hashable, function: Callable, *args: Any) -> None:
        """Gives an idle worker a task: `function(*args)`."""
        self._task = _Task(key, function, args)

    def wait(self) -> list[Ended]:
        """Waits until a task has ended or a worker has started. Returns the tasks that have ended."""
        task, self._task = self._task, None
        return [] if task is None else [Ended(task.key, *_attempt(task.function, task.args))]


class OnRay:
    """Worker processes, each with a core. A lost one is replaced wherever Ray finds a free core, and its task is done again."""

    def __init__(self, ray: ModuleType, workers: int, shared: tuple[str, str] | None = None):
        """Args: ray: connected; shared: a file that every worker must be able to read, and what it holds."""
        self._ray, self._begin = ray, functools.partial(ray.remote(num_cpus=1)(_Worker).remote, os.getcwd(), shared)
        self._actors: list[Any] = [None] * workers
        self._starts = [0] * workers
        self._running: dict[Any, tuple[int, _Sent | None]] = {}  # by reference to the result; no task: the worker is starting
        self._idle: list[int] = []
        self._again: deque[_Sent] = deque()
        self._unsent: list[Ended] = []
        for worker in range(workers):
            self._begin_worker(worker)

    @property
    def workers(self) -> int:
        """How many there are, starting ones included; their numbers are 0 and on."""
        return len(self._actors)

    @property
    def busy(self) -> bool:
        """As in `Here`."""
        return bool(self._again or self._unsent) or any(task is not None for _, task in self._running.values())

    def idle(self) -> list[int]:
        """As in `Here`."""
        return list(self._idle)

    def start(self, worker: int, key: Hashable, function: Callable, *args: Any) -> None:
        """As in `Here`."""
        sent, error = _attempt(self._ray.cloudpickle.dumps, ((function, args),))
        if error:
            self._unsent.append(Ended(key, None, error))
        else:
            self._give(worker, _Sent(key, sent))

    def wait(self) -> list[Ended]:
        """As in `Here`. Raises ConfigError if workers cannot start."""
        if self._unsent:
            ended, self._unsent = self._unsent, []
            return ended
        done: list[Any] = []
        while not done:
            done, _ = self._ray.wait(list(self._running), timeout=_PATIENCE_S)
            if not done and all(task is None for _, task in self._running.values()):
                _LOG.info("--ray: no worker has started for %.0f s; no core of the cluster may be free", _PATIENCE_S)
        ended = []
        for reference in done:
            worker, task = self._running.pop(reference)
            try:
                value, problem = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                ended += self._replace(worker, task, _last_line(error))
                continue
            if task is not None:
                ended.append(Ended(task.key, None if problem else pickle.loads(value), problem))
            elif problem:
                raise ConfigError(f"--ray: {problem}")
            self._starts[worker] = 0
            self._idle.append(worker)
        while self._again and self._idle:
            self._give(self._idle[0], self._again.popleft())
        return ended

    def _give(self, worker: int, task: _Sent) -> None:
        self._idle.remove(worker)
        self._running[self._actors[worker].call.remote(task.call)] = worker, task

    def _begin_worker(self, worker: int) -> None:
        self._actors[worker] = self._begin()
        self._starts[worker] += 1
        self._running[self._actors[worker].problem.remote()] = worker, None

    def _replace(self, worker: int, task: _Sent | None, reason: str) -> list[Ended]:
        """Begins another worker. Returns the task if it is not to be done again."""
        if self._starts[worker] >= _TRIES:
            raise ConfigError(f"--ray: expected workers that start, got {_TRIES} that did not: {reason}; install "
                              "doppler_tf on every machine")
        self._ray.kill(self._actors[worker])  # it may be cut off and alive
        self._begin_worker(worker)
        if task is None:
            return []
        if task.tries == _TRIES:
            return [Ended(task.key, None, f"its worker was lost {_TRIES} times, crashed, killed or without memory: {reason}")]
        _LOG.info("--ray: the worker of %s was lost; another one does it again", task.key)
        self._again.append(task._replace(tries=task.tries + 1))
        return []


class _Task(NamedTuple):
    key: Hashable
    function: Callable
    args: Sequence[Any]


class _Sent(NamedTuple):
    """A task whose function and arguments are pickled. Ray's own arrays cannot be written to, so Numba would compile again for them."""

    key: Hashable
    call: bytes
    tries: int = 1


class _Worker:
    """The part of a worker that runs in its process. It works in the caller's folder, if that is there."""

    def __init__(self, folder: str, shared: tuple[str, str] | None):
        self._shared = shared
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Ray searches the caller's folder first, which may have other `data`
        with contextlib.suppress(OSError):
            os.chdir(folder)

    def problem(self) -> tuple[None, str]:
        """Why the worker cannot be used, in the place where `call` returns errors; "" if it can be used."""
        if self._shared is None:
            return None, ""
        (path, content), found = self._shared, ""
        with contextlib.suppress(OSError):
            found = Path(path).read_text(encoding="utf-8")
        return None, "" if found == content else (f"{Path(path).parent}: expected a folder that all machines of the cluster share, got "
                                                  f"another or none on {os.uname().nodename}; choose a folder on a shared disk")

    def call(self, sent: bytes) -> tuple[bytes | None, str]:
        """The pickled value and the error of a pickled call."""
        from ray import cloudpickle

        def done() -> bytes:
            function, args = pickle.loads(sent)
            return cloudpickle.dumps(function(*args))

        return _attempt(done, ())


@contextlib.contextmanager
def open_tasks(ray: str | None, jobs: int | None, most: int, shared: Path | None = None) -> Iterator[Here | OnRay]:
    """Workers for some tasks. However the block is left, its worker processes end.

    Args:
      ray: `local` (worker processes on this machine) or the address of a cluster. None: `local` for several jobs, if Ray is there.
      jobs: number of workers; None: with `ray` one for each core of this machine or of the cluster, otherwise one.
      most: number of tasks; there are no more workers than that.
      shared: a folder that the workers must see, too.

    Raises:
      ConfigError: Ray is not installed, or no cluster answers at the address.
    """
    if ray is not None and not _installed():
        raise ConfigError(f"--ray {ray}: expected Ray, got none installed; `pip install 'doppler_tf[ray]'`, or leave out --ray")
    if ray is None and (jobs or 1) > 1:
        if _installed():
            ray = LOCAL
        else:
            _LOG.info("--jobs %d: all runs in this process, as Ray is not installed; `pip install 'doppler_tf[ray]'`", jobs)
    if ray is None or most < (2 if ray == LOCAL else 1) or (ray == LOCAL and jobs == 1):
        yield Here()
        return
    with contextlib.ExitStack() as stack:
        connected = stack.enter_context(_local(min(jobs or len(os.sched_getaffinity(0)), most)) if ray == LOCAL else _cluster(ray))
        cores = int(connected.cluster_resources().get("CPU", 1))
        yield OnRay(connected, max(1, min(jobs or cores, most)), shared and stack.enter_context(_token(shared)))


def each_done(tasks: Here | OnRay, function: Callable, calls: Mapping[Hashable, Sequence[Any]]) -> Iterator[Ended]:
    """Calls a function with the arguments of each key. Yields the tasks as they end."""
    waiting = deque(calls.items())
    while waiting or tasks.busy:
        for worker in tasks.idle()[:len(waiting)]:
            key, args = waiting.popleft()
            tasks.start(worker, key, function, *args)
        yield from tasks.wait()


def _attempt(function: Callable, args: Sequence[Any]) -> tuple[Any, str]:
    """What a function returns, and ""; or None, and its error in one line."""
    try:
        return function(*args), ""
    except Exception as error:
        return None, str(error) if isinstance(error, DopplerError) else f"{type(error).__name__}: {' '.join(str(error).split())}"


def _last_line(error: Exception) -> str:
    """The line of Ray's message that says most: the last line of a traceback, or else the first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if any(line.startswith("Traceback") or line.startswith("File ") for line in lines) else lines[0]


def _installed() -> bool:
    return importlib.util.find_spec("ray") is not None


@functools.cache
def _secret() -> str:
    """What this machine's workers must know to be let in. One for each process, because Ray reads it only once."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _local(workers: int) -> Iterator[ModuleType]:
    """Ray on this machine alone. Its servers listen on all addresses, so that a secret keeps others out."""
    folder = Path(tempfile.mkdtemp(prefix=f"doppler-{os.getpid()}-", dir="/tmp"))  # Ray's sockets need a short path
    try:
        with _connected({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _secret()}, address=LOCAL, num_cpus=workers, include_dashboard=False,
                        object_store_memory=_STORE_BYTES, _temp_dir=str(folder)) as ray:
            yield ray
    finally:
        for _ in range(100):  # a process that is ending may still write
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.05)


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[ModuleType]:
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host.removeprefix("ray://"), int(port)), _ANSWER_S).close()
        entered = contextlib.ExitStack()
        ray = entered.enter_context(_connected({}, address=address))
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise ConfigError(f"--ray {address}: expected the address of a Ray cluster, HOST:PORT, got {_last_line(error)}; start one with "
                          "`ray start`") from None
    with entered:
        yield ray


@contextlib.contextmanager
def _connected(environment: Mapping[str, str], **how: Any) -> Iterator[ModuleType]:
    """Ray, told by environment variables and arguments of `ray.init` how to connect."""
    before = dict(os.environ)
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", **environment})  # otherwise Ray sends statistics to its makers
    try:
        import ray

        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **how)
            yield ray
        finally:
            ray.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _token(folder: Path) -> Iterator[tuple[str, str]]:
    """A file in a folder, and what it holds."""
    path, content = folder.absolute() / ".shared", secrets.token_hex(8)
    path.write_text(content, encoding="utf-8")
    try:
        yield str(path), content
    finally:
        path.unlink(missing_ok=True)
