"""One simulation, compiled as the searches call it."""

from __future__ import annotations

from doppler_tf.fastsim.compiled import compiled
from doppler_tf.fastsim.prepared import makespan


@compiled
def simulated(devices, prepared, limit_s, tail, awaited):
    return makespan(devices, prepared, limit_s, tail, awaited)
