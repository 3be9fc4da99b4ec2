"""Writing whole files, complete or absent; `read_json` of `reading.py` is here, too."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from doppler_tf.errors import ConfigError, FormatError
from doppler_tf.reading import read_json as read_json

_LOG = logging.getLogger(__name__)


def check_writable(path: str | Path) -> Path:
    """`path`, if it looks as if a file could be written there; asked before work that would be lost. Raises FormatError otherwise."""
    if isinstance(path, str) and path.endswith(os.sep):
        raise FormatError(f"{path}: expected the name of a file, got a folder's; choose a file in it")
    path = Path(path)
    there = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    reason = (errno.EISDIR if path.is_dir() else errno.ENOTDIR if not there.is_dir() else
              None if os.access(there, os.W_OK | os.X_OK) or path.exists() else errno.EACCES)
    if reason is not None:
        raise FormatError(f"{path}: cannot be written: {os.strerror(reason)}; choose another place")
    return path


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a file atomically: a temporary file beside it, then a rename. Parent folders are made.

    A link is followed. What is there and is no file (a device, a pipe) is written to as it is.

    Raises:
      FormatError: the place cannot be written.
    """
    path = Path(path)
    _LOG.debug("writing %s, %s bytes", path, f"{len(content):,}")
    try:
        if path.is_symlink():
            path = path.resolve()
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as special:
                special.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be written: {getattr(error, 'strerror', error)}; choose another place") from None


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`; it takes that place when the block is done, and vanishes if the block fails.

    Raises:
      FormatError: the place cannot be written.
    """
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise FormatError(f"{folder}: cannot be written: {error.strerror}; choose another place") from None
    try:
        temporary.chmod(0o755)
        yield temporary
        if folder.exists():  # a folder cannot be exchanged in one step as a file can
            aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            folder.rename(aside / "old")
        temporary.rename(folder)
    except OSError as error:
        raise FormatError(f"{folder}: cannot be written: {error.strerror}; choose another place") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if aside is not None:
            if not folder.exists():  # the new one did not get there
                (aside / "old").rename(folder)
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def held(folder: str | Path, what: str) -> Iterator[None]:
    """Makes a folder and holds it; the system lets go of it when the process ends, however it ends.

    Args:
      what: the folder is, as errors call it.

    Raises:
      ConfigError: it cannot be made, or another process holds it.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise ConfigError(f"{folder}: {what}: cannot be written: {error.strerror}; choose another") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: {what}: expected one to itself, got one that another process fills; wait or choose "
                              f"another") from None
        yield


def cache_folder(variable: str, part: str = "") -> Path | None:
    """A folder for what need not be found out again; it may not exist yet.

    Args:
      variable: of the environment; it names the folder, or says `off`.
      part: the folder in the project's own among the user's caches, where the variable is not set.

    Returns:
      None where nothing is to be kept, or where the user has no folder for it.
    """
    named = os.environ.get(variable)
    if named:
        return None if named.lower() in ("off", "0") else Path(named).absolute()
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:  # `doctor` works without any library
        return None
    folder = user_cache_path("doppler_tf", appauthor=False) / part
    return folder if folder.is_absolute() else None


def file_name(name: str) -> str:
    """`name` as a file's name: other characters than letters, digits, `.`, `_` and `-` become `_`, no leading dot, at most 80 of them."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".")[:80] or "_"


def plain(value: Any) -> Any:
    """The value in JSON's types; infinity and NaN become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy arrays and scalars; importing NumPy would slow --help down
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str | Path, value, indent: int | None = None) -> None:
    """Writes a JSON value atomically. Raises FormatError for what JSON cannot hold: NaN, infinity, objects, endless nesting."""
    try:
        text = json.dumps(value, indent=indent, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: cannot be written as JSON: {error}; give plain finite values only") from None
    write_bytes(path, (text + "\n").encode())
