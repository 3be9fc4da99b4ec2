"""The server: devices, the links between them, and presets of well-known machines."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from doppler_tf.errors import TopologyError, field_error
from doppler_tf.schema import check, check_fields, refuse_slips

TOPOLOGY_SCHEMA = "doppler-topology/1"
_SHARES = ("source_share", "destination_share")
_FIELDS = ("schema", "name", "devices", "links", "link_slots", "shared_cores", "host")
_LINK_FIELDS = ("bandwidth_bytes_per_s", "latency_s", "card", *_SHARES)
HOST = "host"  # the device that it is in traces
_INFINITE = "inf"  # as JSON has no infinite numbers
_MAX = sys.float_info.max
Number = Annotated[float, Meta(ge=-_MAX)]  # infinity, too
Positive = Annotated[float, Meta(gt=0, le=_MAX, description="a finite number > 0")]
NotNegative = Annotated[float, Meta(ge=0, le=_MAX, description="a finite number >= 0")]
OneOrEach = Annotated[NotNegative | Annotated[tuple[NotNegative, ...], Meta()],
                      Meta(description="a finite number >= 0, or a list of them, one a device")]
Share = Annotated[float, Meta(ge=0, le=1, description="a number from 0 to 1")]
Slots = Annotated[int, Meta(ge=1, lt=2**31, description="an integer from 1 to 2^31 - 1")]
Card = Annotated[int, Meta(ge=0, lt=2**31)]
LinkSlots = Annotated[Slots | None, Meta(description="an integer from 1 to 2^31 - 1 or null")]


@dataclass(frozen=True)
class Device:
    """One device. `flops_per_s` None: only graphs with explicit costs can use it; `memory_bytes` None: no limit."""

    name: str
    flops_per_s: Positive | None = None
    mem_bytes_per_s: Positive | None = None
    launch_s: NotNegative = 0.0
    memory_bytes: Positive | None = None
    slots: Slots = 1


@dataclass(frozen=True)
class Host:
    """The memory beside the devices: it runs nothing, and holds what does not fit in theirs.

    Attributes:
      bandwidth_bytes_per_s: of the link to each device, and of the one back; 0: no link. One number stands for all devices.
      latency_s: of all these links.
      memory_bytes: None: no limit.
      shared: the links to all devices share one network card, and those back another; else each has its own.
      destination_share: the part of a transfer's seconds that it takes from the device that it goes to, as in `Topology`.
    """

    bandwidth_bytes_per_s: OneOrEach
    latency_s: NotNegative = 0.0
    memory_bytes: Positive | None = None
    shared: bool = False
    destination_share: Share = 0.0

    def to_json(self) -> dict:
        """The field `host` of `doppler-topology/1`."""
        return {name: value for name, value in asdict(self).items() if name != "destination_share" or value}


@dataclass(frozen=True, eq=False)
class Topology:
    """Devices and links.

    RULES: device names are unique; the link matrices are [D, D] with bandwidth >= 0 (infinite allowed, 0: no link) and latency >= 0; the
    diagonals are infinite and 0 (a tensor costs nothing where it is), whatever a file says there.

    Attributes:
      devices: D devices.
      bandwidth_bytes_per_s: float64 [D, D], from row to column.
      latency_s: float64 [D, D].
      link_slots: transfers that a link carries at once; None: links never wait.
      card: int64 [D, D], -1 or a number, -1 on the diagonal; links of one number share a network card, which carries `link_slots` transfers
        at once. None: no links share anything.
      source_share, destination_share: float64 [D, D] in [0, 1], from row to column, 0 on the diagonal: the part of a transfer's seconds
        that it takes from its source, or its destination. When it starts, these are owed there, and the vertex that ends next ends so
        much later. None: nothing. (The overhead of LogP: Culler et al., PPoPP 1993.)
      shared_cores: devices are cores of one machine. A merged call beside which no other device works uses the cores of all.
      host: where devices keep what does not fit; None: nowhere. It counts only in assignments with an `Offload`, so not in the hash.
    """

    name: str
    devices: tuple[Device, ...]
    bandwidth_bytes_per_s: np.ndarray
    latency_s: np.ndarray
    link_slots: LinkSlots = 1
    card: np.ndarray | None = None
    source_share: np.ndarray | None = None
    destination_share: np.ndarray | None = None
    shared_cores: bool = False
    host: Host | None = None

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.devices)

    @property
    def device_names(self) -> tuple[str, ...]:
        """The D names, in device order."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def linked(self) -> np.ndarray:
        """bool [D, D], from row to column: whether there is a link; True on the diagonal."""
        return self.bandwidth_bytes_per_s > 0

    @cached_property
    def links(self) -> np.ndarray:
        """bool [D, D]: `linked`, but False on the diagonal."""
        return self.linked & ~np.eye(self.num_devices, dtype=bool)

    @cached_property
    def lanes(self) -> np.ndarray:
        """int32 [D, D]: the queue of each link; links that share a card have one. They are numbered as their first links are, by row."""
        links = np.arange(self.num_devices**2).reshape(self.latency_s.shape)
        if self.card is None:
            return links.astype(np.int32)
        _, first, number = np.unique(self.card, return_index=True, return_inverse=True)
        owner = np.where(self.card < 0, links, first[number].reshape(links.shape))
        return np.unique(owner, return_inverse=True)[1].reshape(links.shape).astype(np.int32)

    @property
    def shares_cards(self) -> bool:
        """Whether any two links share a card."""
        return int(self.lanes.max()) + 1 < self.lanes.size

    @cached_property
    def shares(self) -> np.ndarray | None:
        """float64 [2, D, D]: `source_share` and `destination_share`; None if no transfer takes time from a device."""
        nothing = np.zeros(self.latency_s.shape)
        shares = np.stack([nothing if share is None else share for share in (self.source_share, self.destination_share)])
        return shares if shares.any() else None

    def with_memory(self, memory_bytes: float | Sequence[float] | None) -> Topology:
        """The same with other limits: a number for all devices, or one for each; None: no limits. Raises TopologyError: others."""
        count = self.num_devices
        each = memory_bytes.tolist() if isinstance(memory_bytes, np.ndarray) else memory_bytes
        limits = tuple(each) if isinstance(each, list | tuple) else (each,) * count
        fine = all(x is None or (isinstance(x, Real) and not isinstance(x, bool) and 0 < x <= _MAX) for x in limits)
        if len(limits) != count or not fine:
            expected = f"a finite number > 0, or {count} of them, one a device"
            raise field_error(TopologyError, self.name, "", "memory_bytes", expected, memory_bytes)
        whole = [int(x) if x is not None and x == int(x) else x for x in limits]  # as in files, so that the hash is theirs
        return replace(self, devices=tuple(replace(each, memory_bytes=x) for each, x in zip(self.devices, whole, strict=True)))

    @cached_property
    def with_host(self) -> Topology:
        """The topology in which the host is one more device, the last. Only for one that has a host."""
        count, host = self.num_devices, self.host

        def wider(matrix: np.ndarray | None, beyond: np.ndarray | float, corner: float) -> np.ndarray | None:
            if matrix is None:
                return None
            wide = np.full((count + 1, count + 1), corner, matrix.dtype)
            wide[:count, :count], wide[:count, count], wide[count, :count] = matrix, beyond, beyond
            return wide

        owed = self.destination_share
        if host.destination_share:
            owed = wider(np.zeros((count, count)) if owed is None else owed, 0.0, 0.0)
            owed[count, :count] = host.destination_share
        elif owed is not None:
            owed = wider(owed, 0.0, 0.0)
        card = self.card
        if host.shared:
            card = wider(np.full((count, count), -1) if card is None else card, -1, -1)
            card[:count, count], card[count, :count] = card.max() + 1, card.max() + 2
        return Topology(self.name, (*self.devices, Device(HOST, memory_bytes=host.memory_bytes)),
                        wider(self.bandwidth_bytes_per_s, np.array(host.bandwidth_bytes_per_s, np.float64), math.inf),
                        wider(self.latency_s, host.latency_s, 0.0), self.link_slots, card if host.shared else wider(card, -1, -1),
                        wider(self.source_share, 0.0, 0.0), owed, self.shared_cores)

    @property
    def host_device(self) -> int | None:
        """Which device is the host, as in `with_host`; None: none is."""
        return self.num_devices - 1 if self.devices[-1].name == HOST else None

    @cached_property
    def topology_hash(self) -> str:
        """SHA-256 of all that decides costs, whatever the numbers of cards."""
        record = self.to_json()
        record.pop("host", None)
        record["links"]["bandwidth_bytes_per_s"] = [[x if math.isfinite(x) else None for x in row]
                                                    for row in self.bandwidth_bytes_per_s.tolist()]
        record["links"].pop("card", None)
        if self.shares is None:
            for name in _SHARES:
                record["links"].pop(name, None)
        if self.shares_cards and self.link_slots is not None:
            record["links"]["lanes"] = self.lanes.tolist()
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict:
        """The fields of `doppler-topology/1`; an infinite bandwidth is "inf", and where there is no link it is 0."""
        bandwidth = [[None if s == d else x if math.isfinite(x) else _INFINITE for d, x in enumerate(row)]
                     for s, row in enumerate(self.bandwidth_bytes_per_s.tolist())]
        links = {"bandwidth_bytes_per_s": bandwidth, "latency_s": self.latency_s.tolist()}
        if self.card is not None:
            links["card"] = [[None if card < 0 else card for card in row] for row in self.card.tolist()]
        links |= {name: share.tolist() for name in _SHARES if (share := getattr(self, name)) is not None}
        return {"schema": TOPOLOGY_SCHEMA, "name": self.name, "devices": [asdict(device) for device in self.devices], "links": links,
                "link_slots": self.link_slots, **({"shared_cores": True} if self.shared_cores else {}),
                **({} if self.host is None else {"host": self.host.to_json()})}

    @staticmethod
    def from_json(record: Mapping, where: str = "topology") -> Topology:
        """Checks a `doppler-topology/1` record.

        A link figure may be one number for all links. Raises TopologyError that names device and field.
        """
        if not isinstance(record, Mapping) or record.get("schema", TOPOLOGY_SCHEMA) != TOPOLOGY_SCHEMA:
            got = record.get("schema") if isinstance(record, Mapping) else record
            raise field_error(TopologyError, where, "", "schema", TOPOLOGY_SCHEMA, got)
        refuse_slips(record, _FIELDS, TopologyError, where)
        listed = record.get("devices")
        check(listed, Annotated[list, Meta(min_length=1, description="a list of at least one device")], TopologyError, where, "", "devices")
        devices = tuple(_device(entry, d, where) for d, entry in enumerate(listed))
        names = [device.name for device in devices]
        if len(set(names)) < len(names):
            raise field_error(TopologyError, where, "", "devices", "unique names", names)
        links = {} if record.get("links") is None else record["links"]
        if not isinstance(links, Mapping) or not set(links) <= set(_LINK_FIELDS):
            raise field_error(TopologyError, where, "", "links", f"an object of {', '.join(_LINK_FIELDS)}", links)
        given = {"name": "topology", "link_slots": 1, "shared_cores": False} | {
            key: record[key] for key in ("name", "link_slots", "shared_cores") if key in record}
        name, slots, shared = given.values()
        check_fields(given, Topology, TopologyError, where, "")
        count = len(devices)
        bandwidth = _matrix(links.get("bandwidth_bytes_per_s"), math.inf, count, "links.bandwidth_bytes_per_s", where)
        if count > 1 and slots is None and np.isnan(bandwidth[~np.eye(count, dtype=bool)]).all():
            raise field_error(TopologyError, where, "", "links.bandwidth_bytes_per_s",
                              'numbers, "inf" for an infinite one, or 0 for no link', None, "files of older versions mean infinity by null "
                              "beside link_slots null: leave the field out if this is one")
        bandwidth[np.isnan(bandwidth)] = 0.0
        latency = _matrix(links.get("latency_s"), 0.0, count, "links.latency_s", where)
        np.fill_diagonal(bandwidth, math.inf)
        np.fill_diagonal(latency, 0.0)
        if not (bandwidth >= 0).all():
            raise field_error(TopologyError, where, "", "links.bandwidth_bytes_per_s", "numbers >= 0", float(bandwidth.min()))
        bad = latency[~(np.isfinite(latency) & (latency >= 0))]
        if bad.size:
            raise field_error(TopologyError, where, "", "links.latency_s", "finite numbers >= 0", float(bad[0]))
        shares = {name: _share(links[name], count, f"links.{name}", where) for name in _SHARES if links.get(name) is not None}
        return Topology(name, devices, bandwidth, latency, slots, _cards(links.get("card"), count, where), **shares, shared_cores=shared,
                        host=_host(record.get("host"), names, where))


