"""The simulator's rules compiled (Numba): makespans of many assignments at once, no trace."""

from doppler_tf.fastsim.simulator import FastSimulator

__all__ = ["FastSimulator"]
