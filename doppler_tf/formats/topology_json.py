"""Topologies by name or from `doppler-topology/1` files."""

from __future__ import annotations

import os
from pathlib import Path

from doppler_tf.errors import TopologyError
from doppler_tf.formats.files import read_json, write_json
from doppler_tf.topology import Topology, preset


def read_topology(spec: str | Path) -> Topology:
    """The topology that `spec` names: a preset (`p100x4`, `v100x8`, `h100x8`, `cpu:N`, `ideal:N`) or a file.

    Raises:
      TopologyError, FormatError: an unknown name, or a file that is no topology.
    """
    known = preset(str(spec))
    if known is not None:
        return known
    if not os.path.exists(spec):
        raise TopologyError(f"topology {str(spec)!r}: expected p100x4, v100x8, h100x8, cpu:N, ideal:N or a topology file, got neither "
                            f"a preset nor a file; check the spelling")
    return Topology.from_json(read_json(spec), str(spec))


def write_topology(path: str | Path, topology: Topology) -> None:
    """Writes a topology atomically."""
    write_json(path, topology.to_json(), indent=1)
