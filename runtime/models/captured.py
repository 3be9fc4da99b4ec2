"""The pieces of a captured model: a folder's operations as TensorFlow functions that a device executes by name, and its weights.

A piece that takes `variable:NAME` makes a variable of its own from that value; the value itself is never changed, as TensorFlow copies a
buffer that it would share before it writes into it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from doppler_tf.errors import DopplerError, FormatError, GraphError, field_error
from doppler_tf.formats.files import read_json

SCHEMA = "doppler-captured/2"
# TensorFlow makes a variable of its own for each execution of an operation that asks for this name.
_ANONYMOUS = "cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_VARIABLE = "variable:"


class CapturedModel:
    """A captured function as its folder holds it.

    Attributes:
      folder: where it was read from.
      meta: the content of `meta.json`.
      nodes: the operations by name.
      calls: pieces that have been made into calls, by how they are built.
      resident: frozen variables that calls take as tensors, by name and device, for as long as a call keeps them.
    """

    def __init__(self, folder: Path, original: bool = False):
        """Args: original: with operations and variables as their author wrote them, before they were frozen and cut.

        Raises FormatError: the folder is missing or damaged.
        """
        self.folder, self.meta = folder, read_json(folder / "meta.json")
        if not isinstance(self.meta, Mapping) or self.meta.get("schema") != SCHEMA:
            raise field_error(FormatError, str(folder / "meta.json"), "", "schema", SCHEMA,
                              self.meta.get("schema") if isinstance(self.meta, Mapping) else self.meta, "capture the model again")
        if original:
            self.meta |= self.meta["original"]
        file = folder / ("original.pb" if original else "function.pb")
        self._graph_def = tf.compat.v1.GraphDef()
        try:
            content = file.read_bytes()
            self._graph_def.ParseFromString(content)
        except Exception as error:  # missing files and whatever protocol buffers make of damaged ones
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FormatError(f"{file}: expected a GraphDef, got {reason}; capture the model again") from error
        written = self.meta.get("sha256", {}).get(file.name)
        if written is not None and hashlib.sha256(content).hexdigest() != written:
            raise FormatError(f"{file}: expected the operations that `capture` wrote, got others; capture the model again")
        self.nodes = {node.name: node for node in self._graph_def.node}
        self.calls: dict[tuple[Work, str], Any] = {}
        self.resident: dict[str, weakref.WeakValueDictionary[str, tf.Tensor]] = {}
        self.placeholders = {name: record["placeholder"] for name, record in self.meta["variables"].items()}

    @functools.cached_property
    def original(self) -> CapturedModel:
        """The model as its author wrote it. Raises FormatError: as the constructor."""
        return CapturedModel(self.folder, original=True) if "original" in self.meta else self

    @property
    def library(self) -> tf.compat.v1.GraphDef:
        """A graph without operations that holds the functions of loops and branches."""
        return tf.compat.v1.GraphDef(library=self._graph_def.library, versions=self._graph_def.versions)

    def imported(self, graph: tf.compat.v1.GraphDef, given: Mapping[str, tf.Tensor], variables: Mapping[str, tf.Variable],
                 returned: Sequence[str], scope: str = "") -> list[tf.Tensor]:
        """Inside a tf.function: tensors that a graph of some of the operations returns, from tensors and variables by name."""
        used = {_canonical(text) for node in graph.node for text in node.input}
        inside = tf.compat.v1.get_default_graph().capture
        given = {**given, **{f"{placeholder}:0": inside(variables[name].handle) for name, placeholder in self.placeholders.items()
                             if f"{placeholder}:0" in used}}
        return tf.import_graph_def(graph, {key: x for key, x in given.items() if key in used}, returned, name=scope) or []

    @functools.cached_property
    def graph(self) -> tf.Graph:
        """The function as a graph that knows shapes and types."""
        with tf.Graph().as_default() as graph, _in_one_line(self.folder, "function"):
            tf.import_graph_def(self._graph_def, name="")
        return graph

    def spec(self, value: str) -> tf.TensorSpec:
        """Shape and type of "op:k" or "variable:NAME". Raises GraphError: the model has no such value."""
        try:
            if value.startswith(_VARIABLE):
                record = self.meta["variables"][value.removeprefix(_VARIABLE)]
                return tf.TensorSpec(record["shape"], record["dtype"])
            name, _, k = value.rpartition(":")
            tensor = self.graph.get_operation_by_name(name).outputs[int(k)]
        except (KeyError, ValueError, IndexError):
            raise field_error(GraphError, str(self.folder), "", "value", "a tensor or variable of the model", value,
                              "graph and model folder belong together; capture the model again") from None
        return tf.TensorSpec(tensor.shape, tensor.dtype)

    def weight(self, name: str) -> np.ndarray:
        """The value of a variable when the model was captured. Raises FormatError: the checkpoint does not hold it."""
        try:
            value = self._checkpoint.get_tensor(name)
            return np.array(value, object) if isinstance(value, bytes) else value  # a single text
        except Exception as error:  # missing files, missing names, damaged blocks
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise FormatError(f"{self.folder / 'weights'}: variable {name!r}: expected a value in the checkpoint, got {reason}; capture "
                              "the model again") from error

    def weight_spec(self, name: str) -> tf.TensorSpec:
        """Shape and type of a variable."""
        return self.spec(f"{_VARIABLE}{name}")

    def forget_calls(self) -> None:
        """Drops what was made to call each piece alone; a later call makes it again."""
        for call in self.calls.values():
            call.forget()

    @functools.cached_property
    def _checkpoint(self):
        return tf.train.load_checkpoint(str(self.folder / "weights"))


def captured_model(folder: str | Path) -> CapturedModel:
    """The model in a folder, read once while the folder stays as it is. Raises FormatError: it is missing or damaged."""
    folder = Path(folder).absolute()
    try:
        changed = (folder / "meta.json").stat().st_mtime_ns
    except OSError:
        raise FormatError(f"{folder}: expected the folder of a captured model beside its graph, got none; keep them together, or capture "
                          "the model again") from None
    return _model(folder, changed)


@functools.lru_cache(4)  # they hold their weights
def _model(folder: Path, changed: int) -> CapturedModel:
    return CapturedModel(folder)


# Operations on variables, and what does the same to tensors that hold their values: it is faster, and XLA takes it.
_AS_VALUES = {"ReadVariableOp": "Identity", "AssignVariableOp": "Identity", "AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}


class Work(NamedTuple):
    """What a captured vertex runs, as in the parameters of its kernel.

    Attributes:
      nodes: operations, in order; inputs, outputs: values.
      weights: the frozen variables that are constants of the piece, by what they are called in it.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Work:
        """Reads the parameters of a kernel."""
        return cls(*(tuple(params[key]) for key in ("nodes", "inputs", "outputs")), tuple(params.get("weights", {}).items()))

    @property
    def bare(self) -> Work:
        """The same with its weights as further inputs, behind the others."""
        return Work(self.nodes, (*self.inputs, *(value for value, _ in self.weights)), self.outputs)


