"""Products of test cases, of which quick tests run a diagonal."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest


def crossed(**values: Iterable) -> tuple[list[str], list]:
    """Arguments of `pytest.mark.parametrize`: all combinations. Those on a diagonal hold each value once; the others are thorough."""
    lists = [list(each) for each in values.values()]
    diagonal = [tuple(each[i % len(each)] for each in lists) for i in range(max(map(len, lists)))]
    return list(values), [pytest.param(*case, marks=() if case in diagonal else pytest.mark.thorough) for case in product(*lists)]
