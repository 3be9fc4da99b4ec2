"""What measured copies tell of a link: latency, bandwidth, and the time that they take from devices; copies between machines."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import tensorflow as tf
from scipy.optimize import nnls

from doppler_tf.schedule.refit import weighted_median
from runtime.calls import execute_on

# Float32 numbers of a copy: what latency, and what bandwidth decides.
LENGTHS = (1 << 10, 1 << 18, 1 << 20)
COPIES = 5


def copy_seconds(source: str, destination: str) -> dict[float, list[float]]:
    """Seconds of copies between two TensorFlow devices, by bytes; the first one of a size, which takes longer, does not count."""
    found = {}
    for length in LENGTHS:
        seconds = []
        for _ in range(COPIES + 1):
            with tf.device(source):
                tensor = tf.fill([length], 1.0)  # a new one: TensorFlow may remember where copies of one tensor are
            begun_s = perf_counter()
            execute_on(destination, "Identity", [tensor], ("T", tensor.dtype.as_datatype_enum))
            seconds.append(perf_counter() - begun_s)
        found[4.0 * length] = seconds[1:]
    return found


def fit_link(sizes_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Latency and bandwidth of seconds = latency + bytes / bandwidth, by weighted medians: a minority of wild points changes little.

    The slope is the median over all pairs of points (Theil and Sen), the latency that of what remains; the weights suppose that errors
    grow with the time itself. Where times do not grow with size the bandwidth is infinite; a latency is never negative.

    Args:
      sizes_bytes: different sizes; one alone tells nothing of the bandwidth.
      seconds: one positive time for each.

    Returns:
      Latency in seconds and bandwidth in bytes/s.
    """
    size, time = np.asarray(sizes_bytes, np.float64), np.asarray(seconds, np.float64)
    i, j = np.nonzero(size[:, None] < size[None, :])
    if not len(i):
        return float(np.median(time)), np.inf
    slope = weighted_median((time[j] - time[i]) / (size[j] - size[i]), (size[j] - size[i]) / np.hypot(time[i], time[j]))
    if slope <= 0:
        return float(np.median(time)), np.inf
    latency_s = weighted_median(time - slope * size, 1 / time)
    if latency_s < 0:
        return 0.0, float(np.median(size / time))
    return latency_s, 1 / slope


def fit_shares(longer_s: np.ndarray, beside_s: np.ndarray) -> np.ndarray:
    """float64 [C] in [0, 1]: the part of the seconds of transfers by which executions beside them took longer.

    (Least squares without negative figures: Lawson and Hanson, Solving Least Squares Problems, 1974.)

    Args:
      longer_s: float64 [n], how much longer each execution took than undisturbed.
      beside_s: float64 [n, C], the seconds of transfers of each sort beside it.
    """
    # A burst of other work counts for no more than the transfers could take.
    return np.minimum(nnls(beside_s, np.minimum(longer_s, beside_s.sum(axis=1)))[0], 1.0)
