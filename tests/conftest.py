"""Hypothesis profiles: `ci` (the default) repeats itself exactly; `HYPOTHESIS_PROFILE=thorough` searches on. TensorFlow's devices."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("ci", max_examples=150, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("thorough", max_examples=10_000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collect_file(file_path, parent):
    """TensorFlow's devices are fixed by its first operation, which importing the agents' tests already is: made before either room."""
    if {"agents", "runtime"} & set(file_path.relative_to(parent.config.rootpath).parts):
        from runtime import prepare_devices

        prepare_devices(4)
