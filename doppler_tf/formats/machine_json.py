"""What has been measured on this machine, kept on disk: `doppler-machine/7`, one file for each machine that shares the folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from doppler_tf.errors import FormatError, field_error
from doppler_tf.formats.files import cache_folder, read_json, write_json
from doppler_tf.graph.topology import Topology

MACHINE_SCHEMA = "doppler-machine/7"


@dataclass
class Machine:
    """Measured figures of one machine.

    Attributes:
      fingerprint: what they hold for; figures of another fingerprint are not read.
      topology: the machine as `--topology local` has it, None before it was measured.
      seconds: by kernel and kind of device, and by link, as the profiler names them.
    """

    fingerprint: Mapping[str, object]
    topology: Topology | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def fingerprint() -> dict[str, object]:
    """What decides how fast kernels run here: processor, cores that this process may use, GPUs, and TensorFlow's version."""
    processor, gpus = set(), []
    with contextlib.suppress(OSError):
        processor = set(re.findall(r"^(?:model name|CPU part)\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    for gpu in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            gpus += re.findall(r"^Model:\s*(.+)$", gpu.read_text(), re.MULTILINE)
    try:
        tensorflow = version("tensorflow")
    except PackageNotFoundError:
        tensorflow = None
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"processor": sorted(processor), "cores": len(os.sched_getaffinity(0)), "gpus": gpus, "cuda_visible_devices": hidden,
            "tensorflow": tensorflow}


def load_machine() -> Machine:
    """What is known of this machine; nothing where nothing was measured, or by another version of this software.

    Raises:
      FormatError: the file is damaged; it names the file, which may be removed.
    """
    here = fingerprint()
    path = _path(here)
    if path is None or not path.exists():
        return Machine(here)
    record = read_json(path)
    if not isinstance(record, Mapping) or record.get("schema") != MACHINE_SCHEMA or record.get("fingerprint") != here:
        return Machine(here)
    seconds = record.get("seconds")
    if not isinstance(seconds, Mapping) or not all(isinstance(x, int | float) and x >= 0 for x in seconds.values()):
        raise field_error(FormatError, str(path), "", "seconds", "an object of numbers >= 0", seconds, "remove the file to measure anew")
    topology = record.get("topology")
    return Machine(here, None if topology is None else Topology.from_json(topology, str(path)), dict(seconds))


def store_machine(machine: Machine) -> Path | None:
    """Writes the file atomically; None where nothing is kept (DOPPLER_MACHINE=off, or a folder that cannot be written)."""
    path = _path(machine.fingerprint)
    if path is None:
        return None
    try:
        topology = None if machine.topology is None else machine.topology.to_json()
        write_json(path, {"schema": MACHINE_SCHEMA, "fingerprint": dict(machine.fingerprint), "topology": topology,
                          "seconds": machine.seconds}, indent=1)
    except FormatError:
        return None
    return path


def _path(of: Mapping[str, object]) -> Path | None:
    """DOPPLER_MACHINE names the folder, or `off`; else it is in the user's cache."""
    folder = cache_folder("DOPPLER_MACHINE")
    return None if folder is None else folder / f"machine-{hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]}.json"
