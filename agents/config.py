"""Every setting of a training run, checked, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from agents.episode import DEVICE_FEATURES
from doppler_tf.errors import CheckpointError, ConfigError, field_error
from doppler_tf.formats.files import read_json

RUN_SCHEMA = "doppler-run/1"
TEACHERS = ("critical_path", "annealing")
METHOD_NAMES = ("doppler", "sel_only", "plc_only", "joint", "per_step", "placeto", "gdp")

# What settings may be, where they are no numbers; numbers that start at 1; and the largest ones where it is not 2**31 - 1.
_EXPECTED = {"method": METHOD_NAMES, "teacher": TEACHERS, "features": tuple(DEVICE_FEATURES), "executor": ("tf", "emulated"),
             "identity": "true or false", "emulate": "the name or file of a topology"}
_POSITIVE = ("batch", "real_batch", "hidden", "rounds", "checkpoint_every", "keep")
_MOST = {"hidden": 4096, "rounds": 64, "batch": 1 << 16, "real_batch": 1 << 16}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the three stages; the same for every graph.

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
      clip: largest norm of a policy's gradient.
      hidden, rounds: width of the layers, rounds of message passing.
      identity: random features tell vertices and devices with equal features apart; without them a policy transfers better to other graphs.
      features: device features of PLC and of the joint policy: `relational`, or `paper` (the paper's five); Placeto and GDP have none.
      checkpoint_every: updates between checkpoints; keep: how many of the last are kept.
      executor, time_scale, emulate: what stage III runs on, as the caller names it, so that a resumed run takes the same; emulate: the
        topology whose costs emulated devices have; empty: the topology of the plan.
      seed: of all random numbers.
    """

    method: str = "doppler"
    teacher: str = "critical_path"
    imitation: int = 256
    simulated: int = 25600
    real: int = 0
    real_minutes: float = 0.0
    batch: int = 16
    real_batch: int = 16
    real_updates: int = 64
    learning_rate: float = 5e-3
    mutations: float = 15.0
    entropy: float = 0.01
    elite: float = 0.1
    clip: float = 1.0
    hidden: int = 64
    rounds: int = 4
    identity: bool = True
    features: str = "relational"
    checkpoint_every: int = 50
    keep: int = 2
    executor: str = "tf"
    time_scale: float = 1.0
    emulate: str = ""
    seed: int = 0

    def __post_init__(self):
        for item in fields(self):
            value, expected = getattr(self, item.name), _EXPECTED.get(item.name)
            if isinstance(expected, tuple):
                right, expected = isinstance(value, str) and value in expected, " or ".join(expected)
            elif expected is not None:
                right = isinstance(value, type(item.default))
            else:
                whole = isinstance(item.default, int)
                least, most = int(item.name in _POSITIVE), _MOST.get(item.name, 2**31 - 1)
                right = isinstance(value, int if whole else int | float) and not isinstance(value, bool) and least <= value <= most
                expected = f"{'an integer' if whole else 'a number'} from {least} to {most}"
            if not right:
                raise field_error(ConfigError, "training config", "", item.name, expected, value)

    def to_json(self) -> dict:
        """A JSON object of all fields."""
        return asdict(self)

    @staticmethod
    def from_json(record: Mapping, where: str = "training config", base: TrainConfig | None = None) -> TrainConfig:
        """`base` (default: the defaults) with the given fields replaced. Raises ConfigError for unknown fields and bad values."""
        known = {item.name for item in fields(TrainConfig)}
        unknown = sorted(set(record) - known)
        if unknown:
            raise field_error(ConfigError, where, "", unknown[0], f"one of {', '.join(sorted(known))}", record[unknown[0]])
        return replace(base or TrainConfig(), **record)


CONFIGS = {
    "default": TrainConfig(),
    "annealed": TrainConfig(teacher="annealing", elite=0.5),
    "paper": TrainConfig(imitation=2000, simulated=2000, learning_rate=1e-3, mutations=0.0, entropy=1e-2, elite=0.0, identity=False,
                         features="paper"),
}


def stored_config(run_dir: Path) -> TrainConfig:
    """The settings of a run. Raises CheckpointError, FormatError: there is none, or of another schema."""
    stored = read_json(run_dir / "config.json")
    if not isinstance(stored, dict) or stored.get("schema") != RUN_SCHEMA:
        got = stored.get("schema") if isinstance(stored, dict) else stored
        raise CheckpointError(f"{run_dir}/config.json: schema: expected {RUN_SCHEMA}, got {got!r}; train again with this version")
    if not isinstance(stored.get("config"), Mapping):
        raise field_error(CheckpointError, f"{run_dir}/config.json", "", "config", "an object of settings", stored.get("config"))
    return TrainConfig.from_json(stored["config"], f"{run_dir}/config.json")