def _host(entry, names: list[str], where: str) -> Host | None:
    """Bandwidth may be one number for all devices or one a device. Raises TopologyError for a host without links."""
    if entry is None:
        return None
    given = {"bandwidth_bytes_per_s": None, **entry} if isinstance(entry, Mapping) else entry
    check_fields(given, Host, TopologyError, where, "host")
    bandwidth = given["bandwidth_bytes_per_s"]
    if isinstance(bandwidth, list):
        given["bandwidth_bytes_per_s"] = tuple(bandwidth)
    if (isinstance(bandwidth, list) and len(bandwidth) != len(names)) or not np.any(bandwidth):
        raise field_error(TopologyError, where, "host", "bandwidth_bytes_per_s", f"a number > 0, or {len(names)} of them, one a device (0 "
                          f"for a device without a link to the host)", bandwidth, "a host needs links")
    if HOST in names:
        raise field_error(TopologyError, where, "devices", "name", f"another name than {HOST!r}, as the topology has a host", HOST)
    return Host(**given)


def _device(entry, d: int, where: str) -> Device:
    check_fields({"name": None, **entry} if isinstance(entry, Mapping) else entry, Device, TopologyError, where, f"device {d}")
    return Device(**entry)


def _matrix(value, default: float, count: int, name: str, where: str) -> np.ndarray:
    """One number for all links, or [D][D] numbers; a missing or null figure is the default, null in a row of bandwidths NaN."""
    length = Meta(min_length=count, max_length=count)
    row = Annotated[list[Number | Literal[_INFINITE] | None if default == math.inf else Number], length]
    words = Meta(description=f"a number or {count} rows of {count} numbers")
    check(value, Annotated[Number | Annotated[list[row], length] | None, words], TopologyError, where, "", name)
    return np.full((count, count), np.array(default if value is None else value, np.float64))


