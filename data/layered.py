"""Random layered graphs of any size, with costs but without kernels.

Parameters as in DAGGEN (Suter & Hunold, github.com/frs69wq/daggen: width, density, jump) and in the generator of Topcuoglu, Hariri
and Wu ("Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE TPDS 13(3), 2002: out-degree,
spread of costs). Unlike theirs, the edges are local, like those of tiled tensors, and their number is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from doppler_tf.errors import ConfigError, field_error
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.records import collector_paused, graph_from_records

MAX_COUNT, MAX_COST = 10_000_000, 1e30
MAX_SPREAD = 3.0


@dataclass(frozen=True)
class Layered:
    """The parameters of a random layered graph.

    RULES, checked at construction (ConfigError): counts are integers >= 1; mean costs are from 1 to 1e30; 0 <= spread <= 3; 1 <= degree.
    Beyond the first edge of every vertex, degree asks for at most half of the edges that skip and window allow, so that drawing them ends.

    Attributes:
      vertices: the exact number, none of them an input.
      width: vertices per layer; the last layer may have fewer.
      degree: mean number of predecessors of vertices after the first layer, exact apart from rounding to whole edges.
      skip: the most layers between a vertex's layer and those it reads from.
      window: the number of columns that a vertex may read from, centred on its own and wrapping around; above width: all.
      flops: mean over vertices.
      output_bytes: mean over vertices; each edge carries its producer's.
      spread: standard deviation of the logarithms of flops and of bytes, which are log-normal and independent; 0: all equal.
    """

    vertices: int
    width: int
    degree: float
    skip: int
    window: int
    flops: float
    output_bytes: float
    spread: float

    def __post_init__(self) -> None:
        for name in ("vertices", "width", "skip", "window"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
                raise field_error(ConfigError, "workload", "layered", name, f"an integer from 1 to {MAX_COUNT}", value)
        behind = self.vertices - self.width
        most_edges = self.most_edges / behind if behind > 0 else MAX_COUNT
        for name, least, most in (("flops", 1, MAX_COST), ("output_bytes", 1, MAX_COST), ("spread", 0, MAX_SPREAD),
                                  ("degree", 1, most_edges)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise field_error(ConfigError, "workload", "layered", name, f"a number from {least} to {most:.6g}", value)

    @property
    def most_edges(self) -> float:
        """One edge per vertex after the first layer, plus half of the other possible edges."""
        layer = np.arange(self.width, self.vertices) // self.width
        places = int(np.minimum(layer, self.skip).sum()) * min(self.window, self.width)
        return (layer.size + places) / 2

    @property
    def num_edges(self) -> int:
        """The exact number of edges."""
        return round(self.degree * max(0, self.vertices - self.width))


def layered_defaults(scale: str, num_devices: int) -> dict[str, float]:
    """Default options. On a P100 (paper) or a CPU core (small), a vertex takes about a millisecond and a transfer less."""
    costs = {"flops": 2e10, "output_bytes": 8e6} if scale == "paper" else {"flops": 5e7, "output_bytes": 1e6}
    return {"vertices": 10_000 if scale == "paper" else 500, "width": 8 * num_devices, "degree": 3.0, "skip": 2, "window": 8, **costs,
            "spread": 0.5}


@collector_paused()
def layered_graph(layered: Layered, seed: int = 0, attributes: Mapping | None = None) -> DataflowGraph:
    """Draws a graph. Equal arguments give equal graphs.

    Vertices are numbered layer by layer. Each vertex reads its own column of the layer before, so that the layers are the graph's levels
    and every output is read and freed, except at the end. The other edges are drawn uniformly over vertices.

    Args:
      layered: the graph's parameters.
      seed: of edges and costs.
      attributes: graph attributes to keep, `name` among them.
    """
    rng = np.random.default_rng(seed)
    flops, output_bytes = (np.maximum(1, np.rint(mean * rng.lognormal(-layered.spread**2 / 2, layered.spread, layered.vertices)))
                           for mean in (layered.flops, layered.output_bytes))
    nodes = [{"id": v, "flops": f, "output_bytes": b} for v, (f, b) in enumerate(zip(flops.tolist(), output_bytes.tolist(), strict=True))]
    edges = [{"source": u, "target": v} for u, v in zip(*(ends.tolist() for ends in _edges(layered, rng)), strict=True)]
    return graph_from_records(nodes, edges, attributes, "layered")


def _edges(layered: Layered, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets, by target and then by source."""
    count, width, window = layered.vertices, layered.width, min(layered.window, layered.width)
    behind = np.arange(width, count)
    pairs = behind * count + behind - width
    while pairs.size < layered.num_edges:
        target = rng.integers(width, count, layered.num_edges - pairs.size)
        layer = target // width - rng.integers(1, np.minimum(target // width, layered.skip) + 1)
        column = (target + rng.integers(0, window, target.size) - window // 2) % width
        pairs = np.unique(np.concatenate([pairs, target * count + layer * width + column]))
    return pairs % count, pairs // count
