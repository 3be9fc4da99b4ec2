"""Options that several commands share, and types that check a value while it is parsed."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from doppler_tf.errors import ConfigError

TOPOLOGIES = "local (this machine, measured once), p100x4, v100x8, h100x8, cpu:N, ideal:N or a topology file"
MOST_SAMPLES = 100_000
COSTS = ("given", "estimated")
RULES = ("fifo", "b_level", "order")
DISPATCH = "|".join(RULES)
ANY_DISPATCH = f"auto|{DISPATCH}"
Number = TypeVar("Number", int, float)
# Options that name a file to write; whatever else names a file is read.
WRITTEN = ("out", "topology_out", "trace", "gantt", "page")
_UNITS = {"": 1, "b": 1, **{f"{prefix}b": 1000**i for i, prefix in enumerate("kmgt", 1)},
          **{f"{prefix}ib": 1024**i for i, prefix in enumerate("kmgt", 1)}}


def natural(text: str) -> int:
    """An integer >= 0."""
    return _number(int, text, lambda value: value >= 0, "an integer >= 0")


def positive(text: str) -> int:
    """An integer >= 1."""
    return _number(int, text, lambda value: value >= 1, "an integer >= 1")


def sample_count(text: str) -> int:
    """An integer from 1 to 100,000; there is a limit because all samples stay in memory until the best is known."""
    positive(text)
    return _number(int, text, lambda value: value <= MOST_SAMPLES, f"an integer from 1 to {MOST_SAMPLES}")


def positive_real(text: str) -> float:
    """A finite number > 0."""
    return _number(float, text, lambda value: 0 < value < math.inf, "a number > 0")


def natural_real(text: str) -> float:
    """A finite number >= 0."""
    return 0.0 if text.strip() in ("0", "0.0") else positive_real(text)


def share(text: str) -> float:
    """A number above 0, up to 1."""
    return _number(float, text, lambda value: 0 < value <= 1, "a number above 0 and up to 1")


def rule(text: str) -> str:
    """A dispatch rule."""
    if text not in RULES:
        remedy = "; `place` chooses a rule and writes it into the assignment file: leave out --dispatch" if text == "auto" else ""
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(RULES)}, got {text!r}{remedy}")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """A type: one of `words`."""
    def checked(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(words)}, got {text!r}")
        return text

    return checked


any_rule = one_of("auto", *RULES)


def sizes(text: str) -> list[float]:
    """Bytes with units, written 2GB or 512MB,1.5GiB; a number alone is bytes."""
    found = [re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([a-z]*)\s*", part, re.IGNORECASE) for part in text.split(",")]
    if not all(each and each[2].lower() in _UNITS and 1 <= float(each[1]) * _UNITS[each[2].lower()] < math.inf for each in found):
        raise argparse.ArgumentTypeError(f"expected bytes >= 1 with a unit (kB, MB, GB, TB, KiB, MiB, GiB, TiB), such as 2GB, or several "
                                         f"separated by commas, got {text!r}")
    return [float(each[1]) * _UNITS[each[2].lower()] for each in found]


def key_value(text: str) -> tuple[str, str]:
    """A pair written key=value."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"expected key=value, got {text!r}")
    return key, value


def names(text: str) -> list[str]:
    """A list written a,b,c."""
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return list(dict.fromkeys(found))


