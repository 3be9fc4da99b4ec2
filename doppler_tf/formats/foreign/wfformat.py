"""WfFormat of WfCommons: workflows of scientific computing, as they were run. Versions 1.3 to 1.5, and older ones with `jobs`.

What is assumed: a task takes its `runtimeInSeconds` on every machine and one slot, whatever cores it had. A file that a task writes and
others read is a tensor of `sizeInBytes`, sent once to each machine that needs it. A file that no task writes is everywhere from the start.
A child that reads no file of its parent waits for it alone. Machines become devices with a slot for each core. How fast they are connected
stands in no file: links are taken to carry 1 Gbit/s. Memory is not limited, as files lie on disks.

Since 1.5 a workflow has `specification` (tasks and files) and `execution` (run times, machines); before, a task has all its figures itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doppler_tf.errors import FormatError, field_error
from doppler_tf.formats.foreign.fields import Foreign, member, number
from doppler_tf.graph.records import graph_from_records
from doppler_tf.graph.topology import Topology

LINK_BYTES_PER_S = 1.25e8
_TASKS, _SIZE, _RUNTIME = ("tasks", "jobs"), ("sizeInBytes", "size"), ("runtimeInSeconds", "runtime")


def is_wfformat(record: Any) -> bool:
    """Whether a JSON document looks like one of WfFormat."""
    return isinstance(record, Mapping) and isinstance(record.get("workflow"), Mapping)


def read_wfformat(record: Any, where: str, name: str) -> Foreign:
    """The graph and, if machines are listed, the topology of a document.

    Args:
      where: the file, for messages; name: of the graph if it has none.

    Raises:
      FormatError, GraphError: the document is damaged, or without run times.
    """
    workflow = member(record, ("workflow",), Mapping, where, "")
    specified, sizes = member(workflow, ("specification",), Mapping, where, "workflow", None), {}
    execution = member(workflow, ("execution",), Mapping, where, "workflow", {})
    listed = member(workflow if specified is None else specified, _TASKS, list, where, "workflow" if specified is None else "specification")
    for k, file in enumerate(member(specified or {}, ("files",), list, where, "specification", [])):
        sizes[member(file, ("id", "name"), str, where, f"file {k}")] = number(file, _SIZE, where, f"file {k}")
    runs = {}
    for k, run in enumerate(member(execution, _TASKS, list, where, "execution", [])):
        runs[member(run, ("id", "name"), str, where, f"execution: task {k}")] = run
    nodes, written, read, family = {}, {}, [], []
    aliases: dict[str, str] = {}
    for k, task in enumerate(listed):
        key = member(task, ("id", "name"), str, where, f"task {k}")
        label = f"task {key!r}"
        title = member(task, ("name",), str, where, label, key)
        if key in nodes:
            raise field_error(FormatError, where, label, "id", "each id once", key)
        nodes[key] = {"id": key, "name": title, "kind": member(task, ("category",), str, where, label, "task"),
                      "exec_s": number({**task, **runs.get(key, runs.get(title, {}))}, _RUNTIME, where, label)}
        aliases.setdefault(title, key)
        inputs, outputs = _files(task, sizes, where, label)
        for file in outputs:
            written.setdefault(file, []).append(key)
        read.extend((file, key) for file in inputs)
        for relation, parent_first in (("parents", True), ("children", False)):
            for other in member(task, (relation,), list, where, label, []):
                _text(other, where, label, relation)
                family.append((other, key) if parent_first else (key, other))
    related = dict.fromkeys((_known(u, nodes, aliases, where), _known(v, nodes, aliases, where)) for u, v in family)
    edges = _edges(related, written, read, sizes, nodes)
    graph = graph_from_records(list(nodes.values()), edges, {"name": member(record, ("name",), str, where, "", name)}, where)
    machines = [machine for part, what in ((execution, "execution"), (workflow, "workflow"))
                for machine in member(part, ("machines",), list, where, what, [])]
    return Foreign(graph, _topology(machines, where, graph.name) if machines else None)


def _files(task: Mapping, sizes: dict[str, float], where: str, label: str) -> tuple[list[str], list[str]]:
    """Names of the files that a task reads and writes. Sizes that stand in the task are added to `sizes`."""
    inputs = [_text(name, where, label, "inputFiles") for name in member(task, ("inputFiles",), list, where, label, [])]
    outputs = [_text(name, where, label, "outputFiles") for name in member(task, ("outputFiles",), list, where, label, [])]
    for k, file in enumerate(member(task, ("files",), list, where, label, [])):
        name, link = (member(file, names, str, where, f"{label}: file {k}") for names in (("name", "id"), ("link",)))
        if link not in ("input", "output"):
            raise field_error(FormatError, where, f"{label}: file {name!r}", "link", "input or output", link)
        sizes[name] = max(sizes.get(name, 0.0), number(file, _SIZE, where, f"{label}: file {name!r}"))
        (inputs if link == "input" else outputs).append(name)
    for name in inputs + outputs:
        if name not in sizes:
            raise field_error(FormatError, where, label, "file", "files with a sizeInBytes", name)
    return list(dict.fromkeys(inputs)), list(dict.fromkeys(outputs))


def _edges(related: Mapping[tuple[str, str], None], written: Mapping[str, list[str]], read: list[tuple[str, str]],
           sizes: Mapping[str, float], nodes: Mapping[str, dict]) -> list[dict]:
    """An edge for each file from who writes it to who reads it, and one without bytes for relatives who share no file.

    A task's outputs are the files of it that others read, and a last one of 0 bytes if somebody only waits for it.
    """
    carried: dict[tuple[str, str], list[str]] = {pair: [] for pair in related}
    for file, reader in read:
        writers = [writer for writer in written.get(file, ()) if writer != reader]
        # Of several tasks that write a file a reader takes those that it names as parents.
        for writer in writers if len(writers) == 1 else [writer for writer in writers if (writer, reader) in related]:
            carried.setdefault((writer, reader), []).append(file)
    outputs: dict[str, dict[str, int]] = {}
    edges = []
    for (source, target), files in carried.items():
        numbers = outputs.setdefault(source, {})
        edges.extend({"source": source, "target": target, "output": numbers.setdefault(file, len(numbers))} for file in files or [""])
    for key, numbers in outputs.items():
        nodes[key]["output_bytes"] = [sizes.get(file, 0.0) for file in numbers]
    return edges


def _known(name: str, nodes: Mapping[str, dict], aliases: Mapping[str, str], where: str) -> str:
    key = name if name in nodes else aliases.get(name)
    if key is None:
        raise field_error(FormatError, where, "", "parents, children", "names of tasks", name, "add the task")
    return key


def _text(name: Any, where: str, what: str, field: str) -> str:
    if not isinstance(name, str):
        raise field_error(FormatError, where, what, field, "a list of names", name)
    return name


def _topology(machines: list, where: str, name: str) -> Topology:
    devices = []
    for k, machine in enumerate(machines):
        label = f"machine {k}"
        cpu = member(machine, ("cpu",), Mapping, where, label, {})
        cores = number(cpu, ("coreCount", "count"), where, label, 1.0)
        devices.append({"name": member(machine, ("nodeName",), str, where, label), "slots": max(1, int(cores))})
    return Topology.from_json({"name": name, "devices": devices, "links": {"bandwidth_bytes_per_s": LINK_BYTES_PER_S}}, where)
