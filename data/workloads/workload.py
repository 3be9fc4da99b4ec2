"""The parts of a workload: default sizes, a program of given sizes, and its tiling for a number of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from data.einsum_program import EinsumProgram
from data.tiling import Tiling
from data.training import Training


@dataclass(frozen=True)
class Workload:
    """A program with default sizes.

    Attributes:
      paper, small: the same options, at two scales.
      tiling: the published one for a number of devices, which never exceeds the sizes; None: EinDecomp cuts the program.
      training: what it is trained for; None: it has no training step.
      trained: the program that a training step differentiates, where it is another.
    """

    paper: Mapping[str, int]
    small: Mapping[str, int]
    program: Callable[[Mapping[str, int]], EinsumProgram]
    tiling: Callable[[EinsumProgram, int], Tiling] | None = None
    training: Training | None = None
    trained: Callable[[Mapping[str, int]], EinsumProgram] | None = None

    def forward(self, sizes: Mapping[str, int], training: bool) -> EinsumProgram:
        """The forward pass, alone or of a training step."""
        return ((training and self.trained) or self.program)(sizes)


def near_square(num_devices: int) -> tuple[int, int]:
    """The closest factors (a, b) of a number of devices, a >= b: (2, 2) for 4, (4, 2) for 8, (7, 1) for 7."""
    b = max(divisor for divisor in range(1, math.isqrt(num_devices) + 1) if num_devices % divisor == 0)
    return num_devices // b, b


def fitted(program: EinsumProgram, tiling: Tiling) -> Tiling:
    """The tiling with at most as many parts of each label as it has elements, for tiny sizes."""
    return {name: {label: min(count, program.sizes[label]) for label, count in parts.items()} for name, parts in tiling.items()}
