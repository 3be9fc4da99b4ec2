"""A concrete function becomes a program: calls inlined, effects ordered, constants folded, what only passes tensors on left out."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection
from dataclasses import replace

import tensorflow as tf

from data.capture.calls.concrete import Concrete, users_line
from data.capture.operations import ALIASES, BRANCHES, CONTROL_FLOW, LOOPS
from data.capture.program import SHAPES, Node, Program, Tensor, constant, in_order, parse_inputs, reached, shape_attr, tensor_of, type_attr
from data.capture.rewriting.effects import Effects, Library, check_operations, control_edges, find_effects
from data.capture.rewriting.folding import fold
from data.capture.rewriting.functions import call_by_operation, check_functions, named_by_content
from data.capture.rewriting.inlining import Inliner
from data.capture.rewriting.references import read_as_resources
from data.capture.rewriting.scopes import moved_to_variables
from data.capture.rewriting.shapes import with_found_shapes
from doppler_tf.errors import ConfigError, field_error

MOST_OPERATIONS, MOST_BYTES = 100_000, 1 << 31
_ENSURES = "EnsureShape"


def read_program(source: Concrete, where: str, allow: Collection[str] = ()) -> tuple[Program, Effects]:
    """The program of a function, and what it does beside making tensors.

    Raises:
      ConfigError: the function is too large, or holds what cannot be captured; the message names the operation and the user's line.
    """
    program = _inlined(source, where)
    library = Library(program.library)
    program = _without_aliases(_gathers_as_reads(program), ALIASES - {_ENSURES})
    check_operations(program, library, where, allow)
    effects = find_effects(program, library, where)
    program = _one_read_a_version(program, effects)
    program = fold(pruned(program, effects))
    shaped = with_found_shapes(program)
    program = program if shaped is program else fold(shaped)
    program = pruned(_without_aliases(program, ALIASES), effects)
    effects = effects_of(effects, program)
    _check_fed(program, where)
    _check_conditions(program, where)
    _check_shapes_assigned(program, library, effects, where)
    after = control_edges(effects)
    nodes = {name: replace(node, controls=after.get(name, [])) for name, node in program.nodes.items()}
    return program.with_nodes(in_order(nodes) or nodes), effects


def _inlined(source: Concrete, where: str) -> Program:
    try:
        graph = source.function.graph.as_graph_def(add_shapes=True)
        size = graph.ByteSize()
    except ValueError as error:  # what protocol buffers cannot hold
        raise ConfigError(f"{where}: graph: expected less than 2 GB, got more ({error}); make large constants variables") from error
    if size >= MOST_BYTES:
        raise ConfigError(f"{where}: graph: expected less than 2 GB, got {size:,} bytes; make large constants variables")
    read_as_resources(graph, source, where)
    call_by_operation(graph)
    check_functions(graph, where)
    inliner = Inliner(graph, where)
    returned = parse_inputs(output.tensor for output in source.outputs)[0]
    names = inliner.expand(graph, returned)
    if len(inliner.nodes) > MOST_OPERATIONS:
        raise field_error(ConfigError, where, "", "operations", f"at most {MOST_OPERATIONS:,}", len(inliner.nodes),
                          "capture parts of the function, or loop with tf.while_loop")
    nodes = inliner.nodes
    for argument in source.arguments:
        shape = tf.compat.v1.AttrValue(shape=tf.TensorShape(argument.shape).as_proto())
        nodes[argument.placeholder] = _placeholder(nodes[argument.placeholder], argument.dtype, shape)
    for placeholder in source.variables:
        nodes[placeholder] = _placeholder(nodes[placeholder], tf.resource, None)
    for name, tensor in source.constants.items():
        nodes[name] = constant(name, tensor.numpy(), tensor.dtype, (None, name))
    moved_to_variables(nodes, source.variables, source.handles)
    nodes, library = named_by_content(nodes.values(), graph)
    return Program(in_order(nodes) or nodes, tuple(a.placeholder for a in source.arguments), source.variables,
                   tuple(map(names.tensor, returned)), library,
                   len(nodes), functools.partial(_line, source.function.graph))


def _check_fed(program: Program, where: str) -> None:
    """Raises ConfigError for a placeholder that is no argument."""
    unfed = next((node for name, node in program.nodes.items() if node.op in ("Placeholder", "PlaceholderV2")
                  and name not in program.arguments and name not in program.variables), None)
    if unfed is not None:
        raise ConfigError(f"{where}: operation {unfed.name!r}{program.line(unfed)}: expected placeholders that are arguments, got one that "
                          "nobody feeds; make it an argument of the function")


def _check_conditions(program: Program, where: str) -> None:
    """Raises ConfigError for a branch on several values, of which TensorFlow makes one thing or another."""
    branches = [node for node in program.nodes.values() if node.op in BRANCHES]
    graph = program.imported() if branches else None
    for node in branches:
        shape = graph.get_operation_by_name(node.name).inputs[0].shape
        if shape.rank:
            raise ConfigError(f"{where}: operation {node.name!r} ({node.op}){program.line(node)}: expected a condition of one value, got "
                              f"one of shape {shape}; reduce it (tf.reduce_all)")


def _check_shapes_assigned(program: Program, library: Library, effects: Effects, where: str) -> None:
    """Raises ConfigError where a variable of open shape is given another shape: the graph is made for the one that it has."""
    open_ = {v.name: v for v in program.variables.values() if v.open_shape}
    assigned = [(program.nodes[name], open_[variable]) for name, versions in effects.writes.items() for variable, _ in versions
                if variable in open_]
    graph = program.imported() if assigned else None
    for node, variable in assigned:
        shape = tensor_of(graph, node.inputs[1]).shape if node.op == "AssignVariableOp" else None
        hidden = "AssignVariableOp" in library.operations(node)
        if hidden or (shape is not None and tuple(shape) != variable.shape):
            got = "a loop or branch that assigns to it" if hidden else f"one of shape {shape}"
            raise ConfigError(f"{where}: operation {node.name!r}{program.line(node)}: variable {variable.name!r}: expected values of the "
                              f"shape that it has now, {list(variable.shape)}, got {got}; keep it at its largest size, or pass it as an "
                              "argument and return it")


def line_of(graph: tf.Graph, name: str) -> str:
    """The user's line that made an operation, wherever it is: what inlining and importing put before its name is left out."""
    graphs = [graph, *(getattr(graph._get_function(key), "graph", None) for key in getattr(graph, "_functions", ()))]
    parts = name.split("/")
    for tail in ("/".join(parts[k:]) for k in range(len(parts))):
        for each in graphs:
            with contextlib.suppress(AttributeError, KeyError, ValueError):
                return users_line(each.get_operation_by_name(tail).traceback)
    return ""