def _share(value, count: int, name: str, where: str) -> np.ndarray:
    """One number for all links, or [D][D] numbers; what stands on the diagonal has no effect."""
    share = _matrix(value, 0.0, count, name, where)
    np.fill_diagonal(share, 0.0)
    bad = share[~((share >= 0) & (share <= 1))]
    if bad.size:
        raise field_error(TopologyError, where, "", name, "numbers from 0 to 1", float(bad[0]))
    return share


def _cards(value, count: int, where: str) -> np.ndarray | None:
    """[D][D] numbers of cards, null for a link that shares none; what stands on the diagonal has no effect."""
    if value is None:
        return None
    words = f"{count} rows of {count} integers from 0 to 2^31 - 1, or null for a link that shares no card"
    length = Meta(min_length=count, max_length=count, description=words)
    check(value, Annotated[list[Annotated[list[Card | None], length]], length], TopologyError, where, "", "links.card")
    cards = np.array([[-1 if card is None else card for card in row] for row in value], np.int64)
    np.fill_diagonal(cards, -1)
    return cards


def _uniform(name: str, device: Device, count: int, bandwidth: float | np.ndarray, latency_s: float,
             link_slots: int | None = 1, host: Host | None = None) -> Topology:
    devices = tuple(Device(**{**asdict(device), "name": f"{device.name}:{d}"}) for d in range(count))
    other = ~np.eye(count, dtype=bool)
    return Topology(name, devices, np.where(other, bandwidth, math.inf), np.where(other, latency_s, 0.0), link_slots, host=host)