def piece_key(model: CapturedModel, work: Work) -> str:
    """Equal for pieces that compute the same from tensors of the same shapes and types, whatever their operations are called.

    The names of library functions tell their content. Operations that draw random numbers with a seed keep a state each: their names
    count. So do shapes of frozen weights, and not their values: pieces that differ there alone take equally long.
    """
    nodes, inputs, outputs, weights = work
    digest = hashlib.sha256()
    known = {value: f"input {i}" for i, value in enumerate(inputs)} | {value: f"weight {i}" for i, (value, _) in enumerate(weights)}
    known |= {f"{model.placeholders[value.removeprefix(_VARIABLE)]}:0": f"resource {i}" for i, value in enumerate(inputs)
              if value.startswith(_VARIABLE)}
    for value in (*inputs, *(value for value, _ in weights)):
        spec = model.spec(value)
        digest.update(repr((value.startswith(_VARIABLE), spec.shape, spec.dtype.name)).encode())
    number = {name: i for i, name in enumerate(nodes)}
    for name in nodes:
        node = _node(model, name)
        taken = []
        for text in node.input:
            if text.startswith("^"):
                taken.append(f"after {number.get(text[1:])}" if text[1:] in number else "")
            else:
                x = _canonical(text)
                source, _, k = x.rpartition(":")
                taken.append(known[x] if x in known else f"{number.get(source)}:{k}")
        attributes = [(attr, node.attr[attr].SerializeToString(deterministic=True)) for attr in sorted(node.attr)]
        seeded = name if any(attr in node.attr and node.attr[attr].i for attr in ("seed", "seed2")) else ""
        digest.update(repr((node.op, sorted(taken[len(_data(node)):]), taken[:len(_data(node))], attributes, seeded)).encode())
    for value in outputs:
        source, _, k = value.rpartition(":")
        digest.update(repr(known.get(value) if value.startswith(_VARIABLE) else (number.get(source), k)).encode())
    return digest.hexdigest()