def _placeholder(node: Node, dtype: tf.DType, shape: tf.compat.v1.AttrValue | None) -> Node:
    attr = {"dtype": type_attr(dtype)} | ({} if shape is None else {"shape": shape})
    return replace(node, op="Placeholder", inputs=[], attr=attr)


def _line(graph, node: Node) -> str:
    """The user's line that made an operation, " (model.py:12)"; "" for functions that were read from files."""
    function, name = node.origin
    try:
        if function is not None:
            graph = graph._get_function(function).graph
        return users_line(graph.get_operation_by_name(name).traceback)
    except (AttributeError, KeyError, ValueError):
        return ""


def _gathers_as_reads(program: Program) -> Program:
    """ResourceGather becomes a read and a gather, as which it copies nothing."""
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        if node.op not in ("ResourceGather", "ResourceGatherNd") or node.inputs[0][0] not in program.variables:
            nodes[name] = node
            continue
        attr, read, axis = node.attr, f"{name}/read", f"{name}/axis"
        nodes[read] = Node(read, "ReadVariableOp", [node.inputs[0]], node.controls, {"dtype": attr["dtype"]}, node.origin)
        batch = attr["batch_dims"].i if "batch_dims" in attr else 0
        gather = {"Tparams": attr["dtype"], "Tindices": attr["Tindices"]}
        inputs = [(read, 0), node.inputs[1]]
        if node.op == "ResourceGather":
            nodes[axis] = constant(axis, batch, tf.int32, node.origin)
            inputs.append((axis, 0))
            gather |= {"Taxis": type_attr(tf.int32), "batch_dims": tf.compat.v1.AttrValue(i=batch)}
        op = "GatherV2" if node.op == "ResourceGather" else "GatherNd"
        nodes[name] = Node(name, op, inputs, [read], gather, node.origin, node.scopes)
    return program.with_nodes(nodes)


