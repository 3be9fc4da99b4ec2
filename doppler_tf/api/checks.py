"""The checks of `doctor`: versions, Keras, devices, threads, memory, disk. They use no library, because any may be missing."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from doppler_tf.api.tensorflow import import_quietly

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("numpy", "numba", "scipy", "msgspec", "networkx", "rich", "matplotlib", "ortools.sat.python.cp_model", "pymetis", "tensorflow",
           "tf_keras", "tensorflow_gnn", "tf_agents", "tensorflow_probability")
NEEDED_MEMORY, NEEDED_DISK = 2 << 30, 1 << 28
PIP = "python3 -m pip --python .venv/bin/python install"
_PYTHON = (3, 11)
_GIB = 1 << 30
_KERAS = "TF_USE_LEGACY_KERAS"
# Where Linux tells of NVIDIA's driver, of memory, and of the limits that the control group sets.
_DRIVER, _MEMINFO, _GROUP = Path("/proc/driver/nvidia/version"), Path("/proc/meminfo"), Path("/sys/fs/cgroup")


class Check(NamedTuple):
    """One check: what was found, and the remedy ("" if there is no problem)."""

    check: str
    found: str
    remedy: str = ""

    @property
    def state(self) -> str:
        """`ok` or `problem`."""
        return "problem" if self.remedy else "ok"


def summary(checks: Sequence[Check]) -> dict[str, Any]:
    """The command's result: the number of problems, and what each check found."""
    found = [{"check": check.check, "state": check.state, "found": check.found, "remedy": check.remedy or None} for check in checks]
    return {"problems": sum(check.state == "problem" for check in checks), "checks": found}


def all_checks() -> list[Check]:
    """All checks, in the order of the table."""
    keras, report = os.environ.get(_KERAS), probe()  # read first, because `compiled` imports `agents`, which sets the variable
    return [python(), versions(), imports(report), keras_mode(report, keras), devices(report), threads(report), memory(), compiled()]


def python() -> Check:
    """The version of Python."""
    found = f"{platform.python_version()}, {sys.executable}"
    return Check("Python", found, "" if sys.version_info[:2] == _PYTHON else "call it with Python 3.11; `make setup` puts that into .venv")


def versions(requirements: Path = ROOT / "requirements.txt") -> Check:
    """Installed versions of the libraries against the pinned ones."""
    if not requirements.exists():
        return Check("versions", f"not compared: {requirements} is missing")
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", requirements.read_text(encoding="utf-8"), re.MULTILINE))
    found = {name: _version(name) for name in pinned}
    wrong = [f"{name} {found[name] or 'is missing'} (pinned: {wanted})" for name, wanted in pinned.items() if found[name] != wanted]
    return Check("versions", ", ".join(wrong) or f"all {len(pinned)} libraries as pinned", _install() if wrong else "")


