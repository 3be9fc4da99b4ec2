"""What `bench` is asked to do: methods, graphs, and the sections of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DEFAULT_SEEDS = 3
# What a method does: places (heuristic or search), trains, samples a policy that is there, or executes what another has placed.
PLACES, TRAINS, SAMPLES, EXECUTES = "places", "trains", "samples", "executes"
# Names of what can be trained. The list stands in `agents`, which brings TensorFlow; a test holds the two equal.
LEARNED_METHODS = ("doppler", "sel_only", "plc_only", "joint", "per_step", "placeto", "gdp")


@dataclass(frozen=True)
class MethodSpec:
    """A row of the tables: a method and how much of it.

    Attributes:
      method: a heuristic's name or auto; a learned method's; `policy`; or `execute`. The label, where it is not given.
      samples: of a randomised heuristic or a policy, the best counts; None: the usual.
      simulations, seconds: the budget of a search; simulations_of, seconds_of: as many as that method spent on the same graph and seed.
      config, settings: of training, as `train --config` and `--set`.
      init, init_graph, init_topology: the method, and graph and topology if others, from whose policies training starts; graphs joined by
        `+` are trained on together.
      zero_shot: what `init` trained is sampled, without training on.
      policy: a run folder or checkpoint to be sampled.
      of, executor, repeats, kernel_ms: whose assignments are executed, how, the best of how many runs, and how long the mean kernel takes.
    """

    label: str
    method: str
    samples: int | None = None
    simulations: int | None = None
    seconds: float | None = None
    simulations_of: str = ""
    seconds_of: str = ""
    config: str = "default"
    settings: Mapping[str, Any] = field(default_factory=dict)
    init: str = ""
    init_graph: str = ""
    init_topology: str = ""
    zero_shot: bool = False
    policy: str = ""
    of: str = ""
    executor: str = "emulated"
    repeats: int = 5
    kernel_ms: float = 10.0

    @property
    def does(self) -> str:
        """PLACES, TRAINS, SAMPLES or EXECUTES."""
        if self.zero_shot or self.method == "policy":
            return SAMPLES
        return EXECUTES if self.method == "execute" else TRAINS if self.method in LEARNED_METHODS else PLACES

    @property
    def others(self) -> tuple[str, ...]:
        """Labels of the methods that must have been run before."""
        return tuple(dict.fromkeys(label for label in (self.init, self.of, self.simulations_of, self.seconds_of) if label))


@dataclass(frozen=True)
class GraphSpec:
    """A graph by name: a workload, tiled for so many devices (None: as the topology has), or a file."""

    name: str
    workload: str = ""
    scale: str = "paper"
    devices: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: prose, and what is compared in it.

    Attributes:
      layout: `matrix` (a row a method, columns by graph) or `long` (a row a graph and method, all figures).
      reference: the method that ratios are relative to; none: no ratios.
      paper: by method, the row of `report.paper.ROWS` that stands beside it.
      pictures: some of `bars`, `curves`, `gantt`.
    """

    title: str = ""
    text: str = ""
    methods: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    topologies: tuple[str, ...] = ()
    seeds: int = DEFAULT_SEEDS
    layout: str = "matrix"
    reference: str = ""
    paper: Mapping[str, str] = field(default_factory=dict)
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """All that one `bench` does."""

    title: str
    text: str
    samples: int
    methods: Mapping[str, MethodSpec]
    graphs: Mapping[str, GraphSpec]
    sections: Sequence[Section]


class Override(NamedTuple):
    """What the command line says instead of the suite; None: what the suite says."""

    seeds: int | None = None
    samples: int | None = None
    settings: Mapping[str, int] | None = None
