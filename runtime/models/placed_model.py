"""A captured model under an assignment as a SavedModel: stock TensorFlow runs each operation on the device that the model names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from doppler_tf.errors import FormatError
from doppler_tf.formats.files import whole_folder, write_json
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.schedule.assignment import Assignment
from runtime.models.captured import CapturedModel, captured_model

DEVICES, SIGNATURE = "devices.json", "serving_default"
# Names in the saved function are those of the captured one behind this scope, so that they meet no argument's name.
SCOPE = "placed"


def write_placed_model(folder: str | Path, graph: DataflowGraph, assignment: Assignment, devices: Sequence[str]) -> dict[str, str]:
    """Writes SavedModel and `devices.json`, whole or not at all, and returns the device of each operation by its name.

    Call it where the TensorFlow devices exist: each variable is saved with its device.

    Args:
      folder: one that this function wrote is replaced.
      graph: a captured one.
      devices: TensorFlow device names, in the order of the topology's devices.

    Raises:
      FormatError: the folder is something else or cannot be written, or the model folder is missing or damaged.
    """
    folder, model = Path(folder), captured_model(graph.attributes["captured"]["model"])
    check_replaceable(folder)
    placed, home = _placement(model, graph, assignment, devices)
    module = tf.Module()
    module.weights = {name: _variable(model, name, home[name]) for name in model.placeholders}
    signature = _signature(model, placed, module.weights)
    options = tf.saved_model.SaveOptions(experimental_variable_policy=tf.saved_model.experimental.VariablePolicy.SAVE_VARIABLE_DEVICES)
    with whole_folder(folder) as temporary:
        try:
            tf.saved_model.save(module, str(temporary), {SIGNATURE: signature}, options)
        except tf.errors.OpError as error:
            raise FormatError(f"{folder}: cannot be written: {error.message}; choose another place") from None
        write_json(temporary / DEVICES, placed, indent=1)
    return placed


def check_replaceable(folder: Path) -> None:
    """Raises FormatError unless nothing is there, or an empty folder, or one that `write_placed_model` wrote."""
    ours = (folder / DEVICES).is_file() and (folder / "saved_model.pb").is_file()
    if folder.exists() and not ours and (not folder.is_dir() or any(folder.iterdir())):
        raise FormatError(f"{folder}: expected a folder to make, or a placed model to replace, got something else of this name; choose "
                          f"another")


def _placement(model: CapturedModel, graph: DataflowGraph, assignment: Assignment,
               devices: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The device of each operation, and that of each variable by name.

    A constant of several pieces goes with the first. A variable lives where it is updated, else where it is first used, and
    TensorFlow wants an operation that takes its resource there, too.
    """
    placed: dict[str, str] = {}
    for v in graph.topological_order.tolist():
        if not graph.is_input[v]:
            for name in graph.kernel[v].params["nodes"]:
                placed.setdefault(name, devices[int(assignment.device[v])])
    updates = {x["variable"]: devices[int(assignment.device[graph.vertex_of[x["vertex"]]])]
               for x in graph.attributes["captured"]["updates"]}
    takers: dict[str, list[str]] = {}
    for name, node in model.nodes.items():
        for source in map(_operation, node.input):
            takers.setdefault(source, []).append(name)
    home = {}
    for variable, placeholder in model.placeholders.items():
        users = takers.get(placeholder, [])
        reads = [name for name in users if model.nodes[name].op == "ReadVariableOp"]
        first = [*(name for name in users if name not in reads), *(name for read in reads for name in takers.get(read, ()))]
        home[variable] = updates.get(variable) or next((placed[name] for name in first if name in placed), devices[0])
        placed.update(dict.fromkeys(users, home[variable]))
    return {name: placed[name] for name in model.nodes if name in placed}, home


def _variable(model: CapturedModel, name: str, device: str) -> tf.Variable:
    with tf.device(device):
        return tf.Variable(model.weight(name), trainable=False, name=name)


def _signature(model: CapturedModel, placed: Mapping[str, str], weights: Mapping[str, tf.Variable]):
    """The captured function with devices, on real variables; its results have the capture's names, its arguments these as keywords."""
    graph = model.library
    for name, device in placed.items():
        graph.node.add().CopyFrom(model.nodes[name])
        graph.node[-1].device = device
    names = _keywords([x["name"] for x in model.meta["arguments"]])
    arguments = {name: x["tensor"] for name, x in zip(names, model.meta["arguments"], strict=True)}
    given = {tensor: name for name, tensor in arguments.items()}
    computed = [x["tensor"] for x in model.meta["outputs"] if x["tensor"] not in given]

    def call(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        moved = {arguments[name]: tensor for name, tensor in tensors.items()}
        made = iter(model.imported(graph, moved, weights, computed, SCOPE))
        return {x["name"]: tf.identity(tensors[given[x["tensor"]]]) if x["tensor"] in given else next(made)
                for x in model.meta["outputs"]}

    specs = {name: tf.TensorSpec(x["shape"], x["dtype"]) for name, x in zip(names, model.meta["arguments"], strict=True)}
    return tf.function(call, autograph=False).get_concrete_function(**specs)


def _keywords(names: Sequence[str]) -> list[str]:
    """Names as TensorFlow wants keywords, all different: `d_zeta` for `d/zeta`."""
    made = list[str]()
    for name in names:
        plain = re.sub(r"\W", "_", name if name[:1].isalpha() else f"arg_{name}")
        same = [other for other in made if re.fullmatch(rf"{plain}(_\d+)?", other)]
        made.append(f"{plain}_{len(same)}" if plain in made else plain)
    return made


def _operation(text: str) -> str:
    """The operation that an input of a NodeDef names."""
    return text.removeprefix("^").partition(":")[0]
