"""Whether variables that were frozen have been changed since: samples of their values are compared now and then."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping
from time import monotonic

import numpy as np
import tensorflow as tf

# Elements of each variable that are compared, and seconds between two looks.
_ELEMENTS, _BETWEEN_S = 16, 1.0


class Fingerprints:
    """Samples of the variables that a function holds."""

    def __init__(self, handles: Mapping[str, tf.Tensor], updates: Collection[str]):
        """Args: handles: resources of variables by name; updates: those that the function updates itself, which do not count."""
        self._handles = {name: handle for name, handle in handles.items() if name not in updates}
        self._samples, self._looked_s = self._read(), -math.inf

    def check(self, function: str) -> None:
        """Warns once where a variable has changed; looks at the first call, and then at most once a second.

        Args: function: its name, for people.
        """
        if self._samples and monotonic() - self._looked_s >= _BETWEEN_S:
            found, self._looked_s = self._read(), monotonic()
            changed = next((name for name, sample in self._samples.items() if found.get(name) not in (None, sample)), None)
            if changed is not None:
                self._samples = {}
                warnings.warn(f"{function}: variable {changed!r} has changed since the function was distributed, which works with the "
                              "values of then; distribute it again, or give what changes as an argument", stacklevel=4)

    def _read(self) -> dict[str, bytes]:
        samples = {}
        for name, handle in self._handles.items():
            try:
                # `numpy()` would copy it all.
                value = np.asarray(tf.raw_ops.ReadVariableOp(resource=handle, dtype=handle._handle_data.shape_and_type[0].dtype)).ravel()
            except (tf.errors.OpError, AttributeError):  # a variable that is gone does not change
                continue
            samples[name] = value[np.linspace(0, max(value.size - 1, 0), min(_ELEMENTS, value.size)).astype(int)].tobytes()
        return samples
