"""Latency and bandwidth of a link from measured copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from doppler_tf.refit import weighted_median


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
