"""The workloads by name, and the program of a graph that was made from one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from data.decompose import decompose
from data.eindecomp import eindecomp, labelled
from data.einsum_program import EinsumProgram
from data.layered import Layered, layered_defaults, layered_graph
from data.tiling import Tiling, extended
from data.training import TrainingStep, training_step
from data.workloads.chains import CHAINMM, FFNN
from data.workloads.llama import LLAMA_BLOCK, LLAMA_LAYER, LLAMA_STACK
from data.workloads.workload import Workload
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.dataflow import DataflowGraph

WORKLOADS: dict[str, Workload] = {"chainmm": CHAINMM, "ffnn": FFNN, "llama_block": LLAMA_BLOCK, "llama_layer": LLAMA_LAYER,
                                  "llama_stack": LLAMA_STACK}
NAMES = (*WORKLOADS, "layered")  # programs, and random graphs without a program
MOST_LAYERS = 10_000
TILINGS = ("published", "eindecomp")
# `auto` tries EinDecomp's tilings into so many pieces for each device.
PIECES_A_DEVICE = (1, 2, 4)
DTYPE_BYTES = {"paper": 2, "small": 4}  # the published times suggest float16; small sizes run in float32


def build_workload(name: str, num_devices: int, scale: str = "paper", seed: int = 0, tiling: str = "published",
                   pieces: int | None = None, optimizer: str | None = None, **options: float) -> DataflowGraph:
    """The graph of a workload, cut for a number of devices.

    Args:
      name: one of NAMES.
      scale: "paper" for the published shapes, "small" for kernels of about a millisecond on a CPU core.
      seed: for a program, of its input values (`EinsumProgram.draw_inputs`), which do not change the graph; for `layered`, of the graph.
      tiling: "published", where there is one, or "eindecomp" for the tiling that moves the fewest elements. Inputs are on every device and
        move nothing.
      pieces: of each expression under "eindecomp"; None: one for each device.
      optimizer: of a training step, sgd, momentum or adam; None: the program alone. The published tiling is that of the program,
        and steps of the backward pass are cut like those that they differentiate.
      options: the workload's sizes and, for a program, `dtype_bytes` (default 2 at paper scale, 4 at small).

    Raises:
      ConfigError: a name, scale or option is unknown, or a value is out of range.
    """
    if name not in NAMES:
        raise field_error(ConfigError, "workload", "", "name", f"one of {', '.join(NAMES)}", name)
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
    if optimizer is not None and (name not in WORKLOADS or WORKLOADS[name].training is None):
        trained = ", ".join(each for each, workload in WORKLOADS.items() if workload.training is not None)
        raise field_error(ConfigError, "workload", name, "training", f"a workload with a loss: one of {trained}", name)
    if tiling == "published" and pieces is not None:
        raise field_error(ConfigError, "workload", name, "pieces", "none beside the published tiling", pieces, "choose eindecomp")
    defaults = (layered_defaults(scale, num_devices) if name == "layered"
                else {**getattr(WORKLOADS[name], scale), "dtype_bytes": DTYPE_BYTES[scale]})
    _check_keys(name, defaults, options)
    sizes = {**defaults, **options}
    attributes = {"name": name, "workload": {"name": name, "seed": seed,
                                             "options": {"num_devices": num_devices, "scale": scale, **sizes}}}
    if name == "layered":
        return layered_graph(Layered(**sizes), seed, attributes)
    _check_sizes(name, sizes)
    if optimizer is not None:
        attributes["workload"]["training"] = {"optimizer": optimizer}
        attributes["name"] += "_training"
    made = _made(name, sizes, attributes["workload"])
    if tiling != "published" or WORKLOADS[name].tiling is None:
        attributes["workload"]["tiling"] = {"method": "eindecomp", "pieces": num_devices if pieces is None else pieces}
    return decompose(made.program, _tiling(made, attributes["workload"]), sizes["dtype_bytes"], attributes)


def build_tilings(name: str, num_devices: int, scale: str = "paper", seed: int = 0, optimizer: str | None = None,
                  **options: float) -> dict[str, DataflowGraph]:
    """A workload cut in several ways, by name: as published, and by EinDecomp into one, two and four pieces for each device.

    Args and raises: as `build_workload`.
    """
    graphs = {"published": build_workload(name, num_devices, scale, seed, optimizer=optimizer, **options)}
    for each in PIECES_A_DEVICE:
        pieces = each * num_devices
        graphs[f"eindecomp, {pieces} pieces"] = build_workload(name, num_devices, scale, seed, "eindecomp", pieces, optimizer,
                                                                          **options)
    return graphs


def workload_program(record: Mapping) -> EinsumProgram:
    """The unsharded program of a graph's `workload` attribute. `program.draw_inputs(record["seed"])` draws its input values.

    Raises:
      ConfigError: `build_workload` did not write the record.
    """
    return _recorded(record).program


def _recorded(record: Mapping) -> TrainingStep:
    if not isinstance(record, Mapping) or not isinstance(record.get("options"), Mapping):
        raise field_error(ConfigError, "workload", "", "record", "an object with 'name', 'options' and 'seed'", record)
    name = record.get("name")
    if name not in WORKLOADS:
        raise field_error(ConfigError, "workload", "", "name", f"one of {', '.join(WORKLOADS)}", name)
    workload = WORKLOADS[name]
    sizes = {key: value for key, value in record["options"].items() if key not in ("num_devices", "scale")}
    missing = sorted({*workload.paper} - {*sizes})
    if missing:
        raise field_error(ConfigError, "workload", name, "options", f"all of {', '.join(workload.paper)}", sorted(sizes))
    _check_keys(name, (*workload.paper, "dtype_bytes"), sizes)
    _check_sizes(name, sizes)
    return _made(name, sizes, record)


def _made(name: str, sizes: Mapping[str, int], record: Mapping) -> TrainingStep:
    """The program of a record, and what its steps differentiate."""
    program = WORKLOADS[name].program(sizes)
    if "training" not in record:
        return TrainingStep(program, {})
    return training_step(program, WORKLOADS[name].training, record["training"]["optimizer"])


def workload_cuts(record: Mapping) -> dict[str, dict[str, int]]:
    """Into how many parts each expression of a graph's `workload` attribute cuts each of its labels. Raises: as `workload_program`."""
    made = _recorded(record)
    tiling = _tiling(made, record)
    return {e.name: {label: tiling.get(e.name, {}).get(label, 1) for label in e.space} for e in made.program.expressions}


def _tiling(made: TrainingStep, record: Mapping) -> Tiling:
    if "tiling" in record:
        return eindecomp(labelled(made.program), record["tiling"]["pieces"], count_inputs=False)
    workload = WORKLOADS[record["name"]]
    tiling = workload.tiling(workload.program(record["options"]), record["options"]["num_devices"])
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
