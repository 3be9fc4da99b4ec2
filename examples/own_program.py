"""An einsum program of your own: its training step is cut, placed on two devices, run for real, and checked against the uncut program.

Run from the repository root: .venv/bin/python -m examples.own_program
On the command line: doppler-tf workload examples/own_program.py:mixer --devices 2 --scale small --training --out mixer.json
"""

import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported

from data import EinsumProgram, Training, Workload, build_workload, contract, elementwise, normal, tensor_input
from doppler_tf import place
from doppler_tf.api.running import run


def program(sizes):
    """A mixer block: patches are mixed by one product, channels by two, each beside its input."""
    patches, channels, hidden = sizes["patches"], sizes["channels"], sizes["hidden"]
    return EinsumProgram(
        {"b": sizes["batch"], "p": patches, "q": patches, "c": channels, "h": hidden},
        {"x": tensor_input("b p c"), "between": tensor_input("p q", normal(patches**-0.5)),
         "up": tensor_input("c h", normal(channels**-0.5)), "down": tensor_input("h c", normal(hidden**-0.5))},
        (contract("mixed", "b p c, p q -> b q c", "x", "between"),
         elementwise("patch_sum", "add", "b p c, b p c -> b p c", "x", "mixed"),
         contract("wide", "b p c, c h -> b p h", "patch_sum", "up"),
         elementwise("active", "silu", "b p h -> b p h", "wide"),
         contract("narrow", "b p h, h c -> b p c", "active", "down"),
         elementwise("y", "add", "b p c, b p c -> b p c", "patch_sum", "narrow")))


def by_batch(program, num_devices):
    """Every expression has a part of the batch for each device. Without a tiling, EinDecomp cuts the program."""
    return {expression.name: {"b": num_devices} for expression in program.expressions}


# The sizes of --scale paper and small, the tiling of --tiling published, and the loss of --training; the inputs but `x` are weights.
mixer = Workload({"batch": 256, "patches": 196, "channels": 768, "hidden": 3072},
                 {"batch": 16, "patches": 64, "channels": 128, "hidden": 512},
                 program, by_batch, Training("mean_squared_error", "y", data=("x",)))


def main() -> None:
    graph = build_workload(f"{__file__}:mixer", 2, "small", optimizer="sgd")
    placed = place(graph, "cpu:2")
    done = run(graph, "cpu:2", placed.assignment)
    error = done.figures["relative_error"]
    print(f"{graph.name}: {len(graph.work_vertices)} vertices, simulated {1e3 * placed.makespan_s:.2f} ms")
    print(f"loss and new weights beside the uncut program's: relative error {error:.1e} ({'ok' if error <= 1e-5 else 'wrong'})")


if __name__ == "__main__":
    main()
