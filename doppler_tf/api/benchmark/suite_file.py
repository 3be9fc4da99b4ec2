"""Suites from TOML files or records, checked before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from msgspec import Meta

from data.workloads import NAMES
from doppler_tf.api.benchmark.suite import (
    DEFAULT_SEEDS,
    EXECUTES,
    LEARNED_METHODS,
    PLACES,
    SAMPLES,
    TRAINS,
    AtLeastOne,
    Dispatch,
    GraphSpec,
    MethodSpec,
    Override,
    Section,
    Suite,
)
from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import ConfigError, FormatError, field_error
from doppler_tf.heuristics import HEURISTICS
from doppler_tf.report.bench.paper import ROWS
from doppler_tf.schedule.assignment import AUTO
from doppler_tf.schema import check_fields

if TYPE_CHECKING:
    from agents.config import TrainConfig

DEFAULT_SAMPLES = 64


class _SuiteFields(TypedDict):
    title: str
    text: str
    seeds: AtLeastOne
    samples: AtLeastOne
    dispatch: Dispatch
    methods: Mapping[str, Any]
    graphs: Mapping[str, Any]
    sections: Annotated[list, Meta(min_length=1, description="at least one [[sections]]")]


def read_suite(path: Path, override: Override) -> Suite:
    """The suite in a TOML file. Raises FormatError, ConfigError: what is wrong, and where."""
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file; check the path") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path}: cannot be read: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"{path}: malformed TOML: {error}; mend the file") from None
    return suite_from_record(record, str(path), override)


def suite_from_record(record: Mapping[str, Any], where: str, override: Override) -> Suite:
    """The suite of a record: `title`, `text`, `seeds`, `samples`, `dispatch`, tables `methods` and `graphs` by name, array `sections`."""
    check_fields({"sections": [], **record}, _SuiteFields, FormatError, where, "")
    seeds = override.seeds or record.get("seeds", DEFAULT_SEEDS)
    samples = override.samples or record.get("samples", DEFAULT_SAMPLES)
    sections, methods = [], {}
    for i, part in enumerate(record["sections"]):
        check_fields(part, Section, FormatError, where, f"sections[{i}]")
        once = {name: tuple(dict.fromkeys(value)) for name, value in part.items() if isinstance(value, list)}
        sections.append(Section(**{**part, **once, "seeds": override.seeds or part.get("seeds", seeds)}))
    for label, table in record.get("methods", {}).items():
        check_fields(table, MethodSpec, FormatError, where, f"methods.{label}", without="label")
        methods[label] = MethodSpec(label, **{"method": label, **table})
    for section in sections:
        for label in section.methods:
            methods.setdefault(label, MethodSpec(label, label))
    for label in [other for method in methods.values() for other in method.others]:
        methods.setdefault(label, MethodSpec(label, label))
    if override.settings:
        methods = {label: replace(method, settings={**method.settings, **_allowed(method, override.settings)}) if method.does == TRAINS
                   else method for label, method in methods.items()}
    for method in methods.values():
        _check_method(method, methods, where)
    graphs = {name: _graph(name, table, where) for name, table in record.get("graphs", {}).items()}
    for name in [name for section in sections for name in section.graphs] + [m.init_graph for m in methods.values() if m.init_graph]:
        for part in name.split("+"):
            if part not in graphs:
                graphs[part] = _graph(part, {"workload": part}, where)
    for i, section in enumerate(sections):
        _check_section(section, where, f"sections[{i}]")
    return Suite(record.get("title", ""), record.get("text", ""), samples, record.get("dispatch", AUTO), methods, graphs, sections)


def _check_method(method: MethodSpec, methods: Mapping[str, MethodSpec], where: str) -> None:
    """Raises FormatError or ConfigError where a method is unknown, lacks what it needs, or leads back to itself."""
    what, does = f"methods.{method.label}", method.does
    known = ("auto", *HEURISTICS, *LEARNED_METHODS, "policy", "execute")
    if method.method not in known:
        raise field_error(FormatError, where, what, "method", f"one of {', '.join(known)}", method.method)
    usable = {PLACES: ("dispatch", "samples", "simulations", "seconds", "simulations_of", "seconds_of"),
              TRAINS: ("dispatch", "samples", "config", "settings", "init", "init_graph", "init_topology"),
              SAMPLES: ("dispatch", "samples", "init", "init_graph", "init_topology", "zero_shot", "policy"),
              EXECUTES: ("of", "executor", "repeats", "kernel_ms")}[does]
    for item in fields(MethodSpec):
        default = item.default_factory() if item.default_factory is not MISSING else item.default
        if item.name not in ("label", "method", *usable) and getattr(method, item.name) != default:
            raise field_error(FormatError, where, what, item.name, f"{', '.join(usable)} alone, as it {does}", getattr(method, item.name))
    needed = {SAMPLES: "init" if method.zero_shot else "policy", EXECUTES: "of"}.get(does)
    if needed and not getattr(method, needed):
        raise field_error(FormatError, where, what, needed, "a run folder" if needed == "policy" else "the label of another method", "")
    seen, others = {method.label}, list(method.others)
    while others:
        other = others.pop()
        if other == method.label:
            raise field_error(FormatError, where, what, "init, of, simulations_of, seconds_of", "methods that do not need this one", other)
        if other not in seen:
            seen.add(other)
            others.extend(methods[other].others)
    if method.init and methods[method.init].does != TRAINS:
        raise field_error(FormatError, where, what, "init", "the label of a method that trains", method.init)
    if does == TRAINS:
        train_config(method, 0, where)


def train_config(method: MethodSpec, seed: int, where: str) -> TrainConfig:
    """A method's TrainConfig. Raises ConfigError for a setting that is unknown or out of range."""
    config = import_quietly("agents.config")
    if method.config not in config.CONFIGS:
        raise field_error(ConfigError, where, f"methods.{method.label}", "config", f"one of {', '.join(config.CONFIGS)}", method.config)
    given = {"executor": "emulated", **method.settings, "method": method.method, "seed": seed}
    found = config.TrainConfig.from_json(given, f"{where}: methods.{method.label}: settings", config.CONFIGS[method.config])
    if found.executor != "emulated":
        raise field_error(ConfigError, where, f"methods.{method.label}", "settings.executor", "emulated", found.executor,
                          "`train` runs stage III on real kernels")
    return found


