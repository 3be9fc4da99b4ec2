"""Graphs with costs, topologies, clusters, assignments and policies, as callers give them: ready-made, by name or by file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Union

from doppler_tf.api.tensorflow import import_quietly
from doppler_tf.errors import AssignmentError, ConfigError, field_error
from doppler_tf.fastsim import FastSimulator
from doppler_tf.formats.assignment_json import assignment_from_json
from doppler_tf.formats.cluster_json import read_cluster
from doppler_tf.formats.files import read_json
from doppler_tf.formats.graph_json import read_graph
from doppler_tf.formats.machine_json import load_machine, store_machine
from doppler_tf.formats.topology_json import read_topology
from doppler_tf.graph.costs import CostModel, build_costs, estimated, graph_with_costs
from doppler_tf.graph.dataflow import DataflowGraph
from doppler_tf.graph.given import GraphLike, TopologyLike
from doppler_tf.graph.topology import Topology
from doppler_tf.heuristics.judging import by_order
from doppler_tf.heuristics.problem import Problem
from doppler_tf.notes import announce_compiling, note
from doppler_tf.report.progress import progress_bar
from doppler_tf.schedule.assignment import Assignment, as_assignment
from doppler_tf.schedule.batches import Batches, repeat_graph
from doppler_tf.schedule.offloaded import offloaded
from doppler_tf.stages import Policy

if TYPE_CHECKING:
    from agents.serving.placing import KeptSamplers
    from runtime.clusters.cluster import Cluster

# An assignment, or the path of its file; a cluster as `connect` gives it, or the path of its file.
AssignmentLike = Assignment | str | Path
ClusterLike = Union["Cluster", str, Path]
LOCAL, COSTS = "local", ("given", "estimated")


def load_costs(graph: GraphLike, topology: TopologyLike | CostModel, costs: str = "given") -> tuple[DataflowGraph, CostModel]:
    """A graph and its costs; messages name the graph's file. Afterwards a note announces each compilation.

    Args:
      topology: `local` is this machine; ready-made costs stand for themselves.
      costs: "given" or "estimated": the graph is then without the times in its file.
    """
    announce_compiling()
    if costs not in COSTS:
        raise field_error(ConfigError, "", "", "costs", f"one of {', '.join(COSTS)}", costs)
    where = str(graph) if isinstance(graph, str | os.PathLike) else None
    graph = read_graph(graph)
    if isinstance(topology, CostModel):
        return graph_with_costs(graph, topology)
    target = load_topology(topology)
    if costs == "estimated":
        graph = estimated(graph, target, where)
    return graph, build_costs(graph, target, where)


def load_topology(spec: TopologyLike) -> Topology:
    """As `read_topology`; `local` is this machine: measured once, then read from disk."""
    if isinstance(spec, Topology) or spec != LOCAL:
        return read_topology(spec)
    machine = load_machine()
    if machine.topology is None:
        local = import_quietly("runtime.profiling.local")
        with progress_bar("measuring") as show:
            machine.topology = local.local_topology(show)
        kept = store_machine(machine)
        note(f"--topology local: {', '.join(machine.topology.device_names)}, measured now"
             + (f" and kept in {kept}; remove that file to measure anew" if kept else ""))
    return machine.topology


def connect(cluster: str | Path) -> Cluster:
    """Connects to the machines of a cluster file. Call it before TensorFlow's first operation.

    Raises:
      FormatError: no ClusterSpec. ConfigError: a worker does not answer, or TensorFlow is initialised.
    """
    spec = read_cluster(cluster)  # before TensorFlow is loaded
    return import_quietly("runtime.clusters.cluster").Cluster(spec)


def load_cluster(cluster: ClusterLike | None, topology: Topology) -> Cluster | None:
    """A cluster for this topology, connected if it is given by its file.

    Raises as `connect`; ConfigError: the numbers of devices differ.
    """
    if isinstance(cluster, str | os.PathLike):
        cluster = connect(cluster)
    if cluster is not None and len(cluster.devices) != topology.num_devices:
        raise field_error(ConfigError, cluster.spec.name, "", "--topology", f"one of {len(cluster.devices)} devices, as the cluster has",
                          f"{topology.name} with {topology.num_devices}")
    return cluster


def load_assignment(given: AssignmentLike, graph: DataflowGraph, costs: CostModel, dispatch: str | None = None,
                    offload: bool = False) -> Assignment:
    """An assignment with its dispatch rule: `dispatch`, else its own, else fifo.

    Args: offload: whether it may keep tensors on a host; what runs then is what `offloaded` returns.

    Raises AssignmentError: it does not fit, or is faster than what its file calls a proven bound.
    """
    assignment = _loaded(given, graph, costs)
    if assignment.offload is not None and not offload:
        where = given if isinstance(given, str | os.PathLike) else graph.name
        raise AssignmentError(f"{where}: offload: expected an assignment that fits in the devices' memory, got one with a plan; `simulate` "
                              f"and `run` take it")
    return assignment if dispatch is None else replace(assignment, dispatch=dispatch)


def _loaded(given: AssignmentLike, graph: DataflowGraph, costs: CostModel) -> Assignment:
    if not isinstance(given, str | os.PathLike):
        return as_assignment(graph, costs, given)
    record = read_json(given)
    if isinstance(record, Mapping) and record.get("batches") is not None:
        raise field_error(AssignmentError, str(given), "", "batches", "none, as for one batch", record["batches"],
                          f"give --repeat {record['batches']} --in-flight K where the command has them, or place without --in-flight")
    assignment = assignment_from_json(record, graph, costs, str(given))
    if assignment.proven_bound_s and assignment.offload is None:
        makespan_s = float(FastSimulator(graph, costs, assignment.dispatch).makespans_of([assignment])[0])
        if makespan_s < assignment.proven_bound_s * (1 - 1e-6):
            raise field_error(AssignmentError, str(given), "", "proven_bound_s",
                              f"at most {makespan_s:.9g}, in which this assignment ends", assignment.proven_bound_s,
                              "remove it from the file, or place again")
    return assignment


def load_planned(given: AssignmentLike, graph: DataflowGraph, costs: CostModel, dispatch: str | None, repeat: int | None,
                 in_flight: int | None) -> tuple[Batches | None, DataflowGraph, CostModel, Assignment]:
    """What is to be run: an assignment of one call, or, with `repeat`, batches of a graph as one graph, and an assignment of all of them;
    with the graph with host, if it keeps something there.

    Args:
      given: an assignment for one batch, which serves all, or what `place --in-flight` has written for some, which is repeated unless it
        keeps something on a host.
      dispatch: the order within a batch, as in `load_assignment`.

    Raises:
      ConfigError: K without M. AssignmentError: made for another graph, topology or number of batches.
    """
    if repeat is None and in_flight is None:
        return None, *offloaded(graph, costs, load_assignment(given, graph, costs, dispatch, offload=True))
    if repeat is None:
        raise ConfigError(f"--in-flight {in_flight}: expected --repeat M beside it, the number of batches, got none; add it")
    batches = repeat_graph(graph, costs.topology, repeat, in_flight or 1)
    record = read_json(given) if isinstance(given, str | os.PathLike) else None
    placed = record.get("batches") if isinstance(record, Mapping) else None
    if placed is None:
        single = load_assignment(given, graph, costs, dispatch, offload=True)
        if single.offload is not None:
            raise AssignmentError(f"{graph.name}: offload: expected none beside --repeat {repeat}, as this plan is for one call, got one; "
                                  f"place with --in-flight {repeat}, or leave out --repeat and --in-flight")
        assignment = batches.assignment([by_order(Problem(graph, costs), single)])
        return batches, batches.graph, batches.costs, assignment
    if dispatch is not None:
        raise ConfigError(f"--dispatch {dispatch}: expected none beside {given}, which has an order of batches; leave it out")
    device = record.get("device")
    if isinstance(placed, bool) or not isinstance(placed, int) or not 1 <= placed <= (len(device) if isinstance(device, list) else 1):
        raise field_error(AssignmentError, str(given), "", "batches", "a number of batches, at most the entries of `device`", placed)
    some = repeat_graph(graph, costs.topology, placed, placed)
    assignment = assignment_from_json(record, some.graph, some.costs, str(given))
    if assignment.offload is not None:
        if not repeat == in_flight == placed:
            raise AssignmentError(f"{given}: offload: expected --repeat {placed} --in-flight {placed}, for which the plan was made, got "
                                  f"--repeat {repeat} --in-flight {in_flight or 1}; give these, or place with another --in-flight")
        return batches, *offloaded(batches.graph, batches.costs, assignment)
    again = batches.assignment(some.pattern(assignment))
    if repeat == in_flight == placed:
        again = replace(again, proven_bound_s=assignment.proven_bound_s)
    return batches, batches.graph, batches.costs, again


def load_policy(path: str | Path, kept: KeptSamplers | None = None) -> Policy:
    """A trained policy: (graph, costs, samples, seed) -> assignments, the greedy one first; kept: what policies before have compiled."""
    return import_quietly("agents.serving.placing").load_policy(path, kept)
