"""Topologies by name or from `doppler-topology/1` files."""

from __future__ import annotations

from pathlib import Path

from doppler_tf.formats.files import write_json
from doppler_tf.graph.given import as_topology
from doppler_tf.graph.topology import Topology


def read_topology(spec: str | Path | Topology) -> Topology:
    """The topology that `spec` names: a preset (`p100x4`, `v100x8`, `h100x8`, `cpu:N`, `ideal:N`) or a file.

    Raises:
      TopologyError, FormatError: an unknown name, or a file that is no topology.
    """
    return as_topology(spec)


def write_topology(path: str | Path, topology: Topology) -> None:
    """Writes a topology atomically."""
    write_json(path, topology.to_json(), indent=1)
