"""A Ray cluster on this machine: `python -m tests.ray_nodes` starts two nodes of one core each and prints the address.

A line on stdin kills the second node with all that runs on it, then prints `killed`. The next line, or the end of stdin, ends the cluster.
"""

from __future__ import annotations

import os
import sys

from ray.cluster_utils import Cluster

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
print(cluster.address, flush=True)
if sys.stdin.readline().startswith("kill"):
    cluster.remove_node(second, allow_graceful=False)
    print("killed", flush=True)
    sys.stdin.readline()
cluster.shutdown()
