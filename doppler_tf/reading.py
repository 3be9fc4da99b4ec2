"""Reading files whole: their text or their JSON, with clear errors."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from doppler_tf.errors import FormatError

_LOG = logging.getLogger(__name__)


def read_text(path: str | Path) -> str:
    """The text in a file, without a byte order mark. Raises FormatError: it is missing, unreadable or not UTF-8."""
    path = Path(path)
    _LOG.debug("reading %s", path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file; check the path") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path}: cannot be read: not UTF-8 text") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None


def read_json(path: str | Path, infinite: bool = False):
    """The JSON value in a file.

    Args:
      infinite: the literals Infinity and -Infinity, which JSON does not have and some tools write, are taken.

    Raises:
      FormatError: missing or unreadable file, malformed JSON (with line and column) or a NaN/Infinity literal.
    """
    def literal(name: str):
        if infinite and name != "NaN":
            return float(name)
        raise FormatError(f"{path}: expected finite numbers, got {name}; JSON has no such number, mend the file")

    text = read_text(path)
    try:
        return json.loads(text, parse_constant=literal)
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}: malformed JSON at line {error.lineno}, column {error.colno}: {error.msg}; mend the file") from None
    except ValueError as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    except RecursionError:
        raise FormatError(f"{path}: JSON nested too deeply; expected a flat document") from None
