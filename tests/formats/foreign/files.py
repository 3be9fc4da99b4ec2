"""Hand-made files of each foreign format, small enough to work out their best makespans by hand."""

from __future__ import annotations

SAGA = {
    "name": "four",
    "task_graph": {"tasks": [{"name": "a", "cost": 2.0}, {"name": "b", "cost": 4.0}, {"name": "c", "cost": 6.0},
                             {"name": "d", "cost": 2.0}],
                   "dependencies": [{"source": "a", "target": "b", "size": 2.0}, {"source": "a", "target": "c", "size": 4.0},
                                    {"source": "b", "target": "d", "size": 1.0}, {"source": "c", "target": "d", "size": 3.0}]},
    "network": {"nodes": [{"name": "n1", "speed": 1.0}, {"name": "n2", "speed": 2.0}],
                "edges": [{"source": "n1", "target": "n2", "speed": 1.0}, {"source": "n1", "target": "n1", "speed": 1e9},
                          {"source": "n2", "target": "n2", "speed": None}]},
}
# The same as SAGA 0.x had it.
OLDER_SAGA = {
    "task_graph": {"directed": True, "nodes": [{"id": task["name"], "weight": task["cost"]} for task in SAGA["task_graph"]["tasks"]],
                   "links": [{"source": edge["source"], "target": edge["target"], "weight": {"type": "float", "value": edge["size"]}}
                             for edge in SAGA["task_graph"]["dependencies"]]},
    "network": {"directed": False, "nodes": [{"id": "n1", "weight": 1.0}, {"id": "n2", "weight": 2.0}],
                "links": [{"source": "n2", "target": "n1", "weight": 1.0}]},
}
# split (10 s) writes f, which left and right (20 s each) read; join (5 s) reads what they write.
WFFORMAT = {
    "name": "diamond", "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [{"name": "split", "id": "t1", "parents": [], "children": ["t2", "t3"], "inputFiles": ["in"],
                       "outputFiles": ["f", "log"]},
                      {"name": "left", "id": "t2", "parents": ["t1"], "children": ["t4"], "inputFiles": ["f"], "outputFiles": ["l"]},
                      {"name": "right", "id": "t3", "parents": ["t1"], "children": ["t4"], "inputFiles": ["f"], "outputFiles": ["r"]},
                      {"name": "join", "id": "t4", "parents": ["t2", "t3"], "children": [], "inputFiles": ["l", "r"], "outputFiles": []}],
            "files": [{"id": "in", "sizeInBytes": 9}, {"id": "f", "sizeInBytes": 125_000_000}, {"id": "log", "sizeInBytes": 5},
                      {"id": "l", "sizeInBytes": 62_500_000}, {"id": "r", "sizeInBytes": 62_500_000}]},
        "execution": {
            "makespanInSeconds": 36, "executedAt": "2024-01-01T00:00:00Z",
            "tasks": [{"id": "t1", "runtimeInSeconds": 10}, {"id": "t2", "runtimeInSeconds": 20.0, "coreCount": 4},
                      {"id": "t3", "runtimeInSeconds": 20}, {"id": "t4", "runtimeInSeconds": 5}],
            "machines": [{"nodeName": "one", "cpu": {"coreCount": 1}}, {"nodeName": "two"}]}},
}


def older_wfformat(tasks: str, runtime: str, size: str) -> dict:
    """The same as versions before 1.5 had it. Args: tasks, runtime, size: how they call them."""
    specified = WFFORMAT["workflow"]["specification"]
    sizes = {file["id"]: file["sizeInBytes"] for file in specified["files"]}
    runs = {run["id"]: run["runtimeInSeconds"] for run in WFFORMAT["workflow"]["execution"]["tasks"]}
    names = {task["id"]: task["name"] for task in specified["tasks"]}
    listed = [{"name": task["name"], runtime: runs[task["id"]], "parents": [names[key] for key in task["parents"]],
               "files": [{"name": name, size: sizes[name], "link": link}
                         for link, key in (("input", "inputFiles"), ("output", "outputFiles")) for name in task[key]]}
              for task in specified["tasks"]]
    return {"name": "diamond", "schemaVersion": "1.3", "workflow": {tasks: listed, "machines": [{"nodeName": "one"}, {"nodeName": "two"}]}}


# Tasks 1 to 4 between an entry and an exit that take no time: 2 s, then 3 s and 3 s, then 2 s.
STG = """
          4
          0          0          0
          1          2          1          0
          2          3          1          1
          3          3          1          1
          4          2          2          2          3
          5          0          1          4
# Standard Task Graph Set Project
#   Tasks : 4 (+dummy tasks : 2)
"""
STG_WITH_COSTS = """4
0 0 0
1 2 1
  0 0
2 3 1
  1 4
3 3 1
  1 1
4 2 2
  2 1
  3 1
5 0 1
  4 0
"""
PROTOTYPE = "   4     3\n 1 2 0\n 2 3 1 1\n 3 3 1 1\n 4 2 2 2 3\n 5 0 1 4\n"
# The graph of STG_WITH_COSTS, with what DOT allows.
DOT = """// a comment
strict digraph "four tasks" {
  # another
  graph [rankdir=LR]; label = "cost=3, weight=9";
  node [shape=box, weight=3];
  "a 1" [Weight="2.0"; label=<<b>1</b>, 2>]
  edge [weight=1]
  "a 1":out:n -> b [weight=4, color="red"] /* c and d
  follow */
  "a 1" -> { c } -> d
  subgraph cluster_0 { node [weight=2]; d }
  b -> d; b [pos="1," + "2"];
}
"""
DAGGEN = """digraph G {
  1 [size="2000000000", alpha="0.20"]
  1 -> 2 [size ="4000000"]
  1 -> 3 [size ="1000000"]
  2 [size="3000000000", alpha="0.1"] 2 -> 4 [size ="1000000"]
  3 [size="3000000000"] 3 -> 4 [size ="1000000"]
  4 [size="2e9"]
}
"""
