"""The workloads by name, and how a graph file leads back to its program."""

from __future__ import annotations

from collections.abc import Mapping

from data.decompose import decompose
from data.einsum_program import EinsumProgram
from data.workloads.chains import CHAINMM, FFNN
from data.workloads.llama import LLAMA_BLOCK, LLAMA_LAYER
from data.workloads.workload import Workload
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph import DataflowGraph

WORKLOADS: dict[str, Workload] = {"chainmm": CHAINMM, "ffnn": FFNN, "llama_block": LLAMA_BLOCK, "llama_layer": LLAMA_LAYER}
DTYPE_BYTES = {"paper": 2, "small": 4}  # the published times fit float16; small sizes are executed in float32


def build_workload(name: str, num_devices: int, scale: str = "paper", seed: int = 0, **options: int) -> DataflowGraph:
    """The graph of a workload, tiled for a number of devices.

    Args:
      scale: "paper" for the published shapes, "small" for sizes that a CPU core executes in about a millisecond a kernel.
      seed: of the input values (`EinsumProgram.draw_inputs`); the graph's structure does not depend on it.
      options: the workload's own sizes, and `dtype_bytes` (default 2 at paper scale, 4 at small).

    Raises:
      ConfigError: an unknown name, scale or option, or a value out of range.
    """
    workload = _workload(name)
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise field_error(ConfigError, "workload", name, "num_devices", "an integer >= 1", num_devices)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise field_error(ConfigError, "workload", name, "seed", "an integer >= 0", seed)
    if scale not in DTYPE_BYTES:
        raise field_error(ConfigError, "workload", name, "scale", f"one of {', '.join(DTYPE_BYTES)}", scale)
    defaults = {**(workload.paper if scale == "paper" else workload.small), "dtype_bytes": DTYPE_BYTES[scale]}
    sizes = {**defaults, **options}
    _check_options(name, workload, sizes)
    attributes = {"name": name, "workload": {"name": name, "seed": seed,
                                             "options": {"num_devices": num_devices, "scale": scale, **sizes}}}
    return decompose(workload.program(sizes), workload.tiling(sizes, num_devices), sizes["dtype_bytes"], attributes)


def workload_program(record: Mapping) -> EinsumProgram:
    """The unsharded program of a graph's `workload` attribute; `program.draw_inputs(record["seed"])` are its values.

    Raises:
      ConfigError: the record is not one that `build_workload` wrote.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("options"), Mapping):
        raise field_error(ConfigError, "workload", "", "record", "an object with 'name', 'options' and 'seed'", record)
    workload = _workload(record.get("name"))
    sizes = {key: value for key, value in record["options"].items() if key not in ("num_devices", "scale")}
    missing = sorted({*workload.paper} - {*sizes})
    if missing:
        raise field_error(ConfigError, "workload", record["name"], "options", f"all of {', '.join(workload.paper)}", sorted(sizes))
    _check_options(record["name"], workload, sizes)
    return workload.program(sizes)


def _workload(name) -> Workload:
    if name not in WORKLOADS:
        raise field_error(ConfigError, "workload", "", "name", f"one of {', '.join(WORKLOADS)}", name)
    return WORKLOADS[name]


def _check_options(name: str, workload: Workload, sizes: Mapping[str, int]) -> None:
    valid = (*workload.paper, "dtype_bytes")
    for key, value in sizes.items():
        if key not in valid:
            raise field_error(ConfigError, "workload", name, "option", f"one of {', '.join(valid)}", key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise field_error(ConfigError, "workload", name, key, "an integer >= 1", value)
