"""Random placement problems of many kinds: graphs and the devices to place them on, drawn from a seed.

The kinds are random einsum programs cut into tiles, layered graphs, series-parallel graphs, phases of forks and joins, and blocks that
repeat; all but programs may have a backward pass, constants, small operators in place of a vertex, and colocation groups. No kind copies
the structure of a known model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data.decompose import decompose
from data.eindecomp import eindecomp, labelled
from data.einsum_program import EinsumProgram, contract, elementwise, reduction, tensor_input
from data.steps import Expression
from doppler_tf.graph.costs import CostModel, build_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Device, Topology

DEVICES = (2, 3, 4, 4, 6, 8, 8, 16)
FAMILIES = ("program", "layered", "series_parallel", "fork_join", "stack")
# Seconds of all transfers over seconds of all vertices, on a logarithmic scale; and how many labels a random program has.
_RATIO, _LABELS = (0.05, 10.0), "abcdef"
# Of graphs that are nearly a path there is nothing to learn. Tied vertices are at most so many.
_MOST_SERIAL, _MOST_TIED = 0.7, 8
_TRIES = 100


class Problem(NamedTuple):
    """A generated graph, its costs on its devices, and the kind that it is of."""

    graph: DataflowGraph
    costs: CostModel
    family: str


class _Sketch(NamedTuple):
    """A graph without devices: float [N] exec and output, int [E] sources and targets, int [N] colocation groups (-1: none)."""

    exec_s: np.ndarray
    output: np.ndarray
    source: np.ndarray
    target: np.ndarray
    group: np.ndarray


def generated_problem(seed: int, vertices: tuple[int, int] = (20, 250), devices: int | None = None, family: str | None = None) -> Problem:
    """Draws a problem. Equal arguments give equal problems.

    Args:
      vertices: the least and the most vertices that are not inputs.
      devices: how many; None: one of DEVICES.
      family: one of FAMILIES; None: any.
    """
    rng = np.random.default_rng([seed, 32])
    family = family or str(rng.choice(FAMILIES))
    devices = devices or int(rng.choice(DEVICES))
    for _ in range(_TRIES):
        size = int(np.exp(rng.uniform(np.log(vertices[0]), np.log(vertices[1]))))
        name = f"{family} {seed}"
        graph = _program(rng, size, devices, name) if family == "program" else _from_sketch(_sketch(rng, family, size, devices), name)
        if vertices[0] <= graph.work_vertices.size <= vertices[1] and graph.work_edges.size:
            costs = _costs(rng, graph, devices)
            if _longest_s(graph, costs.mean_exec_s) <= _MOST_SERIAL * costs.mean_exec_s.sum():
                return Problem(graph, costs, family)
    return generated_problem(seed + (1 << 32), vertices, devices, "layered")


def _longest_s(graph: DataflowGraph, exec_s: np.ndarray) -> float:
    """The longest path, of exec alone."""
    begin = np.zeros(graph.num_vertices)
    for v in graph.topological_order.tolist():
        edges = graph.successors.edge[graph.successors.ptr[v]:graph.successors.ptr[v + 1]]
        np.maximum.at(begin, graph.targets[edges], begin[v] + exec_s[v])
    return float((begin + exec_s).max())


def _costs(rng: np.random.Generator, graph: DataflowGraph, devices: int) -> CostModel:
    """Devices that are equal or not, and links: free of waiting, of one speed, or of two levels, slow or fast for this graph."""
    speeds = np.exp2(rng.integers(-2, 1, devices)) if rng.random() < 0.25 else np.ones(devices)
    memory_bound = np.exp(rng.uniform(np.log(0.003), np.log(3.0)))
    made = tuple(Device(f"device:{d}", float(speed), float(speed) * memory_bound if graph.attributes.get("program") else None)
                 for d, speed in enumerate(speeds))
    kind = rng.choice(("free", "free", "one level", "two levels"))
    other, group = ~np.eye(devices, dtype=bool), np.arange(devices) * 2 // devices
    slower = np.where(group[:, None] == group, 1.0, rng.uniform(2.0, 10.0) if kind == "two levels" else 1.0)
    trial = build_costs(graph, Topology("trial", made, np.where(other, 1.0, np.inf), np.zeros((devices, devices)), None))
    exec_s, count = trial.mean_exec_s.sum(), graph.work_vertices.size
    ratio = np.exp(rng.uniform(*np.log(_RATIO)))
    bandwidth = trial.edge_bytes[graph.work_edges].sum() / (ratio * exec_s)
    latency = 0.0 if kind == "free" else rng.choice((0.0, 0.02, 0.2)) * exec_s / count
    topology = Topology(f"{kind}:{devices}", made, np.where(other, bandwidth / slower, np.inf), np.where(other, latency, 0.0),
                        None if kind == "free" else 1)
    return build_costs(graph, topology)


def _program(rng: np.random.Generator, size: int, devices: int, name: str) -> DataflowGraph:
    """A random einsum program, cut by EinDecomp or at random."""
    program = _random_program(rng, int(rng.integers(3, 13)))
    pieces = int(np.clip(size / (2 * len(program.expressions)), 1, 4 * devices))
    pieces = 1 << int(np.log2(pieces))
    if rng.random() < 0.6:
        tiling = eindecomp(labelled(program), pieces, count_inputs=False)
    else:
        tiling = {e.name: _random_parts(rng, e, program, pieces) for e in program.expressions}
    return decompose(program, tiling, 4, {"name": name, "program": True})


def _random_parts(rng: np.random.Generator, expression: Expression, program: EinsumProgram, pieces: int) -> dict[str, int]:
    parts = dict.fromkeys(expression.space, 1)
    while np.prod(list(parts.values())) < pieces:
        label = str(rng.choice(list(parts)))
        if 2 * parts[label] > program.sizes[label]:
            break
        parts[label] *= 2
    return parts


def _random_program(rng: np.random.Generator, steps: int) -> EinsumProgram:
    """Products with weights and with each other, sums, maps, and divisions by what a reduction has left, over matrices."""
    sizes = {label: int(2 ** rng.integers(5, 12)) for label in _LABELS}
    inputs = {"x": tensor_input("a b")}
    known, made = {"x": ("a", "b")}, []

    def pick(fits=lambda labels: True) -> str | None:
        names = [name for name, labels in known.items() if fits(labels)]
        weights = 0.6 ** np.arange(len(names))[::-1]  # the latest are read most
        return str(rng.choice(names, p=weights / weights.sum())) if names else None

    for i in range(steps):
        name, left = f"e{i}", pick(lambda labels: len(labels) == 2)
        a, b = known[left]
        kind = rng.choice(("weight", "weight", "product", "sum", "sum", "map", "normal"))
        shared = {"sum": 2, "product": 1}.get(str(kind))
        other = shared and pick(lambda labels, both={a, b}, number=shared: len(labels) == 2 and len(both & set(labels)) == number)
        if kind == "sum" and other != left:
            pattern = f"{a} {b}, {' '.join(known[other])} -> {a} {b}"
            made.append(elementwise(name, str(rng.choice(("add", "mul", "sub"))), pattern, left, other))
            known[name] = (a, b)
        elif kind == "product" and other is not None:
            shared = ({a, b} & set(known[other])).pop()
            kept = tuple(label for label in (a, b, *known[other]) if label != shared)
            made.append(contract(name, f"{a} {b}, {' '.join(known[other])} -> {' '.join(kept)}", left, other))
            known[name] = kept
        elif kind == "normal":
            made.append(reduction(f"{name}r", str(rng.choice(("sum", "max"))), f"{a} {b} -> {a}", left))
            made.append(elementwise(name, "div", f"{a} {b}, {a} -> {a} {b}", left, f"{name}r"))
            known[name] = (a, b)
        elif kind == "map":
            made.append(elementwise(name, str(rng.choice(("relu", "exp", "silu"))), f"{a} {b} -> {a} {b}", left))
            known[name] = (a, b)
        else:
            new = str(rng.choice([label for label in _LABELS if label not in (a, b)]))
            inputs[f"w{i}"] = tensor_input(f"{b} {new}")
            made.append(contract(name, f"{a} {b}, {b} {new} -> {a} {new}", left, f"w{i}"))
            known[name] = (a, new)
    return EinsumProgram(sizes, inputs, tuple(made))


def _sketch(rng: np.random.Generator, family: str, size: int, devices: int) -> _Sketch:
    """A graph of about so many vertices, with costs, perhaps with a backward pass, cut into operators, or with colocation groups."""
    backward, chopped, weighted = rng.random() < 0.2, rng.random() < 0.25, rng.random() < 0.25
    size = max(8, int(size / (2.2 if backward else 1) / (2.5 if chopped else 1) / (1.5 if weighted else 1)))
    if family == "stack":
        copies = int(rng.integers(2, max(3, min(12, size // 6))))
        block = _costed(rng, *_edges(rng, str(rng.choice(FAMILIES[1:4])), max(5, size // copies), devices))
        sketch = _repeated(rng, block, copies)
    else:
        sketch = _costed(rng, *_edges(rng, family, size, devices))
    if backward:
        sketch = _with_backward(rng, sketch)
    if chopped:
        sketch = _chopped(rng, sketch)
    if weighted:
        sketch = _with_weights(rng, sketch)
    return sketch._replace(group=_groups(rng, sketch)) if rng.random() < 0.25 else sketch


def _edges(rng: np.random.Generator, family: str, size: int, devices: int) -> tuple[int, np.ndarray, np.ndarray]:
    """The number of vertices, and sources and targets."""
    if family == "series_parallel":
        pairs = _series_parallel(rng, size)
    elif family == "fork_join":
        pairs = _fork_join(rng, size, devices)
    else:
        pairs = _layers(rng, size, devices)
    pairs = np.unique(np.array(pairs), axis=0)
    return int(pairs.max()) + 1, pairs[:, 0], pairs[:, 1]


def _layers(rng: np.random.Generator, size: int, devices: int) -> list[tuple[int, int]]:
    """Layers of random width; every vertex reads from the layer before, near its own place or anywhere, and some from further back."""
    wide = int(rng.integers(1, 3 * devices + 1))
    layers, first = [], 0
    while first < size:
        width = int(rng.integers(max(1, wide // 2), wide + 1))
        layers.append(np.arange(first, min(first + width, size)))
        first += width
    if len(layers) == 1:
        return [(v, size) for v in layers[0].tolist()]
    degree, near, skip = rng.uniform(1.0, 3.0), rng.random() < 0.6, rng.random() < 0.4
    pairs = []
    for i, layer in enumerate(layers[1:], 1):
        for place, v in enumerate(layer.tolist()):
            for k in range(1 + rng.poisson(degree - 1)):
                behind = layers[i - 1 - int(skip and k and rng.integers(0, min(3, i)))]
                at = place * len(behind) // len(layer) + int(rng.integers(-1, 2)) * (k > 0) if near else int(rng.integers(len(behind)))
                pairs.append((int(behind[at % len(behind)]), v))
    return pairs


def _series_parallel(rng: np.random.Generator, size: int) -> list[tuple[int, int]]:
    """An edge that is again and again replaced: by two in series, or doubled around a vertex."""
    edges, count = [(0, 1)], 2
    parallel = rng.uniform(0.3, 0.7)
    while count < size:
        at = int(rng.integers(len(edges)))
        u, v = edges[at]
        if rng.random() < parallel:
            edges.append((u, count))
            edges.append((count, v))
        else:
            edges[at] = (u, count)
            edges.append((count, v))
        count += 1
    return edges


def _fork_join(rng: np.random.Generator, size: int, devices: int) -> list[tuple[int, int]]:
    """Phases of parallel chains between single vertices or exchanges of all with all."""
    width, pairs = int(rng.integers(2, 2 * devices + 1)), []
    exchange, count = rng.random() < 0.4, 1
    ends = [0]
    while count < size:
        length, begin = int(rng.integers(1, 4)), ends
        ends = []
        for lane in range(width):
            sources = begin if exchange and len(begin) <= 4 else [begin[lane % len(begin)]]
            pairs += [(u, count) for u in sources]
            pairs += [(count + k, count + k + 1) for k in range(length - 1)]
            ends.append(count + length - 1)
            count += length
        if not exchange or width > 4:
            pairs += [(u, count) for u in ends]
            ends, count = [count], count + 1
    return pairs


def _costed(rng: np.random.Generator, count: int, source: np.ndarray, target: np.ndarray) -> _Sketch:
    """Log-normal costs, of some classes or of each vertex, more or less spread; bytes that go with exec or do not."""
    spread, classes = rng.choice((0.0, 0.3, 1.0, 1.8)), int(rng.integers(2, 7))
    kind = rng.integers(0, classes, count) if rng.random() < 0.5 else np.arange(count)
    exec_s = np.exp(spread * rng.standard_normal(max(classes, count)))[kind]
    output = np.exp(rng.choice((0.0, 0.5, 1.0)) * rng.standard_normal(max(classes, count)))[kind]
    return _Sketch(exec_s, output * exec_s if rng.random() < 0.4 else output, source, target, np.full(count, -1))


def _repeated(rng: np.random.Generator, block: _Sketch, copies: int) -> _Sketch:
    """One block after another: what ends a copy feeds what begins the next."""
    count = len(block.exec_s)
    ends = np.setdiff1d(np.arange(count), block.source)
    begins = np.setdiff1d(np.arange(count), block.target)
    longest = max(len(ends), len(begins))
    links = [(ends[i % len(ends)], begins[i % len(begins)]) for i in range(longest)]
    if longest <= 4 and rng.random() < 0.5:
        links = [(u, v) for u in ends for v in begins]
    source = [block.source + i * count for i in range(copies)]
    target = [block.target + i * count for i in range(copies)]
    for i in range(copies - 1):
        source.append(np.array([u for u, _ in links]) + i * count)
        target.append(np.array([v for _, v in links]) + (i + 1) * count)
    return _Sketch(np.tile(block.exec_s, copies), np.tile(block.output, copies), np.concatenate(source), np.concatenate(target),
                   np.full(count * copies, -1))


def _with_backward(rng: np.random.Generator, forward: _Sketch) -> _Sketch:
    """Every vertex has a mirror that reads its output and runs after the mirrors of its consumers; some mirrors end in an update."""
    count = len(forward.exec_s)
    own = np.arange(count)
    updated = own[rng.random(count) < rng.uniform(0, 0.5)]
    source = np.concatenate([forward.source, forward.target + count, own, updated + count])
    target = np.concatenate([forward.target, forward.source + count, own + count, 2 * count + np.arange(len(updated))])
    group = np.concatenate([own, own, updated]) if rng.random() < 0.3 else np.full(2 * count + len(updated), -1)
    return _Sketch(np.concatenate([forward.exec_s, rng.uniform(1, 2) * forward.exec_s, 0.1 * forward.exec_s[updated]]),
                   np.concatenate([forward.output, forward.output, 0.01 * forward.output[updated]]), source, target, group)


def _chopped(rng: np.random.Generator, whole: _Sketch) -> _Sketch:
    """Every vertex as a chain of operators, of which one has most of its time."""
    length = rng.integers(1, 5, len(whole.exec_s))
    last = np.cumsum(length) - 1
    first = last - length + 1
    heavy = first + rng.integers(0, length)
    share = np.full(last[-1] + 1, rng.choice((0.0, 0.02)))
    share[heavy] = 1.0
    of = np.repeat(np.arange(len(length)), length)
    within = np.setdiff1d(np.arange(last[-1] + 1), last)
    return _Sketch(share * whole.exec_s[of], whole.output[of], np.concatenate([last[whole.source], within]),
                   np.concatenate([first[whole.target], within + 1]), whole.group[of])


def _with_weights(rng: np.random.Generator, sketch: _Sketch) -> _Sketch:
    """Some vertices read a constant, a vertex that takes no time and has no inputs; constants may be tied to their readers."""
    count = len(sketch.exec_s)
    readers = np.flatnonzero(rng.random(count) < rng.uniform(0.2, 0.9))
    group = sketch.group
    if rng.random() < 0.5:
        free = np.arange(count) + count
        group = np.where(group < 0, free, group)
    output = np.exp(rng.standard_normal(len(readers))) * rng.choice((0.1, 1.0)) * sketch.output.mean()
    tied = np.concatenate([group, group[readers]])
    _, index, size = np.unique(tied, return_inverse=True, return_counts=True)
    return _Sketch(np.append(sketch.exec_s, np.zeros(len(readers))), np.append(sketch.output, output),
                   np.append(sketch.source, count + np.arange(len(readers))), np.append(sketch.target, readers),
                   np.where(size[index] > 1, tied, -1))


def _groups(rng: np.random.Generator, sketch: _Sketch) -> np.ndarray:
    """Some neighbours are tied to each other."""
    count = len(sketch.exec_s)
    group = np.where(sketch.group >= 0, sketch.group + count, np.arange(count))
    for e in np.flatnonzero(rng.random(len(sketch.source)) < rng.uniform(0.05, 0.4)).tolist():
        one, other = group == group[sketch.source[e]], group == group[sketch.target[e]]
        if (one | other).sum() <= _MOST_TIED:
            group[other] = group[sketch.source[e]]
    _, index, size = np.unique(group, return_inverse=True, return_counts=True)
    return np.where(size[index] > 1, group, -1)


def _from_sketch(sketch: _Sketch, name: str) -> DataflowGraph:
    nodes = [{"id": v, "flops": e, "output_bytes": b, **({"colocate": f"group {g}"} if g >= 0 else {})} for v, (e, b, g) in enumerate(
        zip(sketch.exec_s.tolist(), sketch.output.tolist(), sketch.group.tolist(), strict=True))]
    edges = [{"source": u, "target": v} for u, v in zip(sketch.source.tolist(), sketch.target.tolist(), strict=True)]
    return graph_from_records(nodes, edges, {"name": name}, name)
