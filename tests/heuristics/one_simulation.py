"""One simulation, compiled as the searches call it."""

from __future__ import annotations

import numpy as np

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.fastsim.prepared import makespan

NOTHING = np.empty(0)


@compiled
def simulated(devices, prepared, limit_s, tail, awaited, begun_s=NOTHING):
    return makespan(devices, prepared, limit_s, tail, awaited, begun_s)
