"""Tilings known by name, found from the program: data parallel (rows are cut), tensor parallel (weights are cut), and their mixture.

Rows are the first axis of the outputs, followed back through the program. Tensor parallel is that of Megatron-LM (Shoeybi et al.,
arXiv 1909.08053): a product cuts the columns of its weight, what follows keeps that cut, and the product that contracts it cuts the rows of
its own weight, so that its partial results are summed. What lies between such pairs is cut by rows, as nothing is computed twice here
(Korthikanti et al., arXiv 2205.05198).
"""

from __future__ import annotations

from data.einsum_program import EinsumProgram
from data.steps import Expression, Pad, View
from data.tiling import Tiling


def parallel(program: EinsumProgram, rows: int, columns: int = 1) -> Tiling:
    """Every expression cut into at most rows x columns pieces. Args: rows, columns: (N, 1) is data parallel, (1, N) tensor parallel."""
    row, column = row_labels(program), column_labels(program) if columns > 1 else {}
    tiling = {}
    for e in program.expressions:
        cuts = {row[e.name]: rows if e.name in column else rows * columns} if row[e.name] else {}
        if e.name in column:
            cuts |= {column[e.name]: columns * (rows if column[e.name] == row[e.name] else 1)}
        tiling[e.name] = {label: min(parts, program.sizes[label]) for label, parts in cuts.items() if label not in e.whole}
    return tiling


def row_labels(program: EinsumProgram) -> dict[str, str | None]:
    """The label of each expression's rows: that by which its first reader with rows reads them, else the first of its own."""
    axis: dict[str, int] = dict.fromkeys(program.outputs, 0)  # by tensor
    found = {}
    for step in reversed(program.steps):
        at = axis.get(step.name, 0)
        label = step.labels[at] if step.labels else None
        if isinstance(step, Expression):
            found[step.name] = label or next(iter(step.space), None)
            for use in step.operands:
                if found[step.name] in use.labels:
                    axis.setdefault(use.tensor, use.labels.index(found[step.name]))
            continue
        found[step.name] = label
        behind = program.shapes[step.tensor if isinstance(step, View) else step.operand.tensor]
        if label is not None and behind[at] == program.sizes[label]:
            axis.setdefault(step.tensor if isinstance(step, View) else step.operand.tensor, at)
    return {e.name: found[e.name] for e in program.expressions}


def column_labels(program: EinsumProgram) -> dict[str, str]:
    """The label that comes from a cut weight, for each expression that has one."""
    axis: dict[str, int] = {}  # of each tensor whose columns are cut
    found = {}
    for step in program.steps:
        if isinstance(step, View):
            if step.tensor in axis and program.shapes[step.tensor][axis[step.tensor]] == program.sizes[step.labels[axis[step.tensor]]]:
                axis[step.name] = axis[step.tensor]
            continue
        label = next((use.labels[axis[use.tensor]] for use in step.operands if use.tensor in axis), None)
        if isinstance(step, Pad):
            label = None if label is None or program.sizes[label] != program.sizes[step.labels[axis[step.operand.tensor]]] else (
                step.labels[axis[step.operand.tensor]])
        elif label is None and (step.fn, step.aggregate) == ("mul", "sum"):
            label = _weight_columns(program, step)
        if label is not None and label not in step.whole:
            found[step.name] = label
            if label in step.labels:
                axis[step.name] = step.labels.index(label)
    return found


def _weight_columns(program: EinsumProgram, product: Expression) -> str | None:
    """The first label that a product takes from an input alone, the last input first."""
    for k, use in reversed([*enumerate(product.operands)]):
        other = product.operands[1 - k].labels
        if use.tensor in program.inputs:
            return next((label for label in use.labels if label in product.labels and label not in other), None)
    return None