def p100x4() -> Topology:
    """Four Tesla P100 on PCIe, the paper's server.

    NVIDIA Tesla P100 PCIe datasheet (2016): 18.7 TFLOP/s float16, 732 GB/s, 16 GB; PCIe 3.0 x16: 15.75 GB/s in theory, some 12
    GB/s for copies between GPUs. Launch and copy latency: 10 us, usual for CUDA of that time. Host: the same PCIe 3.0 x16 for
    each GPU. How much memory a server has is its owner's choice, so there is no limit.
    """
    device = Device("GPU", 18.7e12, 732e9, 10e-6, 16e9)
    return _uniform("p100x4", device, 4, 12e9, 10e-6, host=Host(12e9, 10e-6))


def v100x8() -> Topology:
    """Eight Tesla V100 in two NVLink groups of four, as the paper's second server.

    NVIDIA V100 SXM2 datasheet: 125 TFLOP/s float16 on tensor cores, 900 GB/s, 32 GB; one NVLink 2.0 brick carries 25 GB/s each
    way, two of them 50 GB/s within a group; PCIe 3.0 x16, some 12 GB/s, between the groups, and to the host (as for P100).
    """
    device = Device("GPU", 125e12, 900e9, 8e-6, 32e9)
    group = np.arange(8) // 4
    return _uniform("v100x8", device, 8, np.where(group[:, None] == group, 50e9, 12e9), 8e-6, host=Host(12e9, 8e-6))


