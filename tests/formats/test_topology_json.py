"""`doppler-topology/1`, the presets, and what each mistake is told."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given

from doppler_tf.errors import FormatError, TopologyError
from doppler_tf.formats.topology_json import read_topology, write_topology
from doppler_tf.graph.topology import PRESETS, Topology, cpu, ideal
from tests.messages import assert_says, refusal
from tests.strategies import topologies

GOOD = {
    "schema": "doppler-topology/1", "name": "two", "link_slots": None,
    "devices": [{"name": "p", "flops_per_s": 1e12, "mem_bytes_per_s": 1e9, "launch_s": 1e-5, "memory_bytes": 16e9, "slots": 2},
                {"name": "q", "flops_per_s": None}],
    "links": {"bandwidth_bytes_per_s": [[0, 2.5], ["inf", 4]], "latency_s": 0.25},
}

LINKS = "bandwidth_bytes_per_s, latency_s, card, source_share, destination_share"


def same(first: Topology, second: Topology) -> bool:
    def fields(topology: Topology) -> tuple:
        return (topology.name, topology.devices, topology.link_slots, topology.bandwidth_bytes_per_s.tolist(), topology.latency_s.tolist(),
                topology.lanes.tolist(), None if topology.shares is None else topology.shares.tolist())

    return fields(first) == fields(second)


def test_every_field_is_read():
    topology = Topology.from_json(GOOD)
    p, q = topology.devices
    assert dataclasses.astuple(p) == ("p", 1e12, 1e9, 1e-5, 16e9, 2)
    assert dataclasses.astuple(q) == ("q", None, None, 0, None, 1)
    assert topology.bandwidth_bytes_per_s.tolist() == [[math.inf, 2.5], [math.inf, math.inf]]  # the diagonal is not a link
    assert topology.latency_s.tolist() == [[0, 0.25], [0.25, 0]]
    assert (topology.name, topology.link_slots) == ("two", None)


def test_what_is_left_out_costs_nothing_and_links_carry_one():
    topology = Topology.from_json({"devices": [{"name": "p"}, {"name": "q"}]})
    assert np.isinf(topology.bandwidth_bytes_per_s).all()
    assert (topology.latency_s.max(), topology.link_slots, topology.name) == (0, 1, "topology")


def test_transfers_take_time_from_devices_only_if_a_file_says_so():
    two = {"devices": [{"name": "p"}, {"name": "q"}]}
    nothing = Topology.from_json(two)
    assert nothing.shares is None
    two["links"] = {"destination_share": 0.25}
    some = Topology.from_json(two)
    assert some.shares.tolist() == [[[0, 0], [0, 0]], [[0, 0.25], [0.25, 0]]]
    assert some.topology_hash != nothing.topology_hash
    assert same(some, Topology.from_json(some.to_json()))
    two["links"] = {"destination_share": 0}
    assert Topology.from_json(two).topology_hash == nothing.topology_hash


def test_shared_cores_are_read_written_and_part_of_the_hash():
    two = {"devices": [{"name": "p"}, {"name": "q"}]}
    apart, shared = Topology.from_json(two), Topology.from_json({**two, "shared_cores": True})
    assert (apart.shared_cores, shared.shared_cores, Topology.from_json(shared.to_json()).shared_cores) == (False, True, True)
    assert "shared_cores" not in apart.to_json()
    assert apart.topology_hash != shared.topology_hash
    with pytest.raises(TopologyError, match="shared_cores: expected true or false, got 1"):
        Topology.from_json({**two, "shared_cores": 1})


def test_links_of_one_card_have_one_lane():
    three = {"devices": [{"name": name} for name in "pqr"], "links": {"card": [[5, 5, 5], [None, 2, 7], [7, None, None]]}}
    topology = Topology.from_json(three)
    assert topology.shares_cards
    # The diagonal is not read. Lanes are numbered as their first links are: 0, 1 and 2 of p; then 3, 4, 5 of q; 5 again, then 6 and 7 of r.
    assert topology.lanes.tolist() == [[0, 1, 1], [2, 3, 4], [4, 5, 6]]
    three["links"]["card"] = [[None, 1, 2], [3, None, 4], [5, 6, None]]
    alone = Topology.from_json(three)
    assert not alone.shares_cards
    assert alone.lanes.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    del three["links"]["card"]
    assert Topology.from_json(three).topology_hash == alone.topology_hash != topology.topology_hash
    three["links"]["card"] = [[None, 8, 8], [None, 1, 4], [4, None, None]]
    assert Topology.from_json(three).topology_hash == topology.topology_hash


@given(topologies())
def test_random_topologies_survive_a_round_trip(tmp_path_factory, topology):
    path = tmp_path_factory.getbasetemp() / "topology.json"
    write_topology(path, topology)
    assert same(read_topology(path), topology)
    assert read_topology(path).topology_hash == topology.topology_hash


@pytest.mark.parametrize("topology", [*(make() for make in PRESETS.values()), cpu(3), ideal(5)], ids=lambda t: t.name)
def test_presets_by_name_and_through_a_file(tmp_path, topology):
    assert same(read_topology(topology.name), topology)
    write_topology(tmp_path / "t.json", topology)
    assert read_topology(tmp_path / "t.json").topology_hash == topology.topology_hash


def test_presets_are_the_machines_they_name():
    p100, v100, h100 = (read_topology(name) for name in ("p100x4", "v100x8", "h100x8"))
    assert [t.num_devices for t in (p100, v100, h100, read_topology("cpu:3"), read_topology("ideal:7"))] == [4, 8, 8, 3, 7]
    near, far = v100.bandwidth_bytes_per_s[0, 3], v100.bandwidth_bytes_per_s[3, 4]
    assert near > far == v100.bandwidth_bytes_per_s[7, 0]
    assert near == v100.bandwidth_bytes_per_s[4, 7]
    assert ideal(2).link_slots is None
    assert p100.devices[0].memory_bytes < v100.devices[0].memory_bytes < h100.devices[0].memory_bytes


def start(value) -> str:
    """The beginning of what a message shows of a value."""
    return repr(value)[:30]


def device(**fields):
    return lambda record: record["devices"][0].update(fields)


def links(**fields):
    return lambda record: record["links"].update(fields)


def top(**fields):
    return lambda record: record.update(fields)


MISTAKES = [
    (top(schema="doppler-topology/2"), "schema: expected doppler-topology/1, got 'doppler-topology/2'"),
    (top(name=3), "name: expected a string, got 3"),
    *[(top(devices=wrong), f"devices: expected a list of at least one device, got {wrong!r}") for wrong in (None, [], {}, "p")],
    (top(devices=["p"]), "device 0: expected names with values, got 'p'"),
    (device(name=None), "device 0: name: expected a string, got None"),
    (lambda record: record["devices"][0].pop("name"), "device 0: name: expected a string, got None"),
    (device(name="q"), "devices: expected unique names, got ['q', 'q']"),
    (device(flopz=1), "device 0: flopz: expected one of name, flops_per_s, mem_bytes_per_s, launch_s, memory_bytes, slots, got 1"),
    *[(device(**{field: wrong}), f"device 0: {field}: expected a finite number > 0, got {start(wrong)}")
      for field in ("flops_per_s", "mem_bytes_per_s", "memory_bytes") for wrong in ("1", True, [1], 10**400, 0, -1)],
    *[(device(launch_s=wrong), f"device 0: launch_s: expected a finite number >= 0, got {start(wrong)}")
      for wrong in ("1", True, [1], 10**400, -1e-6, None)],
    *[(device(slots=wrong), f"device 0: slots: expected an integer from 1 to 2^31 - 1, got {start(wrong)}")
      for wrong in ("1", True, [1], 10**400, 0, -1, 1.0, 2**31, None)],
    *[(top(link_slots=wrong), f"link_slots: expected an integer from 1 to 2^31 - 1 or null, got {wrong!r}")
      for wrong in (0, -1, 1.5, True, "1", 2**70)],
    *[(top(links=wrong), f"links: expected an object of {LINKS}, got {wrong!r}")
      for wrong in (3, [], "fast", False)],
    (links(bandwith=3), f"links: expected an object of {LINKS}, got {{"),
    *[(links(**{field: wrong}), f"links.{field}: expected a number or 2 rows of 2 numbers, got {start(wrong)}")
      for field in ("bandwidth_bytes_per_s", "latency_s", "source_share")
      for wrong in ("5", True, [1, 2], [[1, 2]], [[1, 2], [3]], [[1, "2"], [3, 4]], [[1, True], [1, 1]], {"0": 1}, 10**400)],
    (links(latency_s=[[0, None], [0, 0]]), "links.latency_s: expected a number or 2 rows of 2 numbers"),
    (links(source_share=[[0, 1.5], [0, 0]]), "links.source_share: expected numbers from 0 to 1, got 1.5"),
    (links(destination_share=-1), "links.destination_share: expected numbers from 0 to 1, got -1.0"),
    (links(card=1), "links.card: expected 2 rows of 2 integers from 0 to 2^31 - 1, or null for a link that shares no card, got 1"),
    (links(card=[[0, -1], [0, 0]]), "links.card: expected 2 rows of 2 integers from 0 to 2^31 - 1, or null for a link that shares no card"),
    (links(bandwidth_bytes_per_s=[[1, -2], [1, 1]]), "links.bandwidth_bytes_per_s: expected numbers >= 0, got -2.0"),
    (links(latency_s=[[0, -1], [0, 0]]), "links.latency_s: expected finite numbers >= 0, got -1.0"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[words[:60] for _, words in MISTAKES])
def test_mistakes_name_file_device_field_and_what_came(tmp_path, mistake, words):
    record, path = copy.deepcopy(GOOD), tmp_path / "t.json"
    mistake(record)
    path.write_text(json.dumps(record))
    message = refusal(TopologyError, read_topology, path)
    assert_says(message, words)
    assert message.startswith(f"{path}: ")


def test_infinite_latency(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps(GOOD).replace("0.25", "[[0, 1e999], [0, 0]]"))
    assert_says(refusal(TopologyError, read_topology, tmp_path / "t.json"), "links.latency_s: expected finite numbers >= 0, got inf")


@pytest.mark.parametrize("count", ["0", "1025", "-1", "two", "", "2.0", "9" * 5000])
@pytest.mark.parametrize("family", ["cpu", "ideal"])
def test_families_with_a_bad_count(family, count):
    message = refusal(TopologyError, read_topology, f"{family}:{count}")
    assert_says(message, "number of devices: expected an integer from 1 to 1024", f"write {family}:4, for example")


@pytest.mark.parametrize("spec", ["p100", "P100x4", "no/such/file.json", "x" * 5000, "a\0b"], ids=lambda spec: spec[:10])
def test_neither_preset_nor_file(spec):
    assert_says(refusal(TopologyError, read_topology, spec), "expected p100x4, v100x8, h100x8, cpu:N, ideal:N or a topology file", spec[:1])


def test_a_file_that_is_no_topology(tmp_path):
    (tmp_path / "t.json").write_text("[1]")
    assert_says(refusal(TopologyError, read_topology, tmp_path / "t.json"), "schema: expected doppler-topology/1, got [1]")
    (tmp_path / "t.json").write_text("{")
    assert_says(refusal(FormatError, read_topology, tmp_path / "t.json"), "malformed JSON at line 1, column 2")


def test_links_that_an_older_version_wrote_as_null_are_not_taken_for_missing_ones(tmp_path):
    older = {**IDEAL_2, "links": {**IDEAL_2["links"], "bandwidth_bytes_per_s": [[None, None], [None, None]]}}
    assert_says(refusal(TopologyError, Topology.from_json, older), "links.bandwidth_bytes_per_s: expected numbers",
                "older versions mean infinity by null beside link_slots null: leave the field out if this is one")
    islands = Topology.from_json({**IDEAL_2, "links": {"bandwidth_bytes_per_s": 0}})
    write_topology(tmp_path / "t.json", islands)
    assert not read_topology(tmp_path / "t.json").links.any()
    assert read_topology(tmp_path / "t.json").topology_hash == islands.topology_hash


IDEAL_2 = ideal(2).to_json()
