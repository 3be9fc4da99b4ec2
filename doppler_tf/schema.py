"""Checks values from outside against types. A value of another type is refused with a message in the form of `field_error`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Mapping
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import ValidationError, convert

from doppler_tf.errors import ConfigError, DopplerError, field_error

_WORDS = {str: "a string", int: "an integer", float: "a number", bool: "true or false", Mapping: "names with values"}


def is_of(value: Any, kind: Any) -> bool:
    """Whether a value is of a type. Integers are numbers; booleans are not."""
    try:
        convert(float(value) if isinstance(value, float) else value, kind)  # msgspec takes NumPy's float64 for no float
    except (ValidationError, UnicodeEncodeError):  # a Literal meets half of a surrogate pair with the second
        return False
    return True


def check(value: Any, kind: Any, error: type[DopplerError], where: str, what: str, field: str) -> None:
    """Raises `error` unless `value` is of the type `kind`. The message quotes the type's `Meta(description=...)` if it has one."""
    if not is_of(value, kind):
        raise field_error(error, where, what, field, _expected(kind), value)


def check_fields(record: Any, kind: type, error: type[DopplerError], where: str, what: str, without: str = "") -> None:
    """Raises `error` unless `record` holds fields of the class `kind`, each of its type.

    Args:
      what: the part of the source, "" for the whole.
      without: a field of the class that a record must not have.
    """
    if not isinstance(record, Mapping):
        raise field_error(error, where, "", what, _WORDS[Mapping], record)
    types = {name: field for name, field in _fields(kind).items() if name != without}
    for name, value in record.items():
        if name not in types:
            meant = field_meant(name, types)
            remedy = f"{meant} is probably meant" if meant else ""
            raise field_error(error, where, what, name, f"one of {', '.join(types)}", value, remedy)
        check(value, types[name], error, where, what, name)


def check_integer(value: Any, least: int, where: str, field: str) -> None:
    """Raises ConfigError unless an argument of a function is an integer of at least `least`. Args: where: the function's name."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise field_error(ConfigError, where, "", field, f"an integer >= {least}", value)


def check_budget(value: Any, where: str) -> None:
    """Raises ConfigError unless `budget_s` is a number of seconds, or None."""
    if value is not None and not (isinstance(value, Real) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max):
        raise field_error(ConfigError, where, "", "budget_s", "a finite number of seconds >= 0 or None", value)


def refuse_slips(record: Mapping, known: Collection[str], error: type[DopplerError], where: str, before: str = "") -> None:
    """Raises `error` for a name in the record that is nearly one of `known`. Args: before: stands before the name in the message."""
    for name, value in record.items():
        meant = None if name in known else field_meant(name, known)
        if meant is not None:
            raise field_error(error, where, "", f"{before}{name}", f"the field {meant}", value, "rename it")


def field_meant(name: object, known: Collection[str]) -> str | None:
    """The field that a name nearly is: it differs in case, in separators, or in a letter or two; None if it is like none."""
    if not isinstance(name, str):
        return None
    flat = _letters(name)
    for field in known:
        other = _letters(field)
        swapped = [other[:k] + other[k + 1] + other[k] + other[k + 2:] for k in range(len(other) - 1)]
        if flat == other or flat in swapped:
            return field
    return next(iter(difflib.get_close_matches(name.lower(), [field for field in known if len(field) > 2], 1, 0.8)), None)


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


@cache
def _fields(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _expected(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return parts[1].description
    if origin is Literal:
        return " or ".join(parts)
    if origin in (Union, UnionType):
        return " or ".join(_expected(part) for part in parts if part is not NoneType)
    return _WORDS[origin or kind]