def _without_aliases(program: Program, aliases: Collection[str]) -> Program:
    """Who takes the output of an operation that only passes it on takes it where it is made. Nothing remains of controls.

    Args: aliases: the types of these operations; `EnsureShape` remains all the same where it checks a shape that depends on data.
    """
    instead: dict[Tensor, Tensor] = {}
    ensures = _ENSURES in aliases and any(node.op == _ENSURES for node in program.nodes.values())
    graph = program.imported() if ensures else None
    checks = {name for name, node in program.nodes.items() if ensures and node.op == _ENSURES
              and not graph.get_operation_by_name(name).inputs[0].shape.is_fully_defined()}
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        inputs = [instead.get(x, x) for x in node.inputs]
        if node.op in aliases and name not in checks:
            instead.update({(name, k): x for k, x in enumerate(inputs)})
        elif node.op != "NoOp":
            nodes[name] = replace(node, controls=[], attr=_kept_attributes(node))
            if node.op in LOOPS:  # a variable's resource comes out of a loop as it went in
                instead.update({(name, k): x for k, x in enumerate(inputs) if x[0] in program.variables})
    return program.with_nodes(nodes, instead)


def _kept_attributes(node: Node) -> dict:
    """Without devices to be near to, gradients and the like; loops keep what tells TensorFlow how to run them."""
    return {key: value for key, value in node.attr.items()
            if key == SHAPES or not key.startswith("_") or (node.op in CONTROL_FLOW and key != "_class")}


def _one_read_a_version(program: Program, effects: Effects) -> Program:
    """Each version of a variable is read once; what is known of variables without reading them becomes constants."""
    first: dict[tuple[str, int], str] = {}
    instead: dict[Tensor, Tensor] = {}
    nodes: dict[str, Node] = {}
    for name, node in program.nodes.items():
        variable = program.variables.get(node.inputs[0][0]) if node.inputs else None
        if name in effects.reads and name != first.setdefault(effects.reads[name], name):
            instead[name, 0] = (first[effects.reads[name]], 0)
        elif name in effects.reads:
            nodes[name] = replace(node, attr={"dtype": node.attr["dtype"], SHAPES: shape_attr([variable.shape])})
        elif node.op == "VarIsInitializedOp" and variable is not None:
            nodes[name] = constant(name, True, tf.bool, node.origin)
        elif node.op == "VariableShape" and variable is not None:
            dtype = tf.as_dtype(node.attr["out_type"].type) if "out_type" in node.attr else tf.int32
            nodes[name] = constant(name, list(variable.shape), dtype, node.origin)
        else:
            nodes[name] = node
    return program.with_nodes(nodes, instead)


def pruned(program: Program, effects: Effects) -> Program:
    """What neither outputs nor effects need goes, random numbers among it; arguments stay."""
    roots = [*program.arguments, *(name for name, _ in program.outputs), *effects.writes, *effects.lasting]
    return program.with_nodes(reached(program.nodes, [name for name in roots if name in program.nodes]))


def effects_of(effects: Effects, program: Program) -> Effects:
    """The effects of the operations that are left."""
    def left(table: dict) -> dict:
        return {name: value for name, value in table.items() if name in program.nodes}

    return replace(effects, reads=left(effects.reads), takes=left(effects.takes), writes=left(effects.writes),
                   ordered=[name for name in effects.ordered if name in program.nodes],
                   lasting=[name for name in effects.lasting if name in program.nodes],
                   seeded=[name for name in effects.seeded if name in program.nodes])
