"""The machines of a cluster: TensorFlow's ClusterSpec as JSON, {"worker": ["host:port", ...]}, and perhaps "chief": ["host:port"]."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from doppler_tf.errors import FormatError, field_error
from doppler_tf.formats.files import read_json

CHIEF, WORKER = "chief", "worker"


@dataclass(frozen=True)
class ClusterSpec:
    """Addresses, each (host, port).

    Attributes:
      name: of the cluster, for messages.
      workers: what `doppler-tf worker` serves.
      chief: where the workers reach the program that runs graphs, if its devices are to take part.
    """

    name: str
    workers: tuple[tuple[str, int], ...]
    chief: tuple[str, int] | None = None


def read_cluster(path: str | Path) -> ClusterSpec:
    """The cluster in a file. Raises FormatError: it is no ClusterSpec, or has other jobs than `chief` and `worker`."""
    record, where = read_json(path), str(path)
    if not isinstance(record, Mapping) or WORKER not in record or not set(record) <= {CHIEF, WORKER}:
        raise field_error(FormatError, where, "", "cluster", 'an object of "worker" and perhaps "chief", each a list of "host:port"',
                          sorted(record) if isinstance(record, Mapping) else record)
    workers, chief = (_addresses(record.get(job, []), where, job) for job in (WORKER, CHIEF))
    if not workers:
        raise field_error(FormatError, where, "", WORKER, "at least one address", record[WORKER])
    if len(chief) > 1:
        raise field_error(FormatError, where, "", CHIEF, "one address, that of the machine which runs the command", record[CHIEF])
    if len({*workers, *chief}) < len(workers) + len(chief):
        raise field_error(FormatError, where, "", "cluster", "different addresses", [f"{host}:{port}" for host, port in (*chief, *workers)])
    return ClusterSpec(where, workers, chief[0] if chief else None)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`, an IPv6 address in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    # A label of a name has at most 63 characters (RFC 1035).
    named = re.fullmatch(r"\[?[\w.:%-]+\]?", host, re.ASCII) and max(map(len, host.split("."))) < 64
    if not (colon and named and port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ValueError(text)
    return host.removeprefix("[").removesuffix("]"), int(port)


def _addresses(listed: object, where: str, job: str) -> tuple[tuple[str, int], ...]:
    try:
        if not isinstance(listed, list):
            raise ValueError(listed)
        found = tuple(parse_address(text) for text in listed)
        if not all(port for _, port in found):
            raise ValueError(listed)
    except (ValueError, AttributeError):
        raise field_error(FormatError, where, "", job, 'a list of addresses "host:port"', listed) from None
    return found
