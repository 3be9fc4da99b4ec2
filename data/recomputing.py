"""Recomputation: cheap steps of a forward pass are computed again when the backward pass comes to them, so that less is held until then.

What the forward pass hands to the backward pass is a cut of the program: tensors that are kept, from which the others follow. The least cut
is the answer (Jain et al., Checkmate, arXiv 1910.02653, name the problem; with cheap steps alone it is a minimum cut). A step is
computed again only if its bytes are saved: what is computed again from tensors as large, that would else be freed, saves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import networkx as nx

from data.einsum_program import EinsumProgram
from data.steps import Expression, Step, View
from data.terms import renamed
from data.training import TrainingStep

# An element that is kept is worth as many that are read and written to compute it again: a third of what the memory of a P100 moves
# while its link to the host moves one.
WORTH = 20
# Each step counts as so many elements more: a P100 moves three times as many float16 while it launches a kernel.
LAUNCH = 1_000_000


def recomputed(made: TrainingStep, turn: str, launch: int = LAUNCH) -> TrainingStep:
    """The training step in which cheap steps before the turn are computed again for the steps behind it. Its outputs are the same.

    A step that is computed again waits for the gradient with which its first reader begins (`Expression.after`): else a runtime that starts
    what it can would compute it at once, and hold it as long. Steps that only the backward pass reads wait likewise, without being
    computed twice.

    Args:
      turn: the tensor where the backward pass begins: steps that depend on it belong to that pass.
      launch: what a step costs beside the elements that it reads and writes, in elements.
    """
    program = made.program
    behind, place, at_of = {turn}, {}, {}
    for at, step in enumerate(program.steps):
        place[step.name] = at
        if not behind.isdisjoint(step.reads):
            behind.add(step.name)
    behind.discard(turn)
    names = _names(program, _computed_again(program, turn, behind, launch))
    for at, step in reversed([*enumerate(program.steps)]):
        if step.name in behind or step.name in names:
            first = at if step.name in behind else at_of[step.name]
            at_of |= {tensor: min(first, at_of.get(tensor, first)) for tensor in step.reads if tensor in names}
    late: dict[int, list[Step]] = {}
    for step in program.steps:
        if step.name in names:
            reader = program.steps[at_of[step.name]]
            gradient = _behind_views(program, max((t for t in reader.reads if t in behind or t == turn), key=place.__getitem__))
            again = renamed(step, names)
            late.setdefault(at_of[step.name], []).append(again if isinstance(step, View) else replace(again, after=gradient))
    steps = []
    for at, step in enumerate(program.steps):
        steps += [*late.get(at, ()), renamed(step, {t: names[t] for t in names if t != step.name}) if step.name in behind else step]
    needed, kept = set(program.outputs), []
    for step in reversed(steps):
        if step.name in needed:
            needed |= step.reads
            kept.append(step)
    sources = {again: made.sources.get(name, name) for name, again in names.items()}
    return TrainingStep(EinsumProgram(program.sizes, program.inputs, tuple(reversed(kept)), program.outputs), {**made.sources, **sources})


def _computed_again(program: EinsumProgram, turn: str, behind: Collection[str], launch: int) -> set[str]:
    """The steps before the turn that are computed again behind it: the sink's side of the least cut.

    Each step is an edge. To cut it is to keep its tensor, at the cost of its elements. Its start on the sink's side means that it is
    computed again, at the cost of what it reads and writes, and that all that it reads is there. Outputs and the turn are there anyway.
    """
    graph, before = nx.DiGraph(), {step.name: step for step in program.steps if step.name not in behind}
    graph.add_nodes_from(("source", "sink"))
    for step in program.steps:
        for tensor in step.reads & before.keys():
            graph.add_edge((tensor, "end"), (step.name, "start") if step.name in before else "sink")
        if step.name not in before:
            continue
        start, size = (step.name, "start"), math.prod(program.shapes[step.name])
        if isinstance(step, View):
            graph.add_edge(start, (step.name, "end"))
            continue
        graph.add_edge(start, (step.name, "end"), capacity=0 if step.name in (turn, *program.outputs) else WORTH * size)
        moved = launch + size + sum(math.prod(program.shapes[tensor]) for tensor in step.reads)
        graph.add_edge("source", start, **({"capacity": moved} if _is_cheap(program, step) else {}))
    _, (_, sink_side) = nx.minimum_cut(graph, "source", "sink")
    return {name for name in before if (name, "start") in sink_side}


def _is_cheap(program: EinsumProgram, step: Step) -> bool:
    """Whether it has no more points than its largest tensor has elements. Products of matrices have more."""
    points = math.prod(program.sizes[label] for label in step.space)
    return isinstance(step, Expression) and points <= max(math.prod(program.shapes[tensor]) for tensor in (step.name, *step.reads))


def _names(program: EinsumProgram, again: Collection[str]) -> dict[str, str]:
    """Names of what is computed again, by the old ones. A view of what is kept need not be another one."""
    names: dict[str, str] = {}
    for step in program.steps:
        if step.name in again and not (isinstance(step, View) and step.tensor not in names):
            names[step.name] = f"{step.name}_again"
            while names[step.name] in program.shapes:
                names[step.name] += "_"
    return names


def _behind_views(program: EinsumProgram, tensor: str) -> str:
    while tensor in program.views:
        tensor = program.views[tensor].tensor
    return tensor
