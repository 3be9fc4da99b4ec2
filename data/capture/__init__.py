"""Models of users become graphs: a tf.function, a Keras model or a SavedModel is read, cut into pieces and written beside its graph.

One file more here would read another format (ONNX, StableHLO): it has to make a `program.Program`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data.capture.calls.concrete import Concrete, concrete
from data.capture.calls.raised import in_one_line
from data.capture.calls.source import Source, read_source, title_of
from data.capture.cuts.cutting import cut_program
from data.capture.cuts.graph import build_graph
from data.capture.cuts.model_folder import write_model
from data.capture.cuts.pieces import Wiring
from data.capture.rewriting.effects import EVERYTHING
from data.capture.rewriting.freezing import fold_weights, freeze
from data.capture.rewriting.reading import effects_of, line_of, pruned, read_program
from doppler_tf.graph.dataflow import DataflowGraph

__all__ = ["EVERYTHING", "Captured", "Source", "capture", "capture_counted", "read_source"]


@dataclass(frozen=True)
class Captured:
    """A graph, and what became of the operations.

    Attributes:
      operations: how many the function had once calls were inlined; computing: of them; cut, scoped: of these, the last in a `tf.device`
        scope.
    """

    graph: DataflowGraph
    operations: int
    computing: int
    cut: int
    scoped: int

    @property
    def dropped_scopes(self) -> str:
        """What to tell where scopes were not kept."""
        return f"the tf.device scopes of {self.scoped:,} operation{'s' * (self.scoped > 1)} were dropped"


def capture_counted(function, example_inputs=None, *, model_folder: str | Path, name: str | None = None, grouping: bool = True,
                    pieces: int | None = None, allow: Collection[str] = (), keep_devices: bool = False,
                    example_keywords: Mapping[str, Any] | None = None, freeze_variables: bool = True) -> Captured:
    """The graph of a function, and what became of its operations; what the vertices run is written into a folder.

    Args:
      function: a tf.function, a ConcreteFunction, a Keras model (captured in inference), any callable, or what `read_source` or
        `concrete` gives.
      example_inputs: a tuple holds the positional arguments, anything else is the only one; arrays, tensors, TensorSpecs and floats, of
        which shapes and types count, in structures. Other Python values become part of the function.
      model_folder: gets operations and variables; one that is there is replaced.
      name: of the graph (default: the function's).
      grouping: small vertices join their neighbours where that costs no parallelism.
      pieces: products and convolutions are cut into so many tiles, and so is what lies between them; None: nothing is cut.
      allow: operations to let through that touch files, the network or Python; `EVERYTHING` stands for all.
      keep_devices: `tf.device` scopes become pins of vertices, as texts ("/device:GPU:1") that topologies resolve; else they are dropped.
      example_keywords: further arguments, by name.
      freeze_variables: those that the function only reads, less than 2 GB in all, become constants with the values that they have now.

    Raises:
      ConfigError: the function cannot be captured, or scopes contradict each other; the message names the operation and the user's line.
      FormatError: the folder cannot be written.
    """
    if not isinstance(function, Source | Concrete):
        title = title_of(function)
        function = Source(function, example_inputs, title, title, example_keywords=example_keywords)
    if isinstance(function, Source):
        name, source = name or function.name, concrete(function.function, function.example_inputs, function.text, function.example_keywords)
    else:
        source = function
    where, folder = source.binding.signature.where, Path(model_folder)
    with in_one_line(where, functools.partial(line_of, source.function.graph)):
        original, effects = read_program(source, where, allow)
        core = Wiring(original, effects).core
        scoped = sum(bool(original.nodes[key].scopes) for key in core)
        if scoped and not keep_devices:
            original = original.with_nodes({key: replace(node, scopes=()) for key, node in original.nodes.items()})
        whole, their_effects = freeze(original, effects, source.handles) if freeze_variables else (original, effects)
        cut = whole if pieces is None or pieces == 1 else cut_program(whole, pieces)
        program, effects = fold_weights(cut, their_effects)
        if program is not original:
            program = pruned(program, effects)
            effects = effects_of(effects, program)
        wiring = Wiring(program, effects)
        graph = build_graph(wiring, source, where, name or where, folder, grouping)
        write_model(folder, program, effects, source, where, original)
    return Captured(graph, program.operations, len(core), len(whole.nodes.keys() - cut.nodes.keys()), scoped)


def capture(function, example_inputs=None, **options) -> DataflowGraph:
    """The graph alone of what `capture_counted` gives; takes the same."""
    return capture_counted(function, example_inputs, **options).graph
