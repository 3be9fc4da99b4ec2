"""Every setting of a training run, checked, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from agents.episodes.episode import DEVICE_FEATURES
from doppler_tf.errors import CheckpointError, ConfigError, field_error
from doppler_tf.formats.files import read_json
from doppler_tf.schedule.assignment import AUTO, DISPATCH_RULES
from doppler_tf.schema import check_fields

RUN_SCHEMA = "doppler-run/1"
TEACHERS = ("critical_path", "annealing")
METHOD_NAMES = ("doppler", "sel_only", "plc_only", "joint", "per_step", "placeto", "gdp")
_MOST = 2**31 - 1


def _whole(least: int, most: int = _MOST) -> Meta:
    return Meta(ge=least, le=most, description=f"an integer from {least} to {most}")


Count, AtLeastOne, Batch = Annotated[int, _whole(0)], Annotated[int, _whole(1)], Annotated[int, _whole(1, 1 << 16)]
Number = Annotated[float, Meta(ge=0, le=_MOST, description=f"a number from 0 to {_MOST}")]
TopologyName = Annotated[str, Meta(description="the name or file of a topology")]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the three stages, the same for every graph.

    Attributes:
      method: which policies are trained, a key of `methods.METHODS`; all settings below mean the same for each.
      teacher: `critical_path`; or `annealing`: stage II also begins with an annealed assignment as the best episode.
      imitation, simulated, real: episodes by stage (stage I: teacher episodes; III: all runs of a graph on the executor).
      real_minutes: stage III ends after this many minutes or `real` runs, whichever comes first; 0: no such limit.
      batch: sampled episodes an update; for each graph a greedy episode is run with them, which is reported and not learned from.
      real_batch: runs of each graph between updates in stage III; real_updates: simulated updates after each of these.
      learning_rate: of Adam, one optimizer for each policy.
      mutations: the number of choices in which a sampled episode differs from the greedy one at the start of stages II and III; it falls to
        one. The temperatures of the policies are adjusted to it; 0: they stay at 1.
      entropy: weight of the entropy bonus at the start of stages II and III where `mutations` is 0; falls to zero linearly over the stage.
      elite: weight of the likelihood of the best episode so far of each graph (self-imitation) at the start of stages II and III, rises to
        one; 0: plain REINFORCE.
      polish: simulations of hill climbing in each update of stages II and III, from the best sampled episode of each graph; what it finds
        becomes the best episode if it is better; 0: none.
      clip: largest norm of a policy's gradient.
      hidden, rounds: width of the layers, rounds of message passing.
      identity: random features tell vertices and devices with equal features apart; without them a policy transfers better to other graphs.
      features: device features of PLC and of the joint policy: `relational`, or `paper` (the paper's five); Placeto and GDP have none.
      checkpoint_every: updates between checkpoints; keep: how many of the last are kept.
      executor, time_scale: of stage III, stored so that a resumed run uses the same ones.
      emulate: the true topology of emulated devices; "": the topology of the plan.
      dispatch: the rule under which episodes are simulated and run. `auto`: `order`, so that SEL's order is the priority; of the best
        assignments the fastest rule is kept.
      seed: of all random numbers.
    """

    method: Literal[METHOD_NAMES] = "doppler"
    teacher: Literal[TEACHERS] = "critical_path"
    imitation: Count = 256
    simulated: Count = 25600
    real: Count = 0
    real_minutes: Number = 0.0
    batch: Batch = 16
    real_batch: Batch = 16
    real_updates: Count = 64
    learning_rate: Number = 5e-3
    mutations: Number = 15.0
    entropy: Number = 0.01
    elite: Number = 0.1
    polish: Count = 1000
    clip: Number = 1.0
    hidden: Annotated[int, _whole(1, 4096)] = 64
    rounds: Annotated[int, _whole(1, 64)] = 4
    identity: bool = True
    features: Literal[tuple(DEVICE_FEATURES)] = "relational"
    checkpoint_every: AtLeastOne = 50
    keep: AtLeastOne = 2
    executor: Literal["tf", "emulated"] = "tf"
    time_scale: Number = 1.0
    emulate: TopologyName = ""
    dispatch: Literal[(AUTO, *DISPATCH_RULES)] = AUTO
    seed: Count = 0

    def __post_init__(self):
        check_fields(vars(self), TrainConfig, ConfigError, "training config", "")

    @property
    def rule(self) -> str:
        """The dispatch rule of episodes."""
        return "order" if self.dispatch == AUTO else self.dispatch

    def to_json(self) -> dict:
        """A JSON object of all fields."""
        return asdict(self)

    @staticmethod
    def from_json(record: Mapping, where: str = "training config", base: TrainConfig | None = None) -> TrainConfig:
        """`base` (default: the defaults) with the given fields replaced. Raises ConfigError for unknown fields and bad values."""
        check_fields(record, TrainConfig, ConfigError, where, "")
        return replace(base or TrainConfig(), **record)


CONFIGS = {
    "default": TrainConfig(),
    "annealed": TrainConfig(teacher="annealing", elite=0.5, polish=0),
    "reinforce": TrainConfig(polish=0),
    "paper": TrainConfig(imitation=2000, simulated=2000, learning_rate=1e-3, mutations=0.0, entropy=1e-2, elite=0.0, polish=0,
                         identity=False, features="paper", dispatch="fifo"),
}


def stored_config(run_dir: Path) -> TrainConfig:
    """The settings of a run. Raises CheckpointError, FormatError: there is none, or of another schema."""
    stored = _stored(run_dir)
    if not isinstance(stored.get("config"), Mapping):
        raise field_error(CheckpointError, f"{run_dir}/config.json", "", "config", "an object of settings", stored.get("config"))
    before = {"dispatch": "fifo", "polish": 0}  # before there was a choice
    return TrainConfig.from_json({**before, **stored["config"]}, f"{run_dir}/config.json")


def stored_graphs(run_dir: Path) -> frozenset[str]:
    """The hashes of the graphs that a run was made for. Raises: as `stored_config`."""
    graphs = _stored(run_dir).get("graphs", {})
    if not isinstance(graphs, Mapping) or not all(isinstance(each, str) for each in graphs.values()):
        raise field_error(CheckpointError, f"{run_dir}/config.json", "", "graphs", "an object of hashes by graph", graphs)
    return frozenset(graphs.values())


def _stored(run_dir: Path) -> dict[str, Any]:
    """What a run was made with."""
    stored = read_json(run_dir / "config.json")
    if not isinstance(stored, dict) or stored.get("schema") != RUN_SCHEMA:
        got = stored.get("schema") if isinstance(stored, dict) else stored
        raise CheckpointError(f"{run_dir}/config.json: schema: expected {RUN_SCHEMA}, got {got!r}; train again with this version")
    return stored
