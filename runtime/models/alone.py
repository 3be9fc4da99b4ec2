"""A captured function without any placement: TensorFlow alone, in the ways in which its author can call it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from runtime.calls import OPERATIONS, CapturedCall
from runtime.devices import with_all_cores
from runtime.models.captured import CapturedModel, captured_model, register_functions
from runtime.models.checks import Check, checks

PLAIN, FROZEN, XLA = "plain", "frozen", "xla"
MODES = (PLAIN, FROZEN, XLA)
_CONTROL_FLOW = frozenset(("While", "If", "Case", "StatefulPartitionedCall"))
# Of what draws numbers from a seed that it is given ("Stateless..."), XLA draws others; these only share the beginning of its name.
_DRAW_NOTHING = frozenset(("StatelessWhile", "StatelessIf", "StatelessCase"))
_PURE = frozenset(("VarHandleOp", "Placeholder"))
_PRODUCTS, _SHAPED = frozenset(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")), frozenset(("Identity", "Reshape"))


def modes(folder: str | Path) -> tuple[str, ...]:
    """The ways there are for a captured function: one that updates variables cannot be frozen, and XLA leaves out assertions and more."""
    model = captured_model(folder).original
    wanted = (PLAIN, XLA) if model.meta["updates"] else MODES
    bodies = (model.nodes, *({node.name: node for node in f.node_def} for f in model.library.library.function))
    looked_at = checks(model)
    checked = looked_at is not None and not (looked_at and model.meta["updates"])  # not after an update
    return wanted if checked and all(map(_kept_by_xla, _operations(model))) and not any(map(_ends_xla, bodies)) else wanted[:-1]


def is_checked(folder: str | Path) -> bool:
    """Whether TensorFlow looks at values while it runs a function, and XLA would not."""
    return checks(captured_model(folder).original) != []


def _operations(model: CapturedModel) -> set[str]:
    """The kinds of all operations, those in functions, too."""
    return {node.op for nodes in (model.nodes.values(), *(f.node_def for f in model.library.library.function)) for node in nodes}


def _kept_by_xla(operation: str) -> bool:
    """Whether XLA does what the operation does: it checks, prints and draws nothing that TensorFlow would."""
    definition = op_def_registry.get(operation)
    harmless = operation.startswith("Resource") or "Variable" in operation or operation in _PURE or operation in _CONTROL_FLOW
    draws = operation.startswith("Stateless") and operation not in _DRAW_NOTHING
    return not draws and not operation.startswith("CheckNumerics") and (definition is None or not definition.is_stateful or harmless)


def _ends_xla(nodes: Mapping[str, Any]) -> bool:
    """Whether a product is multiplied by itself. Where the result is then reduced, XLA of TensorFlow 2.21 ends the process, in its pass
    `dot-library-passes`."""

    def made_by(tensor: str) -> Any:
        node = nodes.get(tensor.partition(":")[0])
        while node is not None and node.op in _SHAPED:
            node = nodes.get(node.input[0].partition(":")[0])
        return node

    for node in nodes.values():
        operands = [x for x in node.input if not x.startswith("^")]
        if node.op in _PRODUCTS and len(operands) == 2:
            first, second = map(made_by, operands)
            if None not in (first, second) and first.op == second.op in _PRODUCTS and list(first.input) == list(second.input):
                return True
    return False


class Alone:
    """The whole function as one `tf.function` on TensorFlow's default device.

    `plain` has its variables, `frozen` has constants in their place (as `convert_variables_to_constants_v2` makes them), and `xla` is
    the frozen one compiled by XLA, or the plain one where variables are updated. Where a check of TensorFlow's fails that XLA does not
    make, `plain` is called and raises.

    Attributes:
      variables: those that the function has, in `plain` and where it updates them; `updates` are the names of those that it updates.
    """

    def __init__(self, folder: str | Path, mode: str, constants: bool = False):
        """Takes a captured function.

        Args:
          constants: large weights are constants, too, as its author would have them. Else a CapturedCall has them, which is as fast and
            takes a tenth of the memory.

        Raises:
          FormatError: the folder is missing or damaged.
        """
        model, self._folder = captured_model(folder).original, folder
        self._checks = (checks(model) or []) if mode == XLA else []
        self._plain: Alone | None = None
        self._names = [x["name"] for x in model.meta["outputs"]]
        self._direct = {x["tensor"]: x["name"] for x in model.meta["arguments"]}
        self._outputs, self._arguments = [x["tensor"] for x in model.meta["outputs"]], [x["name"] for x in model.meta["arguments"]]
        self.updates: list[str] = model.meta["updates"]
        frozen = mode != PLAIN and not self.updates
        graph, values = _graph(model, frozen)
        taken = {text.lstrip("^").partition(":")[0] for node in graph.node for text in node.input}
        variables = {name: tf.Variable(model.weight(name), trainable=False) for name, resource in model.placeholders.items()
                     if resource in taken}
        self.variables = {} if frozen else variables
        constants = constants or bool(variables)  # a loop, for example, may read them
        jit, called = mode == XLA, frozen and not constants
        function = _function(model, graph, values, constants, variables, jit and not called, self._checks)
        if called:
            call, device = CapturedCall("alone", function, (), model, list(values), XLA if jit else OPERATIONS), _default_device()
            self._call = lambda *tensors: call(tensors, device)
        else:
            captured = function.captured_inputs  # the tensors that come are of these types: nobody need look at the signature again
            self._call = lambda *tensors: function.inference_fn.call_flat(*tensors, *captured)

    def __call__(self, arguments: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """One call. Args: arguments: tensors by name. Returns: results by name."""
        flat = self._call(*[arguments[name] for name in self._arguments])
        if self._checks and not flat[-1]:
            self._plain = self._plain or Alone(self._folder, PLAIN)
            return self._plain(arguments)
        made = iter(flat)
        return {name: arguments[self._direct[tensor]] if tensor in self._direct else next(made)
                for name, tensor in zip(self._names, self._outputs, strict=True)}


def _default_device() -> str:
    gpus = tf.config.list_logical_devices("GPU")
    return gpus[0].name if gpus else with_all_cores("/device:CPU:0")


def _graph(model: CapturedModel, frozen: bool) -> tuple[tf.compat.v1.GraphDef, dict[str, str]]:
    """The operations without arguments and variables; where these are frozen, also the tensor that stands for the value of each."""
    graph, name_of = model.library, {resource: name for name, resource in model.placeholders.items()}
    left_out, values = {*name_of, *(x["tensor"].partition(":")[0] for x in model.meta["arguments"])}, dict[str, str]()
    graph.node.extend(node for name, node in model.nodes.items() if name not in left_out)
    for node in list(graph.node) if frozen else ():
        resource = node.input[0].partition(":")[0] if node.input else ""
        batched = "batch_dims" in node.attr and node.attr["batch_dims"].i > 0
        if node.op not in ("ReadVariableOp", "ResourceGather") or resource not in name_of or batched:
            continue
        values[name_of[resource]] = f"{resource}/value:0"
        node.input[0], kind = f"{resource}/value", node.attr["dtype"].type
        del node.attr["dtype"]
        if node.op == "ReadVariableOp":
            node.op, node.attr["T"].type = "Identity", kind
        else:  # with a scalar 0 as its third operand
            axis = graph.node.add(name=f"{node.name}/axis", op="Const")
            axis.attr["dtype"].type = node.attr["Taxis"].type = tf.int32.as_datatype_enum
            axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0))
            node.op, node.attr["Tparams"].type = "GatherV2", kind
            node.input.insert(2, axis.name)
            del node.attr["validate_indices"]
    return graph, values


def _function(model: CapturedModel, graph: tf.compat.v1.GraphDef, values: Mapping[str, str], constants: bool,
              variables: Mapping[str, tf.Variable], jit: bool, looked_at: Sequence[Check]):
    """A function of the arguments and of the values of variables, or with these as constants."""
    arguments = [x["tensor"] for x in model.meta["arguments"]]
    computed = [x["tensor"] for x in model.meta["outputs"] if x["tensor"] not in arguments]

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        weights = [tf.constant(model.weight(name)) for name in values] if constants else tensors[len(arguments):]
        moved = {**dict(zip(arguments, tensors, strict=False)), **dict(zip(values.values(), weights, strict=True))}
        wanted = dict.fromkeys([*computed, *(check.tensor for check in looked_at)])
        made = {value: moved[value] for value in wanted if value in moved}
        rest = [value for value in wanted if value not in moved]
        made |= dict(zip(rest, model.imported(graph, moved, variables, rest), strict=True))
        hold = [tf.reduce_all([check.holds(made[check.tensor]) for check in looked_at])] if looked_at else []
        return [*(tf.identity(made[value]) for value in computed), *hold]

    register_functions(graph)
    specs = [tf.TensorSpec(x["shape"], x["dtype"]) for x in model.meta["arguments"]]
    specs += [] if constants else map(model.weight_spec, values)
    return tf.function(call, autograph=False, jit_compile=jit or None).get_concrete_function(*specs)
