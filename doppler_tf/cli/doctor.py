"""Check this machine and what is installed: versions, Keras, devices, threads, memory, disk; and say what to do about problems.

Any library may be missing, so the checks need none.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLE = "python -m doppler_tf doctor"
ROOT = Path(__file__).resolve().parents[2]
MODULES = ("numpy", "numba", "networkx", "rich", "matplotlib", "ortools.sat.python.cp_model", "pymetis", "tensorflow", "tf_keras",
           "tensorflow_gnn", "tf_agents", "tensorflow_probability")
NEEDED_MEMORY, NEEDED_DISK = 2 << 30, 1 << 28
PIP = "python3 -m pip --python .venv/bin/python install"
_PYTHON = (3, 11)
_GIB = 1 << 30
_KERAS = "TF_USE_LEGACY_KERAS"
# Where Linux tells of NVIDIA's driver, of memory, and of the limits that the control group sets.
_DRIVER, _MEMINFO, _GROUP = Path("/proc/driver/nvidia/version"), Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command, which has no options of its own."""


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Checks everything; what a check finds wrong is its result, no error."""
    from doppler_tf.cli.messages import note

    note("importing all libraries; this may take a minute")
    return summary(all_checks())


def render(result: dict[str, Any]) -> list:
    """A table of checks and one of remedies; plain lines where rich itself is missing."""
    checks = result["checks"]
    remedies = {check["check"]: check["remedy"] for check in checks if check["remedy"]}
    try:
        from doppler_tf.report.tables import facts, grid
    except ImportError:
        return [*(f"{check['check']}: {check['state']}: {check['found']}" for check in checks),
                *(f"remedy for {name}: {remedy}" for name, remedy in remedies.items())]
    table = grid("", ("check", "state", "found"), [(check["check"], check["state"], check["found"]) for check in checks], words=True)
    return [table, *([facts("remedies", remedies)] if remedies else [])]


def exit_code(result: Mapping[str, Any]) -> int:
    """1 where there is a problem."""
    return 1 if result["problems"] else 0


class Check(NamedTuple):
    """One thing looked at: what was found, and what to do where that is a problem ("" where all is well)."""

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
    """Every check, in the order in which they are shown."""
    keras, report = os.environ.get(_KERAS), probe()  # the variable as the user has it: `compiled` imports `agents`, which sets it
    return [python(), versions(), imports(report), keras_mode(report, keras), devices(report), threads(report), memory(), compiled()]


def python() -> Check:
    """Python itself."""
    found = f"{platform.python_version()}, {sys.executable}"
    return Check("Python", found, "" if sys.version_info[:2] == _PYTHON else "call it with Python 3.11; `make setup` puts that into .venv")


def versions(requirements: Path = ROOT / "requirements.txt") -> Check:
    """Installed libraries against those that are pinned."""
    if not requirements.exists():
        return Check("versions", f"not compared: {requirements} is not there")
    pinned = dict(re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", requirements.read_text(encoding="utf-8"), re.MULTILINE))
    found = {name: _version(name) for name in pinned}
    wrong = [f"{name} {found[name] or 'is missing'} (pinned: {wanted})" for name, wanted in pinned.items() if found[name] != wanted]
    return Check("versions", ", ".join(wrong) or f"all {len(pinned)} libraries as pinned", _install() if wrong else "")


def probe(python: str = sys.executable, limit_s: float = 300) -> Mapping[str, Any]:
    """What `try_imports` says in a process of its own, as an import may end the process: `errors` by module, and TensorFlow's set-up."""
    environment = {**os.environ, _KERAS: "1", "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    try:
        done = subprocess.run([python, "-c", "from doppler_tf.cli.doctor import try_imports; try_imports()"], env=environment,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False)
        said, ended = done.stdout, f"ended its process with code {done.returncode}"
    except subprocess.TimeoutExpired as late:
        said, ended = (late.stdout or b"").decode(), f"took more than {limit_s} s"
    last = json.loads((said.splitlines() or ['{"trying": "the probe"}'])[-1])
    return last if "errors" in last else {"errors": {last["trying"]: ended}, "tensorflow": None}


def try_imports() -> None:
    """Prints a JSON object a line: each module before it is imported, then all errors and TensorFlow's set-up (None without TensorFlow).

    What libraries print goes to stderr.
    """
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        errors = {}
        for name in MODULES:
            print(json.dumps({"trying": name}), file=out, flush=True)
            errors[name] = _import_error(name)
        print(json.dumps({"errors": errors, "tensorflow": None if errors["tensorflow"] else _tensorflow()}), file=out)


def imports(report: Mapping[str, Any], root: Path = ROOT) -> Check:
    """Whether the libraries that we use can be imported; root: the folder whose `.venv` may hold them."""
    failed = [f"{name}: {error}" for name, error in report["errors"].items() if error]
    loaded = [name.partition(".")[0] for name in report["errors"]]
    return Check("imports", "; ".join(failed) or ", ".join(loaded), _install(root) if failed else "")


def keras_mode(report: Mapping[str, Any], given: str | None) -> Check:
    """Whether TensorFlow uses Keras 2, as TF-GNN and TF-Agents need it; given: the user's TF_USE_LEGACY_KERAS."""
    setting = f"{_KERAS} {'not set' if given is None else f'is {given!r}'}"
    if given not in (None, "1"):
        return Check("Keras", f"{setting}: Keras 3", f"unset {_KERAS} or set it to 1; `import agents` refuses Keras 3")
    if report["tensorflow"] is None:
        return Check("Keras", f"{setting}; not known without TensorFlow", "see imports")
    keras = report["tensorflow"]["keras"]
    return Check("Keras", f"{keras}; {setting}" + (", which the commands set" if given is None else ""),
                 "" if keras.startswith("tf_keras 2.") else f"install tf-keras: {_install()}")


def devices(report: Mapping[str, Any], driver: Path = _DRIVER) -> Check:
    """What TensorFlow finds, and whether a GPU is there that it does not; driver: a file that is there where NVIDIA's driver is."""
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
    """Cores that the process may use, and what limits its threads; group: the control group's folder."""
    cores, quota = len(os.sched_getaffinity(0)), _quota(group)
    set_to = {f"TensorFlow's {name}": value for name, value in (report["tensorflow"] or {}).items() if name.endswith("_op") and value}
    set_to |= {name: value for name in ("OMP_NUM_THREADS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "NUMBA_NUM_THREADS")
               if (value := os.environ.get(name))}
    limits = ", ".join(f"{name} {value}" for name, value in set_to.items()) or "a thread for each"
    short = quota is not None and quota < cores
    return Check("threads", f"{cores} of {os.cpu_count()} cores, {limits}" + (f"; a quota of {quota:g} cores" if short else ""),
                 f"taskset -c 0-{max(1, round(quota)) - 1} before the command, so that threads do not outnumber cores" if short else "")


def memory(meminfo: Path = _MEMINFO, group: Path = _GROUP) -> Check:
    """Free memory against what a training needs; meminfo: the machine's; group: the control group's folder."""
    free = _free_memory(meminfo, group)
    if free is None:
        return Check("memory", "not known here")
    needed = f"{NEEDED_MEMORY / _GIB:.0f} GiB"
    return Check("memory", f"{free / _GIB:.1f} GiB free, {needed} needed",
                 "" if free >= NEEDED_MEMORY else f"end other processes until {needed} are free; `train --set batch=16` needs less")


def compiled() -> Check:
    """What is compiled on disk, and whether there is room for more."""
    from doppler_tf.cli.tensorflow import import_quietly

    cache = import_quietly("agents.compile_cache")
    numba = sum(1 for _ in (ROOT / "doppler_tf").rglob("*.nbi"))
    done, root = f"{numba} functions by Numba", cache.cache_root()
    if cache.keep_compiled() is None and "--tf_xla_persistent_cache_directory" in os.environ.get("TF_XLA_FLAGS", ""):
        return Check("compiled code", f"{done}; XLA's where TF_XLA_FLAGS say")
    if root is None:
        return Check("compiled code", f"{done}; XLA's is not kept: DOPPLER_XLA_CACHE is off, or there is no home folder")
    programs = [path.stat().st_size for path in root.glob("*/xla_compile_cache__*")]
    there = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(there).free
    found = f"{done}, {len(programs)} programs by XLA ({sum(programs) / 1e6:.0f} MB) in {root}, {free / _GIB:.1f} GiB free"
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        return Check("compiled code", f"{found}; {there} cannot be written",
                     "DOPPLER_XLA_CACHE=FOLDER names another folder; without one every process compiles anew")
    return Check("compiled code", found, "" if free >= NEEDED_DISK else
                 f"free {NEEDED_DISK / _GIB:.2f} GiB there, or name another folder with DOPPLER_XLA_CACHE=FOLDER")


def _install(root: Path = ROOT) -> str:
    """How to get what is missing: often it is there, for another Python."""
    ours = root / ".venv"
    if (ours / "bin/python").exists() and not ours.samefile(sys.prefix):
        return "call it with .venv/bin/python"
    return f"{PIP} -r requirements.txt, or remove .venv and run `make setup`"


def _version(name: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # takes a while, and every command imports this file

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _quota(group: Path) -> float | None:
    """How many cores' worth of time the control group grants; None: no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)  # `max` is no number
    return None


def _free_memory(meminfo: Path, group: Path) -> int | None:
    """Bytes that the machine, and the control group, leave to this process."""
    known = []
    with contextlib.suppress(OSError, StopIteration):
        lines = meminfo.read_text().splitlines()
        known.append(next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")))
    with contextlib.suppress(OSError, ValueError):
        known.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(known, default=None)


def _import_error(name: str) -> str | None:
    """Why a module cannot be imported, in one line; None where it can."""
    try:
        import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _tensorflow() -> dict:
    """Which Keras it uses, which devices it finds, how many threads it is told to take (0: one a core)."""
    import tensorflow as tf

    keras = tf.keras.Model.__module__.partition(".")[0]
    return {"keras": f"{keras} {import_module(keras).__version__}", "cpus": len(tf.config.list_physical_devices("CPU")),
            "gpus": [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
                     for gpu in tf.config.list_physical_devices("GPU")],
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads()}