def original_function(folder: str | Path):
    """The whole captured function: what all assignments have to agree with.

    Returns:
      A function of {argument name: array} and, optionally, {variable: array} that returns two mappings: outputs by name, and updated
      variables by name. A variable that is not given starts from its value in the folder at each call.

    Raises:
      FormatError: the folder is missing or damaged.
    """
    model = captured_model(folder).original
    direct = {x["tensor"]: x["name"] for x in model.meta["arguments"]}

    def call(inputs: Mapping[str, np.ndarray],
             variables: Mapping[str, np.ndarray] | None = None) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        function, tensors = original_call(folder, inputs, variables)
        made = iter(function(*tensors))
        outputs = {x["name"]: np.asarray(inputs[direct[x["tensor"]]]) if x["tensor"] in direct else next(made).numpy()
                   for x in model.meta["outputs"]}
        return outputs, {name: next(made).numpy() for name in model.meta["updates"]}

    return call


def original_call(folder: str | Path, inputs: Mapping[str, np.ndarray], variables: Mapping[str, np.ndarray] | None = None):
    """The whole captured function as one concrete function, and the tensors to call it with: arguments (`inputs` by name), then variables
    (`variables` by name, else from the folder).

    It returns a list: the outputs that are no arguments, then the updated variables. Raises FormatError: as `original_function`.
    """
    model, given = captured_model(folder).original, variables or {}
    return _original(model), [*(tf.constant(inputs[x["name"]], x["dtype"]) for x in model.meta["arguments"]),
                              *(tf.constant(given[name] if name in given else model.weight(name)) for name in model.placeholders)]


@functools.lru_cache(4)
def _original(model: CapturedModel):
    arguments = {x["tensor"] for x in model.meta["arguments"]}
    fixed = {f"{name}:0" for name in model.placeholders.values()} | arguments
    computed = [x["tensor"] for x in model.meta["outputs"] if x["tensor"] not in arguments]
    return piece_function(model, Work(tuple(name for name in model.nodes if f"{name}:0" not in fixed),
                               (*(x["tensor"] for x in model.meta["arguments"]), *map(_VARIABLE.__add__, model.placeholders)),
                               (*computed, *map(_VARIABLE.__add__, model.meta["updates"]))))


def piece_function(model: CapturedModel, work: Work):
    """The operations of a piece as one concrete function of tensors, which returns a list. Its weights are constants.

    A piece without outputs returns one scalar, 0. Raises GraphError: the piece does not fit the model.
    """
    graph, taken, returned = _piece_graph(model, work.bare)

    def piece(*tensors: tf.Tensor) -> list[tf.Tensor]:
        weights = [tf.constant(model.weight(name)) for _, name in work.weights]
        made = tf.import_graph_def(graph, dict(zip(taken, [*tensors, *weights], strict=True)), returned, name="")
        return made if made else [tf.constant(0)]

    with _in_one_line(model.folder, f"piece {work.nodes[-1] if work.nodes else ''!r}"):
        register_functions(graph)
        return tf.function(piece, autograph=False).get_concrete_function(*[model.spec(value) for value in work.inputs])


def register_functions(graph: tf.compat.v1.GraphDef) -> None:
    """Gives TensorFlow the functions of a graph. Importing the graph does not, and TensorFlow would crash when a loop calls its body."""
    for function in graph.library.function:
        if not context.context().has_function(function.signature.name):
            context.context().add_function_def(function)


@contextlib.contextmanager
def _in_one_line(folder: Path, what: str) -> Iterator[None]:
    """Raises GraphError for whatever TensorFlow makes of operations that do not fit each other."""
    try:
        yield
    except DopplerError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = ("import the package that registers it before" if "not registered" in reason else
                  "graph and model folder belong together; capture the model again")
        raise GraphError(f"{folder}: {what}: expected operations that fit the model, got {reason}; {remedy}") from error


