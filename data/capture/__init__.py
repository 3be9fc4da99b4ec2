"""Models of users become graphs: a tf.function, a Keras model or a SavedModel is read, cut into pieces and written beside its graph.

One file more here would read another format (ONNX, StableHLO): it has to make a `program.Program`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from data.capture.concrete import concrete
from data.capture.effects import EVERYTHING
from data.capture.graph import build_graph
from data.capture.model_folder import write_model
from data.capture.reading import read_program
from doppler_tf.graph import DataflowGraph

__all__ = ["EVERYTHING", "capture"]


def capture(function, example_inputs=None, *, model_folder: str | Path, name: str | None = None, grouping: bool = True,
            allow: Collection[str] = ()) -> DataflowGraph:
    """The graph of a function; what its vertices run is written into a folder.

    Args:
      function: a tf.function, a ConcreteFunction, a Keras model (captured in inference) or any callable.
      example_inputs: a tuple holds the positional arguments, anything else is the only one; arrays, tensors or TensorSpecs, in
        structures. Only shapes and types count.
      model_folder: gets operations and variables; one that is there is replaced.
      name: of the graph (default: the function's).
      grouping: small vertices join their neighbours where that costs no parallelism.
      allow: operations to let through that touch files, the network or Python; `EVERYTHING` stands for all.

    Raises:
      ConfigError: the function cannot be captured; the message names the operation and the user's line.
      FormatError: the folder cannot be written.
    """
    name = name or getattr(function, "name", None) or getattr(function, "__name__", None) or type(function).__name__
    if isinstance(name, bytes):
        name = name.decode()
    folder = Path(model_folder)
    source = concrete(function, example_inputs, name)
    program, effects = read_program(source, name, {EVERYTHING} if EVERYTHING in allow else allow)
    graph = build_graph(program, effects, source, name, name, folder, grouping)
    write_model(folder, program, effects, source, name)
    return graph