def probe(python: str = sys.executable, limit_s: float = 300) -> Mapping[str, Any]:
    """`errors` by module and TensorFlow's set-up, as `try_imports` reports them; another process runs it, as an import may crash."""
    environment = {**os.environ, _KERAS: "1", "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    try:
        done = subprocess.run([python, "-c", "from doppler_tf.api.checks import try_imports; try_imports()"], env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False)
        said, ended = done.stdout, f"ended its process with code {done.returncode}"
    except subprocess.TimeoutExpired as late:
        said, ended = (late.stdout or b"").decode(), f"took more than {limit_s} s"
    last = json.loads((said.splitlines() or ['{"trying": "the probe"}'])[-1])
    return last if "errors" in last else {"errors": {last["trying"]: ended}, "tensorflow": None}


def try_imports() -> None:
    """Prints one JSON object per line: each module before its import, then all errors and TensorFlow's set-up (None without TensorFlow).

    Output of the libraries goes to stderr.
    """
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        errors = {}
        for name in MODULES:
            print(json.dumps({"trying": name}), file=out, flush=True)
            errors[name] = _import_error(name)
        print(json.dumps({"errors": errors, "tensorflow": None if errors["tensorflow"] else _tensorflow()}), file=out)


def imports(report: Mapping[str, Any], root: Path = ROOT) -> Check:
    """Whether every library in MODULES can be imported; root: the folder whose `.venv` may hold them."""
    failed = [f"{name}: {error}" for name, error in report["errors"].items() if error]
    loaded = [name.partition(".")[0] for name in report["errors"]]
    return Check("imports", "; ".join(failed) or ", ".join(loaded), _install(root) if failed else "")


def keras_mode(report: Mapping[str, Any], given: str | None) -> Check:
    """Whether TensorFlow uses Keras 2, which TF-GNN and TF-Agents need. Args: given: the user's TF_USE_LEGACY_KERAS."""
    setting = f"{_KERAS} {'not set' if given is None else f'is {given!r}'}"
    if given not in (None, "1"):
        return Check("Keras", f"{setting}: Keras 3", f"unset {_KERAS} or set it to 1; `import agents` refuses Keras 3")
    if report["tensorflow"] is None:
        return Check("Keras", f"{setting}; not known without TensorFlow", "see imports")
    keras = report["tensorflow"]["keras"]
    return Check("Keras", f"{keras}; {setting}" + (", which the commands set" if given is None else ""),
                 "" if keras.startswith("tf_keras 2.") else f"install tf-keras: {_install()}")


def devices(report: Mapping[str, Any], driver: Path = _DRIVER) -> Check:
    """The devices that TensorFlow finds, and whether it misses a GPU; driver: a file that NVIDIA's driver makes."""
    found = report["tensorflow"]
    if found is None:
        return Check("devices", "not known without TensorFlow", "see imports")
    gpus, hidden = found["gpus"], os.environ.get("CUDA_VISIBLE_DEVICES")
    kinds = ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)) or "no GPU"
    missed = not gpus and hidden not in ("", "-1") and driver.exists()
    return Check("devices", f"{found['cpus']} CPU, {kinds}" + (", though this machine has NVIDIA's driver" if missed else "")
                 + (f"; CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""),
                 f"{PIP} 'tensorflow[and-cuda]=={_version('tensorflow')}'" if missed else "")


def threads(report: Mapping[str, Any], group: Path = _GROUP) -> Check:
    """The cores that the process may use, and the limits on its threads; group: the folder of the control group."""
    cores, quota = len(os.sched_getaffinity(0)), _quota(group)
    set_to = {f"TensorFlow's {name}": value for name, value in (report["tensorflow"] or {}).items() if name.endswith("_op") and value}
    set_to |= {name: value for name in ("OMP_NUM_THREADS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "NUMBA_NUM_THREADS")
               if (value := os.environ.get(name))}
    limits = ", ".join(f"{name} {value}" for name, value in set_to.items()) or "a thread for each"
    short = quota is not None and quota < cores
    return Check("threads", f"{cores} of {os.cpu_count()} cores, {limits}" + (f"; a quota of {quota:g} cores" if short else ""),
                 f"taskset -c 0-{max(1, round(quota)) - 1} before the command, so that threads do not outnumber cores" if short else "")


def memory(meminfo: Path = _MEMINFO, group: Path = _GROUP) -> Check:
    """Free memory against the memory that training needs; meminfo: of the machine; group: the folder of the control group."""
    free = _free_memory(meminfo, group)
    if free is None:
        return Check("memory", "unknown on this system")
    needed = f"{NEEDED_MEMORY / _GIB:.0f} GiB"
    return Check("memory", f"{free / _GIB:.1f} GiB free, {needed} needed",
                 "" if free >= NEEDED_MEMORY else f"end other processes until {needed} are free; `train --set batch=16` needs less")


def compiled() -> Check:
    """The compiled code on disk, and whether there is room for more."""
    cache = import_quietly("agents.compile_cache")
    numba = sum(1 for _ in (ROOT / "doppler_tf").rglob("*.nbi"))
    done, root = f"{numba} functions by Numba", cache.cache_root()
    if cache.keep_compiled() is None and "--tf_xla_persistent_cache_directory" in os.environ.get("TF_XLA_FLAGS", ""):
        return Check("compiled code", f"{done}; XLA's is in the folder that TF_XLA_FLAGS names")
    if root is None:
        return Check("compiled code", f"{done}; XLA's is not kept: DOPPLER_XLA_CACHE is off, or there is no home folder")
    programs = [path.stat().st_size for path in root.glob("*/xla_compile_cache__*")]
    existing = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{done}, {len(programs)} programs by XLA ({sum(programs) / 1e6:.0f} MB) in {root}, {free / _GIB:.1f} GiB free"
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        return Check("compiled code", f"{found}; {existing} cannot be written",
                     "DOPPLER_XLA_CACHE=FOLDER names another folder; without one every process compiles anew")
    return Check("compiled code", found, "" if free >= NEEDED_DISK else
                 f"free {NEEDED_DISK / _GIB:.2f} GiB there, or name another folder with DOPPLER_XLA_CACHE=FOLDER")


def _install(root: Path = ROOT) -> str:
    """How to get a missing library. Often it is installed for another Python."""
    ours = root / ".venv"
    if (ours / "bin/python").exists() and not ours.samefile(sys.prefix):
        return "call it with .venv/bin/python"
    return f"{PIP} -r requirements.txt, or remove .venv and run `make setup`"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _quota(group: Path) -> float | None:
    """The processor time that the control group grants, in cores; None: no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)  # "max" raises ValueError
    return None


def _free_memory(meminfo: Path, group: Path) -> int | None:
    """Bytes that the machine and the control group leave to this process."""
    known = []
    with contextlib.suppress(OSError, StopIteration):
        lines = meminfo.read_text().splitlines()
        known.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):
        known.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(known, default=None)


def _import_error(name: str) -> str | None:
    """The reason why a module cannot be imported, in one line; None if it can."""
    try:
        import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _tensorflow() -> dict:
    """TensorFlow's Keras, its devices, and its numbers of threads (0: one per core)."""
    import tensorflow as tf

    keras = tf.keras.Model.__module__.partition(".")[0]
    return {"keras": f"{keras} {import_module(keras).__version__}", "cpus": len(tf.config.list_physical_devices("CPU")),
            "gpus": [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
                     for gpu in tf.config.list_physical_devices("GPU")],
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads()}
