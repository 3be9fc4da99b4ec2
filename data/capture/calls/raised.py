"""What TensorFlow raises while a function is captured becomes one line that names the operation and the user's line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

from doppler_tf.errors import ConfigError, UserError

# Files whose exceptions are TensorFlow's. What else is raised is a fault of ours and stays what it is.
_TENSORFLOW = re.compile(r"site-packages/(tensorflow|google/protobuf)/")
# How TensorFlow's messages name operations.
_NAMED = re.compile(r"\{\{node ([^}]+)\}\}|[Nn]ode:? '([^']+)'|Op<name=(\w+)|op: \"(\w+)\"|[Nn]ode \"?([\w./-]+)\"?")


@contextlib.contextmanager
def in_one_line(where: str, line_of: Callable[[str], str] = lambda name: "") -> Iterator[None]:
    """Raises ConfigError for whatever TensorFlow raises inside.

    Args:
      where: the function captured, as errors call it.
      line_of: the user's line that made an operation of this name, " (model.py:12)", or "".
    """
    try:
        yield
    except UserError:
        raise
    except RecursionError as error:
        raise ConfigError(f"{where}: expected a function whose calls end, got one too deep; write it as a loop") from error
    except Exception as error:
        if not _from_tensorflow(error):
            raise
        named = next((name for match in _NAMED.findall(str(error)) for name in match if name), "")
        operation = f"operation {named!r}{line_of(named)}: " if named else ""
        raise ConfigError(f"{where}: {operation}expected operations that TensorFlow can run on these inputs, got {reason(error)}; check "
                          "the shapes (--input, --batch), or mend the function") from error


def _from_tensorflow(error: Exception) -> bool:
    if isinstance(error, tf.errors.OpError):
        return True
    tb = error.__traceback__
    while tb.tb_next is not None:
        tb = tb.tb_next
    return _TENSORFLOW.search(str(Path(tb.tb_frame.f_code.co_filename))) is not None


def reason(error: BaseException) -> str:
    """The first telling line of what TensorFlow says, without repeating the operation's definition."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.split(r"; NodeDef:|\s*\[Op:", lines[0])[0][:300] if lines else type(error).__name__
