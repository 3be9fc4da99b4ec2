"""The compiled simulator (Numba): makespans of many assignments at once, without traces."""

from doppler_tf.fastsim.simulator import FastSimulator

__all__ = ["FastSimulator"]
