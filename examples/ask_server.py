"""Asks `examples.serve_http`, or TensorFlow Serving, for a placement of a graph file and simulates the answer.

Run from the repository root: .venv/bin/python -m examples.ask_server chainmm.json p100x4 http://localhost:8501/v1/models/doppler
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # before TensorFlow is imported: TF-GNN and TF-Agents need Keras 2

import numpy as np

from agents.serving.tensor_features import problem_of
from doppler_tf import Assignment, build_costs, read_graph, read_topology, simulate
from doppler_tf.errors import UserError


def main(path: str, topology: str, url: str) -> None:
    graph = read_graph(path)
    costs = build_costs(graph, read_topology(topology))
    tensors = {name: value.tolist() for name, value in problem_of(graph, costs)._asdict().items()}
    request = {"signature_name": "place", "inputs": {**tensors, "samples": 64, "seed": 0}}
    with urllib.request.urlopen(f"{url}:predict", json.dumps(request).encode()) as answer:
        placed = json.load(answer)["outputs"]
    device = np.full(graph.num_vertices, -1, np.int32)  # inputs are resident everywhere and have no device
    device[graph.work_vertices] = placed["device"]
    order = graph.work_vertices[placed["order"]]
    makespan_s = simulate(graph, costs, Assignment(device, order, "served", placed["dispatch"])).makespan_s
    print(f"{graph.work_vertices.size} vertices placed: {1e3 * placed['makespan_s']:.2f} ms as the server simulates, "
          f"{1e3 * makespan_s:.2f} ms here")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="ask a server for a placement")
    for name in ("graph", "topology", "url"):
        parser.add_argument(name)
    try:
        main(*vars(parser.parse_args()).values())
    except urllib.error.HTTPError as error:
        sys.exit(f"the server refused: {json.load(error)['error']}")
    except (UserError, urllib.error.URLError) as error:
        sys.exit(str(error))
