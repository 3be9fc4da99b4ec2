"""Python files of the user's: what `file.py:NAME` names, and errors of their code in one line."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from doppler_tf.errors import ConfigError, FormatError, UserError, field_error

IN_FILE = re.compile(r"(.+\.py):([\w.]+)")
# Files whose lines are not the user's.
LIBRARIES = re.compile(r"site-packages/(tensorflow|tf_keras|keras|tf_agents|tensorflow_\w+)/|lib/python3\.\d+/\w+\.py|<|"
                       rf"__autograph_generated_file|{re.escape(str(Path(__file__).parents[1]))}/(agents|data|doppler_tf|runtime)/")


def run_file(path: Path) -> ModuleType:
    """Runs a Python file as a module; it finds its neighbours.

    Raises:
      FormatError: no such file. UserError: what its code raises.
    """
    if not path.exists():
        raise FormatError(f"{path}: no such file; check the path")
    spec = importlib.util.spec_from_file_location(f"captured_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with user_code(str(path), "a module that can be imported"):
            # Python's cache of compiled files takes one that was changed within a second for the one before.
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def attribute_of(module: ModuleType, name: str, path: Path, what: str, is_one: Callable[[Any], bool]) -> Any:
    """What a name, or names joined by dots, stand for in a module. Args: what, is_one: what is listed if there is no such name."""
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = [key for key, value in vars(module).items() if is_one(value) and not key.startswith("_")]
            raise field_error(ConfigError, str(path), "", what, f"one of {', '.join(known[:10]) or f'none: the file has no {what}'}", name)
        found = getattr(found, part)
    return found


@contextmanager
def user_code(where: str, expected: str) -> Iterator[None]:
    """Errors of the code inside name the file and the user's line. Args: where, expected: of the message."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{where}: {error}{raised_at(error)}") from error
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ConfigError(f"{where}: expected {expected}, got {type(error).__name__}: {error}{raised_at(error)}; mend it") from error


def raised_at(error: Exception) -> str:
    """The innermost line of the user's that an exception went through, also where AutoGraph or Keras have rewritten the message."""
    lines, tb = [], error.__traceback__
    while tb is not None:
        lines.append((tb.tb_frame.f_code.co_filename, tb.tb_lineno))
        tb = tb.tb_next
    lines += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', str(error))]
    mine = [(file, line) for file, line in lines if not LIBRARIES.search(file)]
    return f" ({Path(mine[-1][0]).name}:{mine[-1][1]})" if mine else ""
