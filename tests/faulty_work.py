"""`agents.training.shards.work` in a process that dies. Worker processes import it by name."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from agents.training import shards


def killed(mark: Path, sent: bytes) -> Any:
    """As `work`, but the first process that is to learn dies."""
    if pickle.loads(sent).lesson is not None and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return shards.work(sent)
