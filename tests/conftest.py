"""Hypothesis profiles: `ci` (the default) repeats itself exactly; `HYPOTHESIS_PROFILE=thorough` searches on. TensorFlow's devices."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

from doppler_tf.cli.tensorflow import prepare_tensorflow
from doppler_tf.errors import ConfigError
from tests.browser import browser  # noqa: F401  (a fixture)

# What XLA compiles in tests stays beside pytest's own cache, not in the user's home.
os.environ.setdefault("DOPPLER_XLA_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "d" / "xla"))
# Nothing measured before decides what a test finds.
os.environ.setdefault("DOPPLER_MACHINE", "off")
prepare_tensorflow()  # before whichever test imports TensorFlow first

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("thorough", max_examples=10_000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config):
    """TensorFlow's devices are fixed by its first operation, which importing TF-GNN already is: if runtime tests may come, now."""
    rooms = [Path(__file__).parent / "runtime", *(Path(__file__).parent / "runtime").parents]
    asked = [Path(argument.partition("::")[0]).absolute() for argument in config.args]
    if any(path in rooms or rooms[0] in path.parents for path in asked):
        from runtime import prepare_devices

        with contextlib.suppress(ConfigError):  # too late: the runtime tests' own fixture says so
            prepare_devices(4)