def add_verbosity(parser: argparse.ArgumentParser, default: bool | str = argparse.SUPPRESS) -> None:
    """Adds -v and -q. Args: default: False for the main parser; a command's parser must not overwrite the main parser's values."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("-v", "--verbose", action="store_true", default=default,
                        help="log each step and its time on stderr, and what TensorFlow logs; after an error, show the traceback")
    either.add_argument("-q", "--quiet", action="store_true", default=default,
                        help="print only errors and the --json object: no tables, notes or progress bars")


def add_graph(parser: argparse.ArgumentParser) -> None:
    """The positional argument GRAPH."""
    parser.add_argument("graph", type=Path, metavar="GRAPH", help="graph file (doppler-graph/1)")


def add_topology(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """--topology, --memory and --costs."""
    parser.add_argument("--topology", required=required, metavar="T", help=TOPOLOGIES)
    add_memory(parser)
    parser.add_argument("--costs", type=one_of(*COSTS), default="given", metavar="|".join(COSTS),
                        help="estimated: by flops, bytes and the topology alone, as if the graph gave no times (default: given)")


def add_memory(parser: argparse.ArgumentParser) -> None:
    """--memory."""
    parser.add_argument("--memory", type=sizes, metavar="SIZE[,SIZE...]",
                        help="memory of each device of the topology, such as 2GB; or one for each device, separated by commas")


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """--cluster."""
    parser.add_argument("--cluster", type=Path, metavar="FILE",
                        help='devices of several machines: TensorFlow\'s ClusterSpec as JSON, {"worker": ["host:port", ...]}, each what '
                             '`worker` serves; with "chief": ["host:port"] this process takes part')


def add_assignment(parser: argparse.ArgumentParser, dispatch: bool = True) -> None:
    """--assignment and, with `dispatch`, --dispatch."""
    parser.add_argument("--assignment", type=Path, required=True, metavar="FILE",
                        help="assignment file, or a bare list of device indices in node order (null for inputs)")
    if dispatch:
        parser.add_argument("--dispatch", type=rule, metavar=DISPATCH,
                            help="rule that orders the queues (default: the assignment file's rule, else fifo)")


def add_batches(parser: argparse.ArgumentParser, repeat: bool = True) -> None:
    """--in-flight and, with `repeat`, --repeat."""
    if repeat:
        parser.add_argument("--repeat", type=positive, metavar="M", help="call the graph M times in one run, each time with another batch")
    parser.add_argument("--in-flight", type=positive, metavar="K",
                        help="work on K batches at once; each device starts the oldest batch's vertex first"
                             + (" (default: 1)" if repeat else ""))


def add_pictures(parser: argparse.ArgumentParser, trace: bool = True) -> None:
    """--gantt and, with `trace`, --trace."""
    if trace:
        parser.add_argument("--trace", type=output_file, metavar="OUT.json", help="write the trace, for ui.perfetto.dev and `trace`")
    parser.add_argument("--gantt", type=output_file, metavar="OUT.png", help="write a picture of what ran where and when")


def add_workers(parser: argparse.ArgumentParser, what: str) -> None:
    """--jobs and --ray. Args: what: the tasks are, in the plural."""
    parser.add_argument("--jobs", type=positive, metavar="J",
                        help=f"do J {what} at a time, in worker processes (default: 1, in this process; with --ray: one for each core)")
    parser.add_argument("--ray", metavar="local|ADDRESS",
                        help="worker processes of Ray on this machine (the default with --jobs 2 or more), or on the cluster at HOST:PORT")


def output_file(text: str) -> Path:
    """A file to write. Raises FormatError if it cannot be written."""
    from doppler_tf.formats.files import check_writable

    return check_writable(text)


def refuse_overwriting(args: argparse.Namespace) -> None:
    """Raises ConfigError where a command would write over a file that it reads, or two results into one file."""
    read = [path.resolve() for name, value in vars(args).items() if name not in WRITTEN for path in _files(value)]
    taken: dict[Path, str] = {}
    for name in WRITTEN:
        value = getattr(args, name, None)
        if value is None:
            continue
        option, path = f"--{name.replace('_', '-')}", Path(value).resolve()
        if path.exists() and not path.is_file():  # /dev/null takes all there is
            continue
        if path in read and path.exists():
            raise ConfigError(f"{option} {value}: expected another file than those that are read, got one of them; choose another name")
        if path in taken:
            raise ConfigError(f"{option} {value}: expected a file of its own, got that of {taken[path]}; choose another name")
        taken[path] = option


def _files(value: object) -> Iterator[Path]:
    """What an option may name: a file, several, or a function in a file."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str | Path) and str(each):
            yield from (Path(text) for text in (str(each), str(each).rpartition(":")[0]) if text)


def _number(kind: Callable[[str], Number], text: str, fits: Callable[[Number], bool], expected: str) -> Number:
    with contextlib.suppress(ValueError):
        if fits(value := kind(text)):
            return value
    raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
