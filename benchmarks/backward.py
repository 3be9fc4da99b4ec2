"""The backward pass beside that of TensorFlow's tape, counted: `make bench NAME=backward`.

Matrix products count by their flops, all else by the elements that it reads or writes, whichever is more. A backward pass is what a
training step (small, SGD) has beyond the forward pass. TensorFlow's operations are those of its traced functions; what only names,
reshapes, transposes, cuts or makes constants counts on neither side.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.tables import finish, show
from benchmarks.training_step import tape_step
from data import WORKLOADS, build_workload, workload_program
from data.einsum_program import EinsumProgram
from data.steps import View
from doppler_tf.api.tensorflow import import_quietly

if TYPE_CHECKING:
    import tensorflow as tf

PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
NOTHING = {"Placeholder", "Const", "Identity", "IdentityN", "NoOp", "Reshape", "Shape", "ShapeN", "StopGradient", "BroadcastGradientArgs",
           "ExpandDims", "Squeeze", "Range", "Size", "Rank", "Pack", "Slice", "StridedSlice", "Fill", "ZerosLike", "OnesLike", "Transpose"}


def main() -> None:
    """Prints the table and the JSON line."""
    tensorflow, rows = import_quietly("tensorflow"), {}
    for name, workload in WORKLOADS.items():
        if workload.training is None:
            continue
        forward = workload.forward(workload.small, training=True)
        step = workload_program(build_workload(name, 2, "small", optimizer="sgd").attributes["workload"])
        (products, points), (forward_products, forward_points) = ours(step), ours(forward)
        theirs = their_points(tensorflow, name, workload)
        rows[name] = {"products_over_forward": products / forward_products - 1, "elements": points - forward_points,
                      "tape_elements": theirs, "elements_over_tape": (points - forward_points) / theirs}
    show("what a training step has beyond the forward pass", rows)
    finish(rows)


def ours(program: EinsumProgram) -> tuple[int, int]:
    """Flops of matrix products, and points of all other steps."""
    products = points = 0
    for step in program.steps:
        if isinstance(step, View):
            continue
        if step.kind == "matmul":
            products += program.flops(step)
        else:
            points += math.prod(program.sizes[label] for label in step.space)
    return products, points


def their_points(tensorflow, name: str, workload) -> int:
    """Points of the tape's step beyond the forward pass."""
    from doppler_tf.api.comparison.plain_tensorflow import computed

    trained, given = tape_step(name)
    forward = workload.forward(workload.small, training=True)
    return sum(sign * points_of(tensorflow.function(function).get_concrete_function(given)) for sign, function in (
        (1, trained), (-1, lambda tensors: computed(forward, tensors)[workload.training.of])))


def points_of(concrete: tf.types.experimental.ConcreteFunction) -> int:
    """Of all operations that its outputs need."""
    needed, waiting = set(), [tensor.op for tensor in concrete.outputs]
    while waiting:
        operation = waiting.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            waiting += [tensor.op for tensor in operation.inputs]
    found = 0
    for operation in concrete.graph.get_operations():
        if operation.name in needed and operation.type not in PRODUCTS | NOTHING:
            found += max(int(np.prod(tensor.shape.as_list())) for tensor in (*operation.inputs, *operation.outputs))
    return found


if __name__ == "__main__":
    main()
