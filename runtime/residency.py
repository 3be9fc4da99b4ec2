"""Bytes held by device, counted as they come and go."""

from __future__ import annotations

import numpy as np


class Residency:
    """The bytes that each device holds now, and the most that it ever held. Not safe for several threads."""

    def __init__(self, held_bytes: np.ndarray):
        """Args: held_bytes: [D], held at the start."""
        self._held: list[float] = held_bytes.tolist()
        self._peak = list(self._held)

    def add(self, device: int, size_bytes: float) -> None:
        """Adds a tensor, or reserves memory for it."""
        self._held[device] += size_bytes
        if self._held[device] > self._peak[device]:
            self._peak[device] = self._held[device]

    def remove(self, device: int, size_bytes: float) -> None:
        """Removes a tensor."""
        self._held[device] -= size_bytes

    @property
    def peak_bytes(self) -> np.ndarray:
        """float64 [D]: the most that each device ever held."""
        return np.array(self._peak, np.float64)
