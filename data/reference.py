"""Reference outputs of a program in NumPy: evaluated whole, or tile by tile from its graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from data.einsum_program import EinsumProgram
from data.numpy_kernels import run_kernel, run_op
from data.steps import View
from doppler_tf.errors import GraphError
from doppler_tf.graph.dataflow import DataflowGraph


def evaluate_program(program: EinsumProgram, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of the unsharded program by name. Each tensor is freed after its last reader."""
    known, last = dict(tensors), {}
    for at, step in enumerate(program.steps):
        last.update(dict.fromkeys(step.reads, at))
    last |= dict.fromkeys(program.outputs, len(program.steps))
    for at, step in enumerate(program.steps):
        if isinstance(step, View):
            known[step.name] = known[step.tensor][tuple(slice(start, stop) for start, stop in program.box(step))]
        else:
            known[step.name] = run_op(*program.kernel(step), [known[use.tensor] for use in step.operands])
        for tensor in step.reads:
            if last[tensor] == at:
                del known[tensor]
    return {name: known[name] for name in program.outputs}


def input_tiles(graph: DataflowGraph, tensors: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """The array of every input vertex, by vertex. Raises GraphError if a vertex has no kernel or its tensor is missing."""
    tiles = {}
    for v in np.flatnonzero(graph.is_input).tolist():
        kernel = graph.kernel[v]
        if kernel is None or kernel.params.get("tensor") not in tensors:
            raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)}: kernel: expected an input of one of {', '.join(tensors)}, "
                             f"got {None if kernel is None else kernel.params.get('tensor')!r}; make the graph with `workload`")
        tiles[v] = tensors[kernel.params["tensor"]][tuple(slice(start, stop) for start, stop in kernel.params["box"])]
    return tiles


def output_vertices(graph: DataflowGraph, names: Collection[str] | None = None) -> tuple[int, ...]:
    """The vertices that hold the program's outputs: those of these names, or all. Raises GraphError for a graph without `outputs`."""
    return tuple(graph.vertex_of[tile["vertex"]] for output in _outputs(graph, names).values() for tile in output["tiles"])


def assemble_outputs(graph: DataflowGraph, values: Mapping[int, np.ndarray], names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The program's whole outputs from the arrays of the output vertices.

    Args:
      values: by vertex; other vertices are ignored.
      names: of the outputs; None: all.
    """
    whole = {}
    for name, output in _outputs(graph, names).items():
        tiles = [(tile["box"], np.asarray(values[graph.vertex_of[tile["vertex"]]])) for tile in output["tiles"]]
        whole[name] = np.empty(output["shape"], tiles[0][1].dtype)
        for box, tile in tiles:
            whole[name][tuple(slice(start, stop) for start, stop in box)] = tile
    return whole


def execute_tiles(graph: DataflowGraph, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs a graph's kernels one after another and returns the program's whole outputs. Each tile is freed after its last reader.

    Raises:
      GraphError: a vertex has no kernel, or an input tensor is missing.
    """
    values = input_tiles(graph, tensors)
    keep = set(output_vertices(graph))
    readers = np.bincount(graph.sources, minlength=graph.num_vertices)
    for v in graph.topological_order.tolist():
        if graph.is_input[v]:
            continue
        kernel = graph.kernel[v]
        if kernel is None:
            raise GraphError(f"{graph.name}: vertex {graph.vertex_label(v)}: kernel: expected one, got none; only graphs made with "
                             f"`workload` can be executed")
        values[v] = run_kernel(kernel, [values[operand.vertex] for operand in kernel.operands])
        for u in graph.predecessors.vertex[graph.predecessors.ptr[v]:graph.predecessors.ptr[v + 1]].tolist():
            readers[u] -= 1
            if readers[u] == 0 and u not in keep:
                del values[u]
    return assemble_outputs(graph, values)


def relative_error(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    """The largest ||got - expected|| / ||expected|| over the outputs, with Frobenius norms in float64; NaN if a value is not finite.

    Where `expected` is 0, such as a slot of a weight that no gradient reaches, it is ||got||.
    """
    errors = [np.linalg.norm(np.subtract(got[name], whole, dtype=np.float64).ravel())
              / (np.linalg.norm(whole.astype(np.float64).ravel()) or 1.0) for name, whole in expected.items()]
    return float(np.max(errors))


def _outputs(graph: DataflowGraph, names: Collection[str] | None = None) -> Mapping:
    if "outputs" not in graph.attributes:
        raise GraphError(f"{graph.name}: graph: outputs: expected the tiles of the program's outputs, got none; only graphs made with "
                         f"`workload` can be executed")
    return {name: output for name, output in graph.attributes["outputs"].items() if names is None or name in names}
