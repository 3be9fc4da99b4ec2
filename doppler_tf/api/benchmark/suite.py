"""The suite that a `bench` runs: methods, graphs, and the sections of its page. Field types say which values a suite file may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from doppler_tf.schedule.assignment import AUTO, DISPATCH_RULES

DEFAULT_SEEDS = 3
# What a method does: it places (heuristic or search), trains, samples an existing policy, or executes another method's assignments.
PLACES, TRAINS, SAMPLES, EXECUTES = "places", "trains", "samples", "executes"
PICTURES = ("bars", "curves", "gantt", "tilings")
AtLeastOne = Annotated[int, Meta(ge=1, description="an integer >= 1")]
Positive = Annotated[float, Meta(gt=0, description="a number > 0")]
Names = Annotated[tuple[str, ...], Meta(description="a list of names")]
Dispatch = Literal[(AUTO, *DISPATCH_RULES)]
Pictures = Annotated[tuple[Literal[PICTURES], ...], Meta(description=f"a list of {', '.join(PICTURES)}")]
# The trained methods. `agents` has the same list, but imports TensorFlow; a test compares the two.
LEARNED_METHODS = ("doppler", "sel_only", "plc_only", "joint", "per_step", "placeto", "gdp")


@dataclass(frozen=True)
class MethodSpec:
    """A row of the tables: a method with its budget and settings.

    Attributes:
      method: a heuristic, `auto`, a learned method, `policy` or `execute`; by default the label.
      samples: of a randomised heuristic or a policy, of which the best counts; None: the default.
      simulations, seconds: the budget of a search. simulations_of, seconds_of: as much as that method spent on the same graph and seed.
      dispatch: the rule under which it places and trains, `auto`: the fastest for each assignment; None: the suite's.
      config, settings: of training, as `train --config` and `--set`.
      init, init_graph, init_topology: training starts from the policies of this method, on this graph and topology if given. `+` joins
        graphs that are trained on together.
      zero_shot: samples the policies of `init` without further training.
      policy: a run folder or checkpoint to sample.
      of, executor, repeats, kernel_ms: executes the assignments of the method `of` on this executor, takes the best of `repeats` runs, and
        scales time so that the mean kernel takes `kernel_ms`.
    """

    label: str
    method: str
    samples: AtLeastOne | None = None
    simulations: AtLeastOne | None = None
    seconds: Positive | None = None
    simulations_of: str = ""
    seconds_of: str = ""
    dispatch: Dispatch | None = None
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
        """Labels of the methods that must run before."""
        return tuple(dict.fromkeys(label for label in (self.init, self.of, self.simulations_of, self.seconds_of) if label))


@dataclass(frozen=True)
class GraphSpec:
    """A graph by name: a file, or a workload cut for `devices` (None: those of the topology) by a tiling of `data.TILINGS`.

    Attributes:
      optimizer: of its training step; "": the workload alone.
    """

    name: str
    workload: str = ""
    scale: str = "paper"
    devices: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    tiling: str = "published"
    pieces: int | None = None
    optimizer: str = ""
    file: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: text and a comparison.

    Attributes:
      layout: `matrix` (one row per method, columns by graph) or `long` (one row per graph and method, all figures).
      reference: the method to which ratios are relative; "": no ratios.
      paper: by method, the row of `report.paper.ROWS` to show beside it.
      pictures: some of `bars`, `curves`, `gantt`, `tilings`.
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
    """Everything that one `bench` runs."""

    title: str
    text: str
    samples: int
    dispatch: str
    methods: Mapping[str, MethodSpec]
    graphs: Mapping[str, GraphSpec]
    sections: Sequence[Section]


class Override(NamedTuple):
    """Command-line values that replace the suite's; None: the suite's value holds."""

    seeds: int | None = None
    samples: int | None = None
    settings: Mapping[str, int] | None = None