def _graph(name: str, table: Any, where: str) -> GraphSpec:
    what = f"graphs.{name}"
    check_fields(table, GraphSpec, FormatError, where, what, without="name")
    if bool(table.get("file")) == bool(table.get("workload")):
        raise field_error(FormatError, where, what, "workload or file", "one of the two", dict(table))
    if table.get("workload") and table["workload"] not in NAMES:
        raise field_error(FormatError, where, what, "workload", f"one of {', '.join(NAMES)}", table["workload"],
                          f"or say what it is in [graphs.{name}]")
    return GraphSpec(name, **table)


def _check_section(section: Section, where: str, what: str) -> None:
    given = {name: bool(getattr(section, name)) for name in ("methods", "graphs", "topologies")}
    if any(given.values()) and not all(given.values()):
        missing = next(name for name, there in given.items() if not there)
        raise field_error(FormatError, where, what, missing, "at least one, or prose alone", [])
    one_of = [("reference", [section.reference] if section.reference else [], section.methods), ("paper", section.paper, section.methods),
              ("paper", section.paper.values(), ROWS)]
    for name, found, valid in one_of:
        for value in found:
            if value not in valid:
                raise field_error(FormatError, where, what, name, f"one of {', '.join(valid)}", value)


def _allowed(method: MethodSpec, settings: Mapping[str, int]) -> Mapping[str, int]:
    """The episodes that the command line sets, without the stages that the method leaves out."""
    return {stage: count for stage, count in settings.items() if method.settings.get(stage) != 0}
