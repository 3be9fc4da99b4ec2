"""Frozen weights of captured models: a part of the kernels that use them, or tensors that kernels take like any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from doppler_tf.graph.dataflow import DataflowGraph, Kernel, Operand


def with_weights_as_operands(graph: DataflowGraph) -> DataflowGraph:
    """The graph in which kernels take their weights as operands, so that a device can drop and load them. Others stay as they are."""
    vertex = frozen_weights(graph)
    return replace(graph, kernel=tuple(_taking(kernel, vertex) for kernel in graph.kernel)) if vertex else graph


def frozen_weights(graph: DataflowGraph) -> dict[str, int]:
    """The input vertex of each frozen weight, by the name of its variable."""
    weights = graph.attributes.get("captured", {}).get("weights", ())
    shared = "batches" in graph.attributes  # they take the same
    return {x["variable"]: graph.vertex_of[f"shared/{x['vertex']}" if shared else x["vertex"]] for x in weights if x.get("frozen")}


def _taking(kernel: Kernel | None, vertex: Mapping[str, int]) -> Kernel | None:
    """Args: vertex: the input vertex of each frozen weight."""
    if kernel is None or not kernel.params.get("weights"):
        return kernel
    params = dict(kernel.params)
    weights = params.pop("weights")
    return replace(kernel, operands=(*kernel.operands, *(Operand(vertex[name]) for name in weights.values())),
                   params={**params, "inputs": [*params["inputs"], *weights]})