def h100x8() -> Topology:
    """Eight H100 SXM behind NVSwitch.

    NVIDIA H100 datasheet: 989 TFLOP/s bfloat16 dense, 3.35 TB/s, 80 GB; NVLink 4: 900 GB/s both ways together, 450 GB/s each way,
    which one peer can use whole through NVSwitch. Host: PCIe 5.0 x16 for each GPU (DGX H100 user guide, "system topology"), 64 GB/s each
    way in theory (PCI Express base specification 5.0: 32 GT/s a lane), some 55 GB/s for large copies.
    """
    return _uniform("h100x8", Device("GPU", 989e12, 3.35e12, 5e-6, 80e9), 8, 450e9, 5e-6, host=Host(55e9, 5e-6))


def cpu(count: int) -> Topology:
    """`count` logical CPU devices of one machine: about one core each (AVX2 at 3 GHz: some 50 GFLOP/s), copies by memcpy, to the host,
    too."""
    return _uniform(f"cpu:{count}", Device("CPU", 50e9, 10e9, 20e-6), count, 5e9, 20e-6, host=Host(5e9, 20e-6))


def ideal(count: int) -> Topology:
    """`count` equal devices with links that never wait, for graphs with explicit costs."""
    return _uniform(f"ideal:{count}", Device("device"), count, math.inf, 0.0, None)


PRESETS = {"p100x4": p100x4, "v100x8": v100x8, "h100x8": h100x8}
FAMILIES = {"cpu": cpu, "ideal": ideal}
MAX_DEVICES = 1024


def preset(spec: str) -> Topology | None:
    """The topology that `spec` names (`p100x4`, `v100x8`, `h100x8`, `cpu:N`, `ideal:N`); None if it names none.

    Raises TopologyError for a family with a bad count.
    """
    if spec in PRESETS:
        return PRESETS[spec]()
    family, colon, count = spec.partition(":")
    if family not in FAMILIES or (not colon and spec != family):
        return None
    if not re.fullmatch(r"[0-9]{1,4}", count) or not 1 <= int(count) <= MAX_DEVICES:
        raise field_error(TopologyError, "topology", spec, "number of devices", f"an integer from 1 to {MAX_DEVICES}", count,
                          f"write {family}:4, for example")
    return FAMILIES[family](int(count))
