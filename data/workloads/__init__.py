"""The workloads by name, and the program of a graph that was made from one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from data.decompose import decompose
from data.eindecomp import eindecomp, labelled
from data.einsum_program import EinsumProgram
from data.layered import Layered, layered_defaults, layered_graph
from data.parallel import parallel
from data.python_files import user_code
from data.recomputing import recomputed
from data.tiling import Tiling, check_tiling, extended
from data.training import Training, TrainingStep, training_step
from data.workloads.chains import CHAINMM, FFNN
from data.workloads.llama import LLAMA_BLOCK, LLAMA_LAYER, LLAMA_STACK
from data.workloads.own import fingerprint, in_file, own_workload
from data.workloads.workload import Workload, near_square
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.dataflow import DataflowGraph

WORKLOADS: dict[str, Workload] = {"chainmm": CHAINMM, "ffnn": FFNN, "llama_block": LLAMA_BLOCK, "llama_layer": LLAMA_LAYER,
                                  "llama_stack": LLAMA_STACK}
NAMES = (*WORKLOADS, "layered")  # programs, and random graphs without a program
MOST_LAYERS = 10_000
# Rows and columns of `parallel` by the number of devices.
PARALLEL: dict[str, Callable[[int], tuple[int, int]]] = {"data": lambda n: (n, 1), "tensor": lambda n: (1, n), "mixed": near_square}
TILINGS = ("published", *PARALLEL, "eindecomp")
# `auto` tries EinDecomp's tilings into so many pieces for each device.
PIECES_A_DEVICE = (1, 2, 4)
DTYPE_BYTES = {"paper": 2, "small": 4}  # the published times suggest float16; small sizes run in float32


def build_workload(name: str, num_devices: int, scale: str = "paper", seed: int = 0, tiling: str = "published",
                   pieces: int | None = None, optimizer: str | None = None, recompute: bool = False, **options: float) -> DataflowGraph:
    """The graph of a workload, cut for a number of devices.

    Args:
      name: one of NAMES; or `file.py:NAME`, a Workload or an EinsumProgram in a Python file, which is run.
      scale: "paper" for the published shapes, "small" for kernels of about a millisecond on a CPU core.
      seed: for a program, of its input values (`EinsumProgram.draw_inputs`), which do not change the graph; for `layered`, of the graph.
      tiling: "published", where there is one; "data" parallel, "tensor" parallel or "mixed", both at once (`data/parallel.py`); or
        "eindecomp" for the tiling that moves the fewest elements. Inputs are on every device and move nothing.
      pieces: of each expression under "eindecomp"; None: one for each device.
      optimizer: of a training step, sgd, momentum or adam; None: the program alone. EinDecomp cuts all of the step. Other tilings
        are those of the program, and steps of the backward pass are cut like those that they differentiate.
      recompute: cheap steps of the forward pass are computed again in the backward pass (`data/recomputing.py`).
      options: the workload's sizes and, for a program, `dtype_bytes` (default 2 at paper scale, 4 at small).

    Raises:
      ConfigError: a name, scale or option is unknown, or a value is out of range.
      FormatError: no such file. UserError: what the user's file raises.
    """
    workload = None if name == "layered" else named_workload(name)
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise field_error(ConfigError, "workload", name, "num_devices", "an integer >= 1", num_devices)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise field_error(ConfigError, "workload", name, "seed", "an integer >= 0", seed)
    if scale not in DTYPE_BYTES:
        raise field_error(ConfigError, "workload", name, "scale", f"one of {', '.join(DTYPE_BYTES)}", scale)
    if tiling not in TILINGS:
        raise field_error(ConfigError, "workload", name, "tiling", f"one of {', '.join(TILINGS)}", tiling)
    if name == "layered" and tiling != "published":
        raise field_error(ConfigError, "workload", name, "tiling", "published: a random graph has no program to cut", tiling)
    if optimizer is not None and (workload is None or not isinstance(workload.training, Training)):
        trained = ", ".join(each for each, workload in WORKLOADS.items() if workload.training is not None)
        raise field_error(ConfigError, "workload", name, "training", f"a workload with a loss: one of {trained}, or a data.Workload with "
                          "training=data.Training(...)", name)
    if recompute and optimizer is None:
        raise field_error(ConfigError, "workload", name, "recompute", "False without training", recompute, "name an optimizer")
    if tiling != "eindecomp" and pieces is not None:
        raise field_error(ConfigError, "workload", name, "pieces", f"none beside the {tiling} tiling", pieces, "choose eindecomp")
    defaults = (layered_defaults(scale, num_devices) if name == "layered"
                else {**getattr(workload, scale), "dtype_bytes": DTYPE_BYTES[scale]})
    _check_keys(name, defaults, options)
    sizes = {**defaults, **options}
    record = {"name": name, "seed": seed, "options": {"num_devices": num_devices, "scale": scale, **sizes}}
    if name == "layered":
        return layered_graph(Layered(**sizes), seed, {"name": name, "workload": record})
    _check_sizes(name, sizes)
    if optimizer is not None:
        record["training"] = {"optimizer": optimizer, **({"recompute": True} if recompute else {})}
    made = _made(workload, name, sizes, record)
    if (own := in_file(name)) is not None:
        record |= {"name": own[1], "file": str(own[0]), "program": fingerprint(made.program)}
    if tiling in PARALLEL:
        record["tiling"] = {"method": tiling}
    elif tiling == "eindecomp" or workload.tiling is None:
        record["tiling"] = {"method": "eindecomp", "pieces": num_devices if pieces is None else pieces}
    attributes = {"name": record["name"] + ("" if optimizer is None else "_training"), "workload": record}
    return decompose(made.program, _tiling(workload, made, record), sizes["dtype_bytes"], attributes)


def named_workload(name: str) -> Workload:
    """The workload of this name, or what `file.py:NAME` names. Raises ConfigError: no such name. Also raises as `own_workload`."""
    own = in_file(name)
    if own is not None:
        return own_workload(*own)
    if name not in WORKLOADS:
        raise field_error(ConfigError, "workload", "", "name", f"one of {', '.join(NAMES)}, or file.py:NAME", name)
    return WORKLOADS[name]


def build_tilings(name: str, num_devices: int, scale: str = "paper", seed: int = 0, optimizer: str | None = None,
                  recompute: bool = False, **options: float) -> dict[str, DataflowGraph]:
    """A workload cut in several ways, by name: as published, as in PARALLEL, and by EinDecomp into 1, 2 and 4 pieces for each device.

    Args and raises: as `build_workload`.
    """
    cuts = {tiling: (tiling, None) for tiling in ("published", *PARALLEL)}
    cuts |= {f"eindecomp, {each * num_devices} pieces": ("eindecomp", each * num_devices) for each in PIECES_A_DEVICE}
    return {cut: build_workload(name, num_devices, scale, seed, *how, optimizer, recompute, **options) for cut, how in cuts.items()}


def workload_program(record: Mapping) -> EinsumProgram:
    """The unsharded program of a graph's `workload` attribute. `program.draw_inputs(record["seed"])` draws its input values.

    Raises:
      ConfigError: `build_workload` did not write the record, or the program in the user's file is another now.
      FormatError: the user's file is gone.
    """
    return _recorded(record)[1].program


def forward_program(record: Mapping) -> tuple[EinsumProgram, Training]:
    """The forward program of a training step's record, and what it is trained for. Raises: as `workload_program`."""
    workload = _recorded(record)[0]
    return workload.forward(record["options"], training=True), workload.training


