"""The inputs of commands: graphs and costs, assignments, trained policies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents.placing import KeptSamplers
    from doppler_tf.assignment import Assignment
    from doppler_tf.batches import Batches
    from doppler_tf.costs import CostModel
    from doppler_tf.graph import DataflowGraph
    from doppler_tf.topology import Topology
    from runtime.cluster import Cluster

    Policy = Callable[[DataflowGraph, CostModel, int, int], Iterable[Assignment]]

LOCAL = "local"


def load_costs(graph_path: Path, topology: str, costs: str = "given") -> tuple[DataflowGraph, CostModel]:
    """A graph and its costs on a topology; messages name the graph's file. Afterwards a note announces each compilation.

    Args:
      costs: "given" or "estimated", as --costs says; the graph is then without the times in its file.
    """
    from doppler_tf.cli.messages import announce_compiling
    from doppler_tf.costs import build_costs, estimated
    from doppler_tf.formats.graph_json import read_graph

    announce_compiling()
    graph, target = read_graph(graph_path), load_topology(topology)
    if costs == "estimated":
        graph = estimated(graph, target, str(graph_path))
    return graph, build_costs(graph, target, str(graph_path))


def load_topology(spec: str) -> Topology:
    """A preset, a file, or `local`, which is this machine: measured once, then read from disk."""
    from doppler_tf.formats.topology_json import read_topology

    if spec != LOCAL:
        return read_topology(spec)
    from doppler_tf.cli.messages import bars_wanted, note
    from doppler_tf.cli.tensorflow import import_quietly
    from doppler_tf.formats.machine_json import load_machine, store_machine
    from doppler_tf.report.progress import progress_bar

    machine = load_machine()
    if machine.topology is None:
        local = import_quietly("runtime.local")
        with progress_bar("measuring", show=bars_wanted()) as show:
            machine.topology = local.local_topology(show)
        kept = store_machine(machine)
        note(f"--topology local: {', '.join(machine.topology.device_names)}, measured now"
             + (f" and kept in {kept}; remove that file to measure anew" if kept else ""))
    return machine.topology


def load_cluster(path: Path | None, topology: Topology) -> Cluster | None:
    """The devices of a cluster, connected; None without a file. Call it before TensorFlow's first operation.

    Raises:
      FormatError: no ClusterSpec. ConfigError: a worker does not answer, or the topology has another number of devices.
    """
    from doppler_tf.cli.tensorflow import import_quietly
    from doppler_tf.errors import ConfigError, field_error
    from doppler_tf.formats.cluster_json import read_cluster

    if path is None:
        return None
    spec = read_cluster(path)  # before TensorFlow is loaded
    cluster = import_quietly("runtime.cluster").Cluster(spec)
    if len(cluster.devices) != topology.num_devices:
        raise field_error(ConfigError, str(path), "", "--topology", f"one of {len(cluster.devices)} devices, as the cluster has",
                          f"{topology.name} with {topology.num_devices}")
    return cluster


def load_assignment(path: Path, graph: DataflowGraph, costs: CostModel, dispatch: str | None) -> Assignment:
    """An assignment with its dispatch rule: `dispatch`, else the rule in the file, else fifo.

    Raises AssignmentError: it does not fit, or is faster than what the file calls a proven bound.
    """
    from doppler_tf.errors import AssignmentError, field_error
    from doppler_tf.fastsim import FastSimulator
    from doppler_tf.formats.assignment_json import assignment_from_json
    from doppler_tf.formats.files import read_json

    record = read_json(path)
    if isinstance(record, Mapping) and record.get("batches") is not None:
        raise field_error(AssignmentError, str(path), "", "batches", "none, as for one batch", record["batches"],
                          f"give --repeat {record['batches']} --in-flight K where the command has them, or place without --in-flight")
    assignment = assignment_from_json(record, graph, costs, str(path))
    if assignment.proven_bound_s:
        makespan_s = float(FastSimulator(graph, costs, assignment.dispatch).makespans_of([assignment])[0])
        if makespan_s < assignment.proven_bound_s * (1 - 1e-6):
            raise field_error(AssignmentError, str(path), "", "proven_bound_s",
                              f"at most {makespan_s:.9g}, in which this assignment ends", assignment.proven_bound_s,
                              "remove it from the file, or place again")
    return assignment if dispatch is None else replace(assignment, dispatch=dispatch)


def load_batches(path: Path, graph: DataflowGraph, costs: CostModel, dispatch: str | None, repeat: int | None,
                 in_flight: int | None) -> tuple[Batches, Assignment]:
    """Batches of a graph, and an assignment of all of them for the rule `order`.

    Args:
      path: an assignment for one batch, which serves all, or what `place --in-flight` has written for some, which is repeated.
      dispatch: the order within a batch, as in `load_assignment`.

    Raises:
      ConfigError: K without M. AssignmentError: made for another graph, topology or number of batches.
    """
    from doppler_tf.batches import repeat_graph
    from doppler_tf.errors import AssignmentError, ConfigError, field_error
    from doppler_tf.formats.assignment_json import assignment_from_json
    from doppler_tf.formats.files import read_json
    from doppler_tf.heuristics.judging import by_order

    if repeat is None:
        raise ConfigError(f"--in-flight {in_flight}: expected --repeat M beside it, the number of batches, got none; add it")
    batches, record = repeat_graph(graph, costs.topology, repeat, in_flight or 1), read_json(path)
    placed = record.get("batches") if isinstance(record, Mapping) else None
    if placed is None:
        return batches, batches.assignment([by_order(graph, costs, load_assignment(path, graph, costs, dispatch))])
    if dispatch is not None:
        raise ConfigError(f"--dispatch {dispatch}: expected none beside {path}, which has an order of batches; leave it out")
    device = record.get("device")
    if isinstance(placed, bool) or not isinstance(placed, int) or not 1 <= placed <= (len(device) if isinstance(device, list) else 1):
        raise field_error(AssignmentError, str(path), "", "batches", "a number of batches, at most the entries of `device`", placed)
    some = repeat_graph(graph, costs.topology, placed, placed)
    assignment = assignment_from_json(record, some.graph, some.costs, str(path))
    again = batches.assignment(some.pattern(assignment))
    same = repeat == in_flight == placed
    return batches, replace(again, proven_bound_s=assignment.proven_bound_s) if same else again


def load_policy(path: Path, kept: KeptSamplers | None = None) -> Policy:
    """A trained policy: (graph, costs, samples, seed) -> assignments, the greedy one first; kept: what policies before have compiled."""
    from doppler_tf.cli.tensorflow import import_quietly

    return import_quietly("agents.placing").load_policy(path, kept)
