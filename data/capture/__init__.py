"""Models of users become graphs: a tf.function, a Keras model or a SavedModel is read, cut into pieces and written beside its graph.

One file more here would read another format (ONNX, StableHLO): it has to make a `program.Program`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from data.capture.concrete import concrete
from data.capture.cutting import cut_program
from data.capture.effects import EVERYTHING
from data.capture.graph import build_graph
from data.capture.model_folder import write_model
from data.capture.pieces import Wiring
from data.capture.raised import in_one_line
from data.capture.reading import line_of, read_program
from data.capture.source import Source, read_source
from doppler_tf.graph import DataflowGraph

__all__ = ["EVERYTHING", "Captured", "Source", "capture", "capture_counted", "read_source"]


def capture(function, example_inputs=None, *, model_folder: str | Path, name: str | None = None, grouping: bool = True,
            pieces: int | None = None, allow: Collection[str] = ()) -> DataflowGraph:
    """The graph of a function; what its vertices run is written into a folder.

    Args:
      function: a tf.function, a ConcreteFunction, a Keras model (captured in inference), any callable, or what `read_source` gives.
      example_inputs: a tuple holds the positional arguments, anything else is the only one; arrays, tensors or TensorSpecs, in
        structures. Only shapes and types count.
      model_folder: gets operations and variables; one that is there is replaced.
      name: of the graph (default: the function's).
      grouping: small vertices join their neighbours where that costs no parallelism.
      pieces: products and convolutions are cut into so many tiles, and so is what lies between them; None: nothing is cut.
      allow: operations to let through that touch files, the network or Python; `EVERYTHING` stands for all.

    Raises:
      ConfigError: the function cannot be captured; the message names the operation and the user's line.
      FormatError: the folder cannot be written.
    """
    return capture_counted(function, example_inputs, model_folder=model_folder, name=name, grouping=grouping, pieces=pieces,
                           allow=allow).graph


@dataclass(frozen=True)
class Captured:
    """A graph, how many operations the function had once calls were inlined, how many of them compute, and how many of these were cut."""

    graph: DataflowGraph
    operations: int
    computing: int
    cut: int


def capture_counted(function, example_inputs=None, *, model_folder: str | Path, name: str | None = None, grouping: bool = True,
                    pieces: int | None = None, allow: Collection[str] = ()) -> Captured:
    """As `capture`; tells what became of the operations, too."""
    if not isinstance(function, Source):
        names = (getattr(function, key, None) for key in ("name", "__name__"))
        title = next((name for name in names if isinstance(name, str)), type(function).__name__)
        function = Source(function, example_inputs, title, title)
    where, folder = function.text, Path(model_folder)
    with in_one_line(where):
        source = concrete(function.function, function.example_inputs, where)
    with in_one_line(where, functools.partial(line_of, source.function.graph)):
        original, effects = read_program(source, where, allow)
        program = original if pieces is None or pieces == 1 else cut_program(original, pieces)
        wiring = Wiring(program, effects)
        graph = build_graph(wiring, source, where, name or function.name, folder, grouping)
        write_model(folder, program, effects, source, where, original)
    return Captured(graph, program.operations, len(Wiring(original, effects).core), len(original.nodes.keys() - program.nodes.keys()))