def step_program(record: Mapping, optimizer: str) -> EinsumProgram:
    """The unsharded program of a training step's record, with another optimizer. Raises: as `workload_program`."""
    workload, training = _recorded(record)[0], {**record["training"], "optimizer": optimizer}
    return _made(workload, record["name"], record["options"], {**record, "training": training}).program


def _recorded(record: Mapping) -> tuple[Workload, TrainingStep]:
    if not isinstance(record, Mapping) or not isinstance(record.get("options"), Mapping):
        raise field_error(ConfigError, "workload", "", "record", "an object with 'name', 'options' and 'seed'", record)
    name = record.get("name")
    workload = own_workload(Path(record["file"]), name) if "file" in record else named_workload(name)
    sizes = {key: value for key, value in record["options"].items() if key not in ("num_devices", "scale")}
    missing = sorted({*workload.paper} - {*sizes})
    if missing:
        raise field_error(ConfigError, "workload", name, "options", f"all of {', '.join(workload.paper)}", sorted(sizes))
    _check_keys(name, (*workload.paper, "dtype_bytes"), sizes)
    _check_sizes(name, sizes)
    made = _made(workload, name, sizes, record)
    if "file" in record and fingerprint(made.program) != record.get("program"):
        raise ConfigError(f"{record['file']}: {name}: expected the program from which the graph was made, got another, as the file has "
                          "changed since; make the graph again with `workload`")
    return workload, made


def _made(workload: Workload, name: str, sizes: Mapping[str, int], record: Mapping) -> TrainingStep:
    """The program of a record, and what its steps differentiate."""
    where = _where(record)
    with user_code(where, "a program"):
        program = workload.forward(sizes, "training" in record)
    if not isinstance(program, EinsumProgram):
        raise field_error(ConfigError, where, "", "program", "a function that returns a data.EinsumProgram", type(program).__name__)
    if "training" not in record:
        return TrainingStep(program, {})
    with user_code(where, "a training step"):
        made = training_step(program, workload.training, record["training"]["optimizer"])
    return recomputed(made, workload.training.of) if record["training"].get("recompute") else made


def _where(record: Mapping) -> str:
    """The program of a record, as errors name it."""
    return f"{record['file']}: {record['name']}" if "file" in record else record["name"]


def workload_cuts(record: Mapping) -> dict[str, dict[str, int]]:
    """Into how many parts each expression of a graph's `workload` attribute cuts each of its labels. Raises: as `workload_program`."""
    workload, made = _recorded(record)
    tiling = _tiling(workload, made, record)
    return {e.name: {label: tiling.get(e.name, {}).get(label, 1) for label in e.space} for e in made.program.expressions}


def _tiling(workload: Workload, made: TrainingStep, record: Mapping) -> Tiling:
    method, options = record.get("tiling", {}).get("method", "published"), record["options"]
    if method == "eindecomp":
        return eindecomp(labelled(made.program), record["tiling"]["pieces"], count_inputs=False)
    program = workload.forward(options, "training" in record)
    if method in PARALLEL:
        tiling = parallel(program, *PARALLEL[method](options["num_devices"]))
    else:
        with user_code(_where(record), "a tiling"):
            tiling = workload.tiling(program, options["num_devices"])
            check_tiling(program, tiling)
    return extended(made.program, tiling, made.sources)


def _check_keys(name: str, valid: Collection[str], options: Collection[str]) -> None:
    for key in options:
        if key not in valid:
            raise field_error(ConfigError, "workload", name, "option", f"one of {', '.join(valid)}", key)


def _check_sizes(name: str, sizes: Mapping[str, int]) -> None:
    for key, value in sizes.items():
        most = MOST_LAYERS if key == "layers" else math.inf
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            expected = "an integer >= 1" if most == math.inf else f"an integer from 1 to {most}"
            raise field_error(ConfigError, "workload", name, key, expected, value)
