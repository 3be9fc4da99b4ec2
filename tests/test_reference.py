"""docs/reference.md is what docs/reference.py makes of the docstrings, and reads well."""

from __future__ import annotations

import re

import agents
import data
import doppler_tf
import runtime
from docs import reference

PAGE = reference.PAGE.read_text(encoding="utf-8")


class Lever:
    """Moves things.

    RULES: the `arm` is > 0, [D] < 2 * D.

    Attributes:
      arm, load: float64 [D], of each, and
        more of it.

    Raises DopplerError for nothing.
    """

    def __init__(self, arm: float, load: float = 1.0, *, name: str = "lever"):
        """Args: arm: in metres; of steel; load: in kg: <b>; name: any."""

    @property
    def work_s(self) -> float:
        """Seconds."""
        return 1.0

    def move(self, how_far_to_move_the_load_in_metres: float, how_fast_to_move_it_in_metres_per_second: float) -> list[float]:
        """Moves it.

        Returns:
          Where it was, at
          each step.

        Raises:
          ValueError, TypeError: `how` is no number.
        """

    def _hidden(self) -> None:
        """Nobody's business."""


SHOWN = r"""```python
Lever(arm: float, load: float = 1.0, *, name: str = 'lever')
```

Moves things.

RULES: the `arm` is > 0, [D] \< 2 \* D.

**Attributes**

- `arm`, `load`: float64 [D], of each, and
  more of it.

Raises DopplerError for nothing.

**Args**

- `arm`: in metres; of steel.
- `load`: in kg: \<b>.
- `name`: any.

#### Lever.work_s

Seconds.

#### Lever.move()

```python
move(
    how_far_to_move_the_load_in_metres: float,
    how_fast_to_move_it_in_metres_per_second: float,
) -> list[float]
```

Moves it.

**Returns**

Where it was, at
each step.

**Raises**

- `ValueError`, `TypeError`: `how` is no number.
"""


def test_the_page_is_up_to_date():
    assert reference.page() == PAGE, "python -m docs.reference writes it anew"


def test_every_public_name_has_a_chapter_that_says_something():
    chapters = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
    public = {f"{room.__name__}.{name}" for room in (doppler_tf, data, runtime, agents) for name in room.__all__}
    assert public <= set(chapters)
    assert not [name for name, text in chapters.items() if len(text.split()) < 1]
    listed = {name: value for room in reference.ROOMS for name, value in reference.names(room).items()}
    assert not [name for name, value in listed.items() if callable(value) and not value.__doc__]


def test_what_becomes_of_a_docstring():
    assert re.sub(r"\n{3,}", "\n\n", "\n".join(reference._class(Lever))).strip() == SHOWN.strip()
