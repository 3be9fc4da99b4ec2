"""Keeps the code that XLA compiles on disk, so that the next process loads it.

TensorFlow does this itself if TF_XLA_FLAGS names a folder; it reads the flags with its first operation. But an entry that it cannot read or
write makes the computation fail, and entries do not name the machine they were compiled for. So a folder is named only if it is writable,
its entries are complete, and the same kind of machine has written them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from doppler_tf.formats.files import cache_folder

_MOST_BYTES, _SPARE_BYTES = 1 << 30, 1 << 28  # largest size of all entries; least free disk space, as a full disk makes a run fail
_ENTRY, _FOLDER, _CPU_ALONE = "xla_compile_cache__", "--tf_xla_persistent_cache_directory", "--tf_xla_persistent_cache_device_types=CPU"
_OURS = re.compile(rf'\s*{_FOLDER}="[^"]*" {_CPU_ALONE}')
_PROCESSOR = re.compile(r"^(?:model name|flags|CPU implementer|CPU part|Features)\s*:.*$", re.MULTILINE)  # of /proc/cpuinfo: on x86, on Arm


def keep_compiled() -> Path | None:
    """Adds a folder to TF_XLA_FLAGS, unless the user has named one; call it before TensorFlow's first operation.

    Removes entries of the folder that are not whole, and the oldest ones where all together are too large.

    Returns:
      The folder, None where nothing is kept.
    """
    given = os.environ.get("TF_XLA_FLAGS", "")
    flags = _OURS.sub("", given).strip()  # a parent process may have added its own
    named = _FOLDER in flags or flags[:1] not in ("", "-")  # by the user, or maybe in a file of flags, which takes no more
    folder = None if named else _prepared()
    if folder is not None:
        flags = f'{flags} {_FOLDER}="{folder}" {_CPU_ALONE}'.lstrip()
    if flags != given:
        os.environ["TF_XLA_FLAGS"] = flags
    return folder


def cache_root() -> Path | None:
    """The parent of the folders of all machines and versions; None if the cache is switched off."""
    return cache_folder("DOPPLER_XLA_CACHE", "xla")


def _prepared() -> Path | None:
    """The folder of this machine, cleaned; None if the cache is switched off or no folder can be used."""
    root = cache_root()
    if root is None or set(str(root)) & {'"', "\\"}:  # the flag could not name it
        return None
    with contextlib.suppress(OSError, PackageNotFoundError):
        folder = root / _key()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_broken(folder)
        _remove_oldest(root)
        if os.access(folder, os.W_OK | os.X_OK) and shutil.disk_usage(folder).free >= _SPARE_BYTES:
            return folder
    return None


def _key() -> str:
    """Names what compiled code depends on besides its program: TensorFlow, processor, usable cores, flags of XLA."""
    processor = _PROCESSOR.findall(Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0])
    made_for = processor or platform.node(), len(os.sched_getaffinity(0)), os.environ.get("XLA_FLAGS")
    return f"tensorflow-{version('tensorflow')}-{platform.machine()}-{hashlib.sha256(repr(made_for).encode()).hexdigest()[:12]}"


def _remove_broken(folder: Path) -> None:
    """Removes entries that a crash left incomplete. Raises OSError where reading or removing them is not allowed."""
    for path in folder.glob(f"{_ENTRY}*.pb"):
        with contextlib.suppress(FileNotFoundError):  # another process has removed it
            if not _is_whole(path):
                path.unlink()


def _is_whole(path: Path) -> bool:
    """Whether the fields of the message (key, program, code: each a tag, its length and so many bytes) fill the file."""
    fields = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (at := file.tell()) < size:
            tag, *varint = file.read(6)
            last = next((i for i, byte in enumerate(varint) if byte < 128), None)
            if tag & 7 != 2 or last is None:
                return False
            file.seek(at + 2 + last + sum((byte & 127) << 7 * i for i, byte in enumerate(varint[:last + 1])))
            fields.append(tag >> 3)
        return at == size and fields == [1, 2, 3]


def _remove_oldest(root: Path) -> None:
    """Removes the oldest entries of all machines and versions until the others take at most _MOST_BYTES."""
    entries = []
    for path in root.glob(f"*/{_ENTRY}*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            entries.append((found.st_mtime, found.st_size, path))
    excess = sum(size for _, size, _ in entries) - _MOST_BYTES
    for _, size, path in sorted(entries):
        if excess <= 0:
            return
        with contextlib.suppress(OSError):  # it may be another user's
            path.unlink()
            excess -= size
