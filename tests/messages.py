"""How tests look at errors: the class, one line, and what the line must say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from doppler_tf.errors import DopplerError


def refusal(error: type[DopplerError], call: Callable, *args, **kwargs) -> str:
    """The message with which `call` refuses; of exactly this class, and one line."""
    with pytest.raises(DopplerError) as caught:
        call(*args, **kwargs)
    assert type(caught.value) is error
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def assert_says(message: str, *fragments: str) -> None:
    """Every fragment stands in the message."""
    absent = [fragment for fragment in fragments if fragment not in message]
    assert not absent, f"{absent} not in {message!r}"
