"""Places a networkx graph on four GPUs. Run from the repository root: .venv/bin/python -m examples.place_networkx"""

import networkx as nx

from doppler_tf import place

graph = nx.DiGraph(name="diamond")
for vertex in ("load", "left", "right", "join"):
    graph.add_node(vertex, flops=2e11, output_bytes=4e6)  # or exec_s=0.01, a measured time in seconds
graph.add_edges_from([("load", "left"), ("load", "right"), ("left", "join"), ("right", "join")])
placed = place(graph, "p100x4")
for vertex, device in placed.device_of.items():
    print(f"{vertex}: {device}")
print(f"{1e3 * placed.makespan_s:.2f} ms, at best {1e3 * placed.lower_bound_s:.2f} ms")
