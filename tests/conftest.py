"""Quick and thorough tests, and TensorFlow's devices.

Without `--thorough`, tests that are marked `thorough` are left out, and Hypothesis draws the same examples each time.
With it, they run too, and Hypothesis draws many more examples, new ones each time.
"""

from __future__ import annotations

import contextlib
import gc
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

from doppler_tf.api.tensorflow import prepare_tensorflow
from doppler_tf.errors import ConfigError
from tests.browser import browser  # noqa: F401  (a fixture)

# What XLA compiles in tests stays beside pytest's own cache, not in the user's home.
os.environ.setdefault("DOPPLER_XLA_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "d" / "xla"))
# Nothing measured before decides what a test finds.
os.environ.setdefault("DOPPLER_MACHINE", "off")
prepare_tensorflow()  # before whichever test imports TensorFlow first

# These come first, one to each of two workers. Numba compiles searches for a minute and keeps them on disk: one worker does so while the
# other is busy with what needs none of it, else both would.
_FIRST = ("heuristics/test_search.py", "data/capture/test_cutting.py", "data/capture/test_odd_graphs.py")
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("default", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SLOW)
# A profile takes what it does not say from the one before.
settings.register_profile("thorough", max_examples=1_500, deadline=None, derandomize=False, suppress_health_check=_SLOW)


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="run what is marked thorough, too, and let Hypothesis draw many examples")


def pytest_collection_modifyitems(config, items):
    """Puts `_FIRST` first, and leaves out what is marked `thorough`, unless it is asked for."""
    first = [Path(__file__).parent / name for name in _FIRST]
    items.sort(key=lambda item: first.index(item.path) if item.path in first else len(first))
    if config.getoption("--thorough"):
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish(session):
    """Python's collector of garbage need not look through modules and tests again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_configure(config):
    """Chooses Hypothesis's profile, and TensorFlow's devices.

    The first operation fixes TensorFlow's devices, and importing TF-GNN already is one. If tests may come that run kernels, they are made
    here.
    """
    settings.load_profile("thorough" if config.getoption("--thorough") else "default")
    if config.getoption("dist", "no") != "no":
        return  # the workers run the tests
    asked = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    rooms = [Path(__file__).parent / name for name in ("runtime", "cli", "api")]
    if any(path == room or path in room.parents or room in path.parents for path in asked for room in rooms):
        from runtime import prepare_devices

        with contextlib.suppress(ConfigError):  # too late: the runtime tests' own fixture says so
            prepare_devices(4)
