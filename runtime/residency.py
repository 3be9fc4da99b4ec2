"""Bytes held by device, counted as they come and go."""

from __future__ import annotations

import numpy as np


class Residency:
    """What each device holds now, and the most it ever held. Not for two threads at once."""

    def __init__(self, held_bytes: np.ndarray):
        """Args: held_bytes: [D], what is there from the start."""
        self._held: list[float] = held_bytes.tolist()
        self._peak = list(self._held)

    def add(self, device: int, size_bytes: float) -> None:
        """A tensor comes, or room is reserved for it."""
        self._held[device] += size_bytes
        if self._held[device] > self._peak[device]:
            self._peak[device] = self._held[device]

    def remove(self, device: int, size_bytes: float) -> None:
        """A tensor goes."""
        self._held[device] -= size_bytes

    @property
    def peak_bytes(self) -> np.ndarray:
        """float64 [D]: the most that each device ever held."""
        return np.array(self._peak, np.float64)
