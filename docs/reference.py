"""docs/reference.md, the public names by room, made of signatures and docstrings: `python -m docs.reference` writes the page anew."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from doppler_tf.api.tensorflow import prepare_tensorflow
from doppler_tf.report.tables import markdown_table

PAGE = Path(__file__).with_name("reference.md")
ROOMS = ("doppler_tf", "data", "runtime", "agents")
# What public functions take and return, and who writes an executor needs, though the package roots do not name it.
BESIDE = {"doppler_tf": ("doppler_tf.api.calibration.Calibration", "doppler_tf.api.capturing.CapturedGraph",
                         "doppler_tf.api.comparison.comparing.Comparison", "doppler_tf.api.distribution.distributed.Distributed",
                         "doppler_tf.api.measuring.Measured", "doppler_tf.api.traces.Executed", "doppler_tf.graph.costs.CostModel",
                         "doppler_tf.schedule.executor.Executor", "doppler_tf.heuristics.problem.Problem", "doppler_tf.placement.Placement",
                         "doppler_tf.schedule.trace.Trace", "doppler_tf.schedule.validation.TraceReport")}
HEAD = """# Reference

The public names of the four rooms, their signatures and docstrings. `.venv/bin/python -m docs.reference` writes this page;
change the docstrings instead. [architecture.md](architecture.md) explains the words and how the parts work together,
[tutorial.md](tutorial.md) and [howto.md](howto.md) show them at work, [cli.md](cli.md) has the commands. Shapes: N vertices, M of them
not inputs, E edges, D devices, T transfers, B assignments or episodes.
"""
_WIDTH = 110
_SECTIONS = ("Args", "Attributes", "Returns", "Raises")
_ITEM = re.compile(r"  (\S[^:]*): (.*)")


def page() -> str:
    """The whole page."""
    prepare_tensorflow()  # before `runtime` imports TensorFlow
    text = "\n".join([HEAD, _contents(), *(line for room in ROOMS for line in _room(room))])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def names(room: str) -> dict[str, Any]:
    """What the page shows of a room: by the name to import it by."""
    module = import_module(room)
    found = {f"{room}.{name}": getattr(module, name) for name in sorted(module.__all__, key=str.lower)}
    beside = {name: getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in BESIDE.get(room, ())}
    return found | beside


def _contents() -> str:
    listed = {room: [name.rpartition(".")[2] for name in names(room)] for room in ROOMS}
    rows = [(f"[`{room}`](#{room})", ", ".join(f"`{name}`" for name in found)) for room, found in listed.items()]
    return markdown_table(("room", "names"), rows, words=True) + "\n"


def _room(room: str) -> Iterator[str]:
    yield from (f"## {room}", "", *_prose(import_module(room).__doc__, ()), "")
    for name, value in names(room).items():
        yield from (f"### {name}", "")
        if inspect.isclass(value):
            yield from _class(value)
        elif inspect.isfunction(value):
            yield from (*_signature(value.__name__, value), *_prose(value.__doc__, inspect.signature(value).parameters))
        elif isinstance(value, dict):
            kinds = sorted({type(one).__name__ for one in value.values()})
            yield f"A dict of `{' | '.join(kinds)}` by name: {', '.join(f'`{key}`' for key in value)}."
        else:
            yield f"`{value!r}`"
        yield ""


def _class(kind: type) -> Iterator[str]:
    is_protocol = getattr(kind, "_is_protocol", False)
    parameters = () if is_protocol else inspect.signature(kind).parameters
    if is_protocol:
        yield from ("A protocol: any class with these methods will do.", "")
    else:
        yield from _signature(kind.__name__, kind)
    yield from _prose(kind.__doc__, parameters)
    own = vars(kind)
    if not is_protocol and not dataclasses.is_dataclass(kind) and inspect.isfunction(own.get("__init__")):
        yield from ("", *_prose(own["__init__"].__doc__, parameters))
    for name, member in own.items():
        function = getattr(member, "__func__", member)
        if name.startswith("_") or not function.__doc__:
            continue
        if isinstance(function, property | cached_property):
            yield from ("", f"#### {kind.__name__}.{name}", "", *_prose(function.__doc__, ()))
        elif inspect.isfunction(function):
            yield from ("", f"#### {kind.__name__}.{name}()", "", *_signature(name, function),
                        *_prose(function.__doc__, inspect.signature(function).parameters))


def _signature(name: str, called: Any) -> Iterator[str]:
    """A block of Python: one line, or a line a parameter where that is too long."""
    signature = inspect.signature(called)
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    shown = [_parameter(p) for p in parameters]
    keyword = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if keyword is not None:
        shown.insert(keyword, "*")
    gives = "" if inspect.isclass(called) or signature.return_annotation is signature.empty else f" -> {_text(signature.return_annotation)}"
    line = f"{name}({', '.join(shown)}){gives}"
    yield "```python"
    yield from [line] if len(line) <= _WIDTH else [f"{name}(", *(f"    {one}," for one in shown), f"){gives}"]
    yield from ("```", "")


def _parameter(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_text(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{star}{parameter.name}{kind}"
    default = repr(parameter.default)
    default = "..." if default.startswith("<") else default
    return f"{parameter.name}{kind} = {default}" if kind else f"{parameter.name}={default}"


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _prose(doc: str | None, parameters: Any) -> Iterator[str]:
    """A docstring in Markdown: paragraphs as they are, sections as lists."""
    for paragraph in inspect.cleandoc(doc or "").split("\n\n"):
        first, *rest = paragraph.splitlines() or [""]
        head, colon, tail = first.partition(":")
        if head in _SECTIONS and colon and not tail:
            yield from (f"**{head}**", "", *_items(rest), "")
        elif head in _SECTIONS and colon:
            yield from (f"**{head}**", "", *_inline(" ".join([tail.strip(), *rest]), parameters), "")
        else:
            yield from (*map(_plain, [first, *rest]), "")


def _items(lines: list[str]) -> Iterator[str]:
    """The lines of a section: `  name: what`, each with lines that go on further indented; or a text."""
    for line in lines:
        found = _ITEM.fullmatch(line)
        if found and re.fullmatch(r"[\w., `*]+", found[1]):
            yield f"- {_code(found[1])}: {_plain(found[2])}"
        elif line.startswith("    "):
            yield f"  {_plain(line.strip())}"
        else:
            yield _plain(line.strip())


def _inline(text: str, parameters: Any) -> Iterator[str]:
    """`Args: a: what; b: what` as a list."""
    known = "|".join(map(re.escape, parameters)) or "$"
    parts = re.split(rf"(?:^|; )((?:{known})(?:, (?:{known}))*): ", text)
    if parts[0]:
        yield from (_plain(parts[0][0].upper() + parts[0][1:].rstrip(".") + "."), "")
    for name, what in zip(parts[1::2], parts[2::2], strict=True):
        yield f"- {_code(name)}: {_plain(what.rstrip('.'))}."


def _code(listed: str) -> str:
    return ", ".join(f"`{name.strip('` ')}`" for name in listed.split(","))


def _plain(text: str) -> str:
    """Text outside of backticks that Markdown would take for something else, escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<|\\])", r"\\\1", part) for part in parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE}: {sum(len(names(room)) for room in ROOMS)} names")
