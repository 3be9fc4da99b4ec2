"""Graphs that do not fit in their devices' memory: what goes to the host and comes back, planned so that no order of execution runs out."""

from doppler_tf.offload.compiler import compile_offload

__all__ = ["compile_offload"]
