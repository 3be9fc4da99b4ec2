"""The contracts of the import law catch who breaks it, and the domain really runs without TensorFlow.

`make lint` tests that the law itself holds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import doppler_tf

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("doppler_tf", "data", "runtime", "agents")
PLANTED = {
    "doppler_tf/graph/dataflow.py": "import tensorflow",
    "doppler_tf/schedule/ranks.py": "import data.workloads",
    "doppler_tf/graph/costs.py": "from doppler_tf.schedule import simulator",
    "doppler_tf/graph/topology.py": "from doppler_tf.graph import costs",
    "doppler_tf/schedule/trace.py": "from doppler_tf.schedule import simulator",
    "doppler_tf/schedule/bounds.py": "import ray",
    "doppler_tf/report/__init__.py": "import doppler_tf.cli",
    "runtime/__init__.py": "import agents",
    "agents/__init__.py": "import data.workloads, runtime",
    "data/decompose.py": "import tensorflow",
}
BROKEN = {
    "The domain imports no TensorFlow and no other room": ["doppler_tf.graph.dataflow -> tensorflow",
                                                             "doppler_tf.schedule.ranks -> data.workloads"],
    "The runtime knows neither agents nor data": ["runtime -> agents"],
    "The agents know no runtime, and of data the dataset alone": ["agents -> runtime", "agents -> data.workloads"],
    "The data know the domain alone, and TensorFlow only in the dataset file and in data/capture": ["data.decompose -> tensorflow"],
    "Ray, which need not be installed, stands in one file": ["doppler_tf.schedule.bounds -> ray"],
    "Only __main__ imports the command line": ["doppler_tf.report"],
    "Within the domain imports go downwards": ["doppler_tf.graph.costs -> doppler_tf.schedule.simulator"],
    "Within doppler_tf/graph imports go downwards": ["doppler_tf.graph.topology -> doppler_tf.graph.costs"],
    "Within doppler_tf/schedule imports go downwards": ["doppler_tf.schedule.trace -> doppler_tf.schedule.simulator"],
}


def lint(folder: Path) -> tuple[int, str]:
    """Exit status and words of import-linter in a folder."""
    script = "from importlinter.cli import lint_imports_command as run; run(['--no-cache', '--no-logo'])"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, env={"COLUMNS": "200", "PATH": ""})
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path):
    """The rooms' source and the contracts, to be tampered with."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_law_catches_who_breaks_it(copy):
    for path, line in PLANTED.items():
        with (copy / path).open("a") as file:
            file.write(f"\n{line}\n")
    status, words = lint(copy)
    assert status == 1
    assert f"0 kept, {len(BROKEN)} broken" in words
    for contract, culprits in BROKEN.items():
        assert f"{contract} BROKEN" in words
        assert all(culprit in words for culprit in culprits), (culprits, words)


def python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_whole_domain_runs_without_tensorflow():
    script = ("import importlib, pkgutil, sys, doppler_tf\n"
              "names = [m.name for m in pkgutil.walk_packages(doppler_tf.__path__, 'doppler_tf.')]\n"
              "loaded = [importlib.import_module(n) for n in names if n.split('.')[1] not in ('cli', 'api', '__main__')]\n"
              "others = {'tensorflow', 'keras', 'tf_keras', 'tf_agents', 'data', 'runtime', 'agents'}\n"
              "print(len(loaded) > 20, sorted(others & set(sys.modules)))")
    assert python(script) == "True []"


def test_the_package_root_is_light_until_a_name_is_used():
    script = ("import sys, doppler_tf; before = {'numpy', 'numba', 'networkx'} & set(sys.modules); doppler_tf.simulate; "
              "print(sorted(before), 'numpy' in sys.modules)")
    assert python(script) == "[] True"


def test_every_public_name_is_there_and_no_other():
    assert {name: getattr(doppler_tf, name).__name__ for name in doppler_tf.__all__ if name != "__version__"} == {
        name: name for name in doppler_tf.__all__ if name != "__version__"}
    with pytest.raises(AttributeError, match="has no attribute 'simulator2'; public names: Assignment, "):
        doppler_tf.simulator2  # noqa: B018
