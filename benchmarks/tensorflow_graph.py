"""The yardstick of `runtime` and `machine`: TensorFlow's own executor on the same assignment."""

from runtime.tensorflow_graph import TensorFlowGraph

__all__ = ["TensorFlowGraph"]