def _piece_graph(model: CapturedModel, work: Work) -> tuple[tf.compat.v1.GraphDef, list[str], list[str]]:
    """A piece without weights as a graph of its own, its placeholders' names, and the names of what it returns."""
    nodes, inputs, outputs, _ = work
    graph, inside, feeds = model.library, set(nodes), [f"input_{i}" for i in range(len(inputs))]
    resource = {value: f"{model.placeholders[value.removeprefix(_VARIABLE)]}:0" for value in (*inputs, *outputs)
                if value.startswith(_VARIABLE)}
    moved = {value: feed for value, feed in zip(inputs, feeds, strict=True) if value not in resource}
    values = {resource[value]: feed for value, feed in zip(inputs, feeds, strict=True) if value in resource}
    others = {_canonical(text) for name in nodes for text in _data(_node(model, name)) if not _takes_values(model, name)}
    assigned: dict[str, str] = {}
    for feed, value in zip(feeds, inputs, strict=True):
        spec = model.spec(value)
        dtype = tf.compat.v1.AttrValue(type=spec.dtype.as_datatype_enum)
        graph.node.add(name=feed, op="Placeholder", attr={"dtype": dtype, "shape": tf.compat.v1.AttrValue(shape=spec.shape.as_proto())})
        if resource.get(value) in others:
            handle, assign = f"{feed}/handle", f"{feed}/assign"
            graph.node.add(name=handle, op="VarHandleOp", attr={
                "dtype": dtype, "shape": tf.compat.v1.AttrValue(shape=spec.shape.as_proto()),
                "shared_name": tf.compat.v1.AttrValue(s=_ANONYMOUS.encode())})
            graph.node.add(name=assign, op="AssignVariableOp", input=[handle, feed], attr={"dtype": dtype})
            moved[resource[value]] = handle
            assigned[handle] = assign
            del values[resource[value]]
    for name in nodes:
        node = _node(model, name)
        data = [moved.get(_canonical(text), text) for text in _data(node)]
        controls = {text for text in node.input if text.startswith("^") and text[1:] in inside}
        if node.op in _AS_VALUES and (held := _canonical(_data(node)[0])) in values:
            operands = data[1:] if node.op == "AssignVariableOp" else [values[held], *data[1:]]
            graph.node.add(name=name, op=_AS_VALUES[node.op], input=[*operands, *sorted(controls)], attr={"T": node.attr["dtype"]})
            values[held] = values[held] if node.op == "ReadVariableOp" else name
            continue
        controls |= {f"^{assigned[text]}" for text in data if text in assigned}
        graph.node.add(name=name, op=node.op, input=[*data, *sorted(controls)], attr=node.attr)
        if node.op == "Conv2D" and _in_groups(model, name):
            # TensorFlow would fuse it with a bias behind it, and then refuse it, as its fused kernel has no groups.
            shape = tf.compat.v1.AttrValue(shape=model.spec(f"{name}:0").shape.as_proto())
            graph.node.add(name=f"{name}/unfused", op="EnsureShape", input=[name], attr={"T": node.attr["T"], "shape": shape})
            moved[f"{name}:0"] = f"{name}/unfused"
    returned = []
    users = [node.name for node in graph.node if any(text in assigned for text in node.input) and node.name not in assigned.values()]
    for i, value in enumerate(outputs):
        if value not in resource:
            returned.append(value)
        elif resource[value] in values:
            returned.append(f"{values[resource[value]]}:0")
        else:
            handle, name = moved[resource[value]], f"output_{i}"
            graph.node.add(name=name, op="ReadVariableOp", input=[handle, *(f"^{user}" for user in users), f"^{assigned[handle]}"],
                           attr={"dtype": tf.compat.v1.AttrValue(type=model.spec(value).dtype.as_datatype_enum)})
            returned.append(f"{name}:0")
    return graph, feeds, returned


def _takes_values(model: CapturedModel, name: str) -> bool:
    """Whether `_AS_VALUES` has an operation's equal. A sum would broadcast what an addition to a variable refuses."""
    if (kind := _node(model, name).op) not in ("AssignAddVariableOp", "AssignSubVariableOp"):
        return kind in _AS_VALUES
    variable, value = model.graph.get_operation_by_name(name).inputs
    shape = next((x["shape"] for key, x in model.meta["variables"].items() if f"{model.placeholders[key]}:0" == variable.name), None)
    return shape is not None and value.shape.is_fully_defined() and value.shape.as_list() == list(shape)


def _in_groups(model: CapturedModel, convolution: str) -> bool:
    """Whether a convolution's filters see some of the channels each."""
    op = model.graph.get_operation_by_name(convolution)
    image, filters = (x.shape for x in op.inputs)
    channels = -1 if op.get_attr("data_format") == b"NHWC" else 1
    return image.rank is not None and filters.rank is not None and image[channels] != filters[2]


def _node(model: CapturedModel, name: str) -> tf.compat.v1.NodeDef:
    if name not in model.nodes:
        raise field_error(GraphError, str(model.folder), "", "operation", "one of the model", name,
                          "graph and model folder belong together; capture the model again")
    return model.nodes[name]


def _data(node) -> list[str]:
    return [text for text in node.input if not text.startswith("^")]


def _canonical(text: str) -> str:
    return text if ":" in text else f"{text}:0"
