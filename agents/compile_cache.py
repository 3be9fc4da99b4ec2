"""Keeps what XLA compiles on disk, so that the next process that needs it loads it.

TensorFlow does so itself where TF_XLA_FLAGS names a folder; it reads them with its first operation. But whatever it cannot read or write
there then fails the computation, and it knows programs apart, not machines. So a folder is named only where it can be written, has whole
entries alone, and was filled on the same kind of machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_OFF = ("", "0", "off")
_MOST_BYTES, _SPARE_BYTES = 1 << 30, 1 << 28  # what all entries may take; what must be free beside them, as a full disk fails a run
_ENTRY, _FOLDER, _CPU_ALONE = "xla_compile_cache__", "--tf_xla_persistent_cache_directory", "--tf_xla_persistent_cache_device_types=CPU"
_OURS = re.compile(rf'\s*{_FOLDER}="[^"]*" {_CPU_ALONE}')
_PROCESSOR = ("model name", "flags", "CPU implementer", "CPU part", "Features")  # of /proc/cpuinfo: on x86, on Arm


def keep_compiled() -> Path | None:
    """Adds a folder to TF_XLA_FLAGS, unless the user has; call it before TensorFlow's first operation. None: nothing is kept."""
    given = os.environ.get("TF_XLA_FLAGS", "")
    flags = _OURS.sub("", given).strip()  # a parent process may have added its own
    named = _FOLDER in flags or flags[:1] not in ("", "-")  # by the user, or maybe in a file of flags, which takes no more
    folder = None if named else _prepared()
    if folder is not None:
        quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"')
        flags = f'{flags} {_FOLDER}="{quoted}" {_CPU_ALONE}'.lstrip()
    if flags != given:
        os.environ["TF_XLA_FLAGS"] = flags
    return folder


def _prepared() -> Path | None:
    """The folder of this machine, in order; None where it is not wanted or cannot be had."""
    root = cache_root()
    if root is None:
        return None
    with contextlib.suppress(OSError, PackageNotFoundError):
        folder = root / _key()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as probe:
            probe.write(b"?")
        _remove_broken(folder)
        _remove_oldest(root)
        if shutil.disk_usage(folder).free >= _SPARE_BYTES:
            return folder
    return None


def cache_root() -> Path | None:
    """Where the folders of all machines and versions stand; None where nothing is to be kept."""
    named = os.environ.get("DOPPLER_XLA_CACHE")
    if named is not None:
        return None if named.lower() in _OFF else Path(named).absolute()
    caches = (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.environ.get("HOME", ""), ".cache"))
    return next((Path(cache, "doppler_tf", "xla") for cache in caches if os.path.isabs(cache)), None)


def _key() -> str:
    """Names all that compiled code depends on beside its program: TensorFlow, processor, how many cores it may use, flags of XLA."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    digest = hashlib.sha256(repr((_processor(), cores, os.environ.get("XLA_FLAGS"))).encode()).hexdigest()
    return f"tensorflow-{version('tensorflow')}-{platform.machine()}-{digest[:12]}"


def _processor() -> list[str]:
    """What instructions the processor has; where nothing tells, which machine it is."""
    with contextlib.suppress(OSError):
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0]
        if said := [line for line in first.splitlines() if line.partition(":")[0].strip() in _PROCESSOR]:
            return said
    return [platform.processor(), platform.node()]


def _remove_broken(folder: Path) -> None:
    """Removes what is left of entries after a crash. Raises OSError where that, or reading them, is not allowed."""
    for path in folder.glob(f"{_ENTRY}*.pb"):
        with contextlib.suppress(FileNotFoundError):  # another process has
            if not _is_whole(path):
                path.unlink()


def _is_whole(path: Path) -> bool:
    """Whether the fields of the message (key, program, code: each a tag, its length and so many bytes) fill the file."""
    with open(path, "rb", opener=_open_unseen) as file:
        size, at, fields = os.fstat(file.fileno()).st_size, 0, []
        while at < size:
            tag, *varint = os.pread(file.fileno(), 6, at)
            last = next((i for i, byte in enumerate(varint) if byte < 128), None)
            if tag & 7 != 2 or last is None:
                return False
            at += 2 + last + sum((byte & 127) << 7 * i for i, byte in enumerate(varint[:last + 1]))
            fields.append(tag >> 3)
        return at == size and fields == [1, 2, 3]


def _open_unseen(path: str, flags: int) -> int:
    """Opens a file without noting it as used, where that is allowed."""
    with contextlib.suppress(AttributeError, PermissionError):
        return os.open(path, flags | os.O_NOATIME)
    return os.open(path, flags)


def _remove_oldest(root: Path) -> None:
    """Removes what was not used for longest, by anyone, until the rest is no more than it may be."""
    entries = []
    for path in root.glob(f"*/{_ENTRY}*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            entries.append((max(found.st_atime, found.st_mtime), found.st_size, path))
    excess = sum(size for _, size, _ in entries) - _MOST_BYTES
    for _, size, path in sorted(entries):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):  # it may be somebody else's
            path.unlink()
            excess -= size
