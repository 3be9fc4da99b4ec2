"""Control flow of TensorFlow 1: each conditional or loop of switches and merges, whole, becomes a call of a function that holds it.

Behind a Switch only one side has values, and a loop goes round in a circle. TensorFlow's own executor knows both, so that the operations
stay as they are; only no vertex may hold a part of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import networkx as nx
import tensorflow as tf

from data.capture.program import SHAPES, Tensor, inseparable, parse_inputs, shape_attr

OPERATIONS = frozenset(("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond", "ControlTrigger", "_SwitchN", "RefSwitch",
                        "RefMerge", "RefEnter", "RefExit", "RefNextIteration"))
# Where a tensor has a value: the outcomes of all these predicates. Nowhere else is it made.
Condition = frozenset[tuple[str, int | str]]
ALWAYS: Condition = frozenset()


@dataclass
class Whole:
    """A graph in which nothing of TensorFlow 1's control flow is left outside of functions.

    Attributes:
      graph: with the new functions in its library.
      calls: operations that call them, and one that each holds.
      moved: what was made inside, as the output of a call.
      inside: the call that holds an operation.
    """

    graph: tf.compat.v1.GraphDef
    calls: dict[str, str] = field(default_factory=dict)
    moved: dict[Tensor, Tensor] = field(default_factory=dict)
    inside: dict[str, str] = field(default_factory=dict)


def with_whole_control_flow(graph: tf.compat.v1.GraphDef, library: tf.compat.v1.GraphDef, returned: Collection[Tensor]) -> Whole:
    """The graph with calls in place of conditionals and loops.

    Args:
      library: holds the functions that the graph calls.
      returned: tensors that are used from outside of the graph.
    """
    if not any(node.op in OPERATIONS for node in graph.node):
        return Whole(graph)
    kept = tf.compat.v1.GraphDef(versions=graph.versions)
    whole = Whole(kept)
    nodes = {node.name: node for node in graph.node}
    with tf.Graph().as_default() as imported:
        each = tf.compat.v1.GraphDef(library=library.library, versions=library.versions)
        each.node.extend(graph.node)
        tf.import_graph_def(each, name="")
    for members in _regions(nodes):
        _replace(members, nodes, imported, library, returned, whole)
    for node in graph.node:
        if node.name not in whole.inside:
            kept.node.add().CopyFrom(node)
    for node in kept.node:
        data, controls = parse_inputs(node.input)
        moved = [whole.moved.get(x, x) for x in data]
        node.input[:] = [f"{name}:{k}" for name, k in moved]
        node.input.extend(f"^{name}" for name in dict.fromkeys(whole.inside.get(name, name) for name in controls) if name != node.name)
    return whole


def _regions(nodes: dict[str, tf.compat.v1.NodeDef]) -> list[list[str]]:
    """The operations of each conditional and loop, and all that lies on a path between two of one."""
    edges = {name: [*((x, k) for x, k in data), *((c, None) for c in controls)]
             for name, node in nodes.items() for data, controls in [parse_inputs(node.input)]}
    together = nx.Graph()
    together.add_nodes_from(nodes)
    _join_loops(nodes, edges, together)
    loops = {name: i for i, members in enumerate(nx.connected_components(together)) for name in members}
    _join_conditionals(nodes, edges, together, loops)
    groups = inseparable({name: [x for x, _ in before] for name, before in edges.items()}, together)
    return [members for members in groups if any(nodes[name].op in OPERATIONS for name in members)]


def _join_loops(nodes, edges, together: nx.Graph) -> None:
    """Joins all that lies between the Enters and the Exits of a frame, frames inside it included."""
    takers: dict[str, list[str]] = {}
    for name in nodes:
        for x, _ in edges[name]:
            takers.setdefault(x, []).append(name)
    first: dict[str, str] = {}
    for enter in (name for name, node in nodes.items() if node.op in ("Enter", "RefEnter")):
        together.add_edge(first.setdefault(nodes[enter].attr["frame_name"].s.decode(), enter), enter)
        waiting, seen = [(enter, 1)], {(enter, 1)}
        while waiting:
            name, depth = waiting.pop()
            for taker in takers.get(name, ()):
                op = nodes[taker].op
                inner = depth + (op in ("Enter", "RefEnter")) - (op in ("Exit", "RefExit"))
                together.add_edge(enter, taker)
                if inner > 0 and (taker, inner) not in seen and inner <= len(nodes):
                    seen.add((taker, inner))
                    waiting.append((taker, inner))


def _join_conditionals(nodes, edges, together: nx.Graph, loops: dict[str, int]) -> None:
    """Joins what has no value on one side of a Switch to where that comes from, up to the Merge that has one on both."""
    between = nx.DiGraph()
    between.add_nodes_from(loops.values())
    between.add_edges_from((loops[x], loops[name]) for name in nodes for x, _ in edges[name])
    circles = nx.condensation(between)
    members: dict[int, list[str]] = {}
    for name, loop in loops.items():
        members.setdefault(circles.graph["mapping"][loop], []).append(name)
    where: dict[str, Condition] = {}

    def predicate(name: str) -> str:
        while nodes[name].op == "Identity":
            name = edges[name][0][0]
        return name

    def behind(edge: tuple[str, int | None]) -> Condition:
        x, k = edge
        if nodes[x].op not in ("Switch", "RefSwitch", "_SwitchN") or k is None or len(edges[x]) < 2:
            return where[x]
        return where[x] | {(predicate(edges[x][1][0]), k)}

    for circle in nx.topological_sort(circles):
        inside = set(members[circle])
        for name in members[circle]:
            taken = [edge for member in inside for edge in edges[member] if edge[0] not in inside]
            merges = nodes[name].op in ("Merge", "RefMerge") and len(inside) == 1
            where[name] = _merged(name, list(map(behind, taken))) if merges else ALWAYS.union(*map(behind, taken))
        for name in members[circle]:
            together.add_edges_from((edge[0], name) for edge in edges[name] if edge[0] in inside or behind(edge))


def _merged(name: str, sides: list[Condition]) -> Condition:
    """Where a Merge gives a value: wherever one of its sides does. Where that is cannot always be told; then it counts as a condition."""
    common = sides[0].intersection(*sides[1:]) if sides else ALWAYS
    only = [side - common for side in sides]
    if not all(only) or (len(only) == 2 and all(len(side) == 1 for side in only) and {
            (predicate, 1 - k) for predicate, k in only[0] if k in (0, 1)} == only[1]):
        return common
    return common | {(name, "merged")}


def _replace(members: list[str], nodes, imported: tf.Graph, library: tf.compat.v1.GraphDef, returned: Collection[Tensor],
             whole: Whole) -> None:
    """Makes a function of some operations, and a call of it."""
    inside = set(members)
    taken, before = dict[Tensor, None](), dict[str, None]()
    part = tf.compat.v1.GraphDef(library=library.library, versions=library.versions)
    for name in members:
        data, controls = parse_inputs(nodes[name].input)
        taken.update(dict.fromkeys(x for x in data if x[0] not in inside))
        before.update(dict.fromkeys(c for c in controls if c not in inside))
        node = part.node.add()
        node.CopyFrom(nodes[name])
        node.device = ""
        node.input[:] = [text for text in node.input if not text.startswith("^") or text[1:] in inside]
        for key in [key for key in node.attr if key.startswith("_")]:
            del node.attr[key]
    used = [x for name, node in nodes.items() if name not in inside for x in parse_inputs(node.input)[0]]
    given = list(dict.fromkeys(x for x in [*used, *returned] if x[0] in inside))
    feeds = [f"{name}:{k}" for name, k in taken]
    specs = [tf.TensorSpec(imported.get_tensor_by_name(feed).shape, imported.get_tensor_by_name(feed).dtype) for feed in feeds]

    def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return tf.import_graph_def(part, dict(zip(feeds, tensors, strict=True)), [f"{name}:{k}" for name, k in given], name="")

    function = tf.compat.v1.wrap_function(body, specs).function_def
    # Inlined, what waits for the call would wait for operations that may have no value, or for none.
    function.attr["_noinline"].b = True
    library.library.function.append(function)
    last = next(name for name in reversed(members) if nodes[name].op in OPERATIONS)
    name = last.rpartition("/")[0] or last  # the scope of a conditional or loop is called as it is
    while name in nodes or name in whole.calls:
        name += "_whole"
    call = whole.graph.node.add(name=name, op="StatefulPartitionedCall", input=[*feeds, *(f"^{each}" for each in before)])
    call.attr["f"].func.name = function.signature.name
    call.attr["Tin"].list.type.extend(spec.dtype.as_datatype_enum for spec in specs)
    made = [imported.get_tensor_by_name(f"{name}:{k}") for name, k in given]
    call.attr["Tout"].list.type.extend(x.dtype.as_datatype_enum for x in made)
    call.attr[SHAPES].CopyFrom(shape_attr(x.shape for x in made))
    whole.calls[name] = last
    whole.moved.update({x: (name, k) for k, x in enumerate(given)})
    whole.inside.update(dict.fromkeys(members, name))
