"""The input of `bench`: methods, graphs, and the sections of its page. Field types say which values a suite file may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

DEFAULT_SEEDS = 3
PICTURES = ("bars", "curves", "gantt")
AtLeastOne = Annotated[int, Meta(ge=1, description="an integer >= 1")]
Positive = Annotated[float, Meta(gt=0, description="a number > 0")]
Names = Annotated[tuple[str, ...], Meta(description="a list of names")]
Pictures = Annotated[tuple[Literal[PICTURES], ...], Meta(description=f"a list of {', '.join(PICTURES)}")]
# The kinds of methods: a heuristic or search places; others train, sample an existing policy, or execute assignments of another method.
PLACES, TRAINS, SAMPLES, EXECUTES = "places", "trains", "samples", "executes"
# Methods that can be trained, as in `agents.config`, whose import brings TensorFlow. A test compares the two lists.
LEARNED_METHODS = ("doppler", "sel_only", "plc_only", "joint", "per_step", "placeto", "gdp")


@dataclass(frozen=True)
class MethodSpec:
    """A row of the tables: a method and how much of it.

    Attributes:
      method: the name of a heuristic or of a learned method, `auto`, `policy` or `execute`. The default is the label.
      samples: number of assignments that a randomised heuristic or a policy draws; the best one counts. None: the default
        of the heuristic or suite.
      simulations, seconds: the budget of a search.
      simulations_of, seconds_of: a method that spent the budget, on the same graph with the same seed.
      config, settings: of training, like `train --config` and `--set`.
      init: the method whose trained policies are the start of training.
      init_graph, init_topology: where `init` was trained, if elsewhere. Graphs joined by `+` are trained on together.
      zero_shot: the policies of `init` are sampled without further training.
      policy: a run folder or checkpoint whose policy is sampled.
      of, executor: the method whose assignments are executed, and the kind of devices.
      repeats, kernel_ms: number of runs, of which the fastest counts; milliseconds of the mean kernel.
    """

    label: str
    method: str
    samples: AtLeastOne | None = None
    simulations: AtLeastOne | None = None
    seconds: Positive | None = None
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
    executor: Literal["emulated", "synchronous"] = "emulated"
    repeats: AtLeastOne = 5
    kernel_ms: Positive = 10.0

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
    """A graph by name: a file, or a workload tiled for a number of devices (None: the number in the topology)."""

    name: str
    workload: str = ""
    scale: str = "paper"
    devices: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: prose and a comparison.

    Attributes:
      layout: `matrix` (a row a method, columns by graph) or `long` (a row a graph and method, all figures).
      reference: the method that ratios are relative to; "": no ratios.
      paper: by method, the row of `report.paper.ROWS` shown beside it.
      pictures: some of `bars`, `curves`, `gantt`.
    """

    title: str = ""
    text: str = ""
    methods: Names = ()
    graphs: Names = ()
    topologies: Names = ()
    seeds: AtLeastOne = DEFAULT_SEEDS
    layout: Literal["matrix", "long"] = "matrix"
    reference: str = ""
    paper: Mapping[str, str] = field(default_factory=dict)
    pictures: Pictures = ()


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
    """Values of the command line that replace those of the suite; None: the suite's value stays."""

    seeds: int | None = None
    samples: int | None = None
    settings: Mapping[str, int] | None = None
