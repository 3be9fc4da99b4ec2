"""ChainMM and FFNN, the two small programs of the paper (Yao et al., arXiv 2505.23131, experiments), with its tilings for 4 devices."""

from __future__ import annotations

from collections.abc import Mapping

from data.einsum_program import EinsumProgram, contract, elementwise, normal, reduction, tensor_input
from data.tiling import Tiling
from data.training import Training
from data.workloads.workload import Workload, fitted, near_square


def chainmm_program(sizes: Mapping[str, int]) -> EinsumProgram:
    """(A @ B) + C @ (D @ E), all n x n. Entries are scaled so that every product has unit variance."""
    n = sizes["n"]
    fill = normal(n**-0.5)
    return EinsumProgram(
        {"i": n, "j": n, "k": n},
        {name: tensor_input("i j", fill) for name in "ABCDE"},
        (contract("DE", "i k, k j -> i j", "D", "E"),
         contract("CDE", "i k, k j -> i j", "C", "DE"),
         contract("AB", "i k, k j -> i j", "A", "B"),
         elementwise("sum", "add", "i j, i j -> i j", "CDE", "AB")))


def chainmm_tiling(program: EinsumProgram, num_devices: int) -> Tiling:
    """4 blocks per device in every product; for 4 devices D 2x4, E 4x2, DE 2x2, A and C 4x2, B 2x2, the result 4x2."""
    a, b = near_square(num_devices)
    wide = {"i": 4, "k": a, "j": b}
    return fitted(program, {"DE": {"i": a, "k": 4, "j": b}, "CDE": wide, "AB": wide, "sum": {"i": 4, "j": b}})


def ffnn_program(sizes: Mapping[str, int]) -> EinsumProgram:
    """softmax(relu(X @ W1) @ W2) over a batch."""
    return EinsumProgram(
        {"b": sizes["batch"], "f": sizes["features"], "h": sizes["hidden"], "o": sizes["outputs"]},
        {"X": tensor_input("b f"),
         "W1": tensor_input("f h", normal(sizes["features"]**-0.5)),
         "W2": tensor_input("h o", normal(sizes["hidden"]**-0.5))},
        (contract("XW1", "b f, f h -> b h", "X", "W1"),
         elementwise("relu", "relu", "b h -> b h", "XW1"),
         contract("logits", "b h, h o -> b o", "relu", "W2"),
         reduction("max", "max", "b o -> b", "logits"),
         elementwise("shifted", "sub", "b o, b -> b o", "logits", "max"),
         elementwise("exp", "exp", "b o -> b o", "shifted"),
         reduction("total", "sum", "b o -> b", "exp"),
         elementwise("softmax", "div", "b o, b -> b o", "exp", "total")))


def ffnn_tiling(program: EinsumProgram, num_devices: int) -> Tiling:
    """The batch is cut by device, hidden in 4 parts, which the second product contracts. The softmax cuts the batch 4 times finer."""
    hidden, rows = {"b": num_devices, "h": 4}, {"b": 4 * num_devices}
    softmax = {name: rows for name in ("max", "shifted", "exp", "total", "softmax")}
    return fitted(program, {"XW1": hidden, "relu": hidden, "logits": hidden, **softmax})


CHAINMM = Workload({"n": 10_000}, {"n": 768}, chainmm_program, chainmm_tiling,
                   Training("mean_squared_error", "sum"))
FFNN = Workload({"batch": 2**15, "features": 2**5, "hidden": 2**16, "outputs": 2**5},
                {"batch": 4096, "features": 32, "hidden": 2048, "outputs": 32}, ffnn_program, ffnn_tiling,
                Training("softmax_cross_entropy", "logits", ("X",), ("max",)))
