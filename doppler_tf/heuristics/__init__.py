"""Heuristics by name; each takes (graph, costs, rng) and returns one Assignment that honours pins and colocation groups."""

from doppler_tf.heuristics.critical_path import CriticalPath, critical_path
from doppler_tf.heuristics.simple import one_device, random, round_robin

# In the order in which `place` tries them; among equals the first wins.
HEURISTICS = {"critical_path": critical_path, "round_robin": round_robin, "one_device": one_device, "random": random}

__all__ = ["HEURISTICS", "CriticalPath", "critical_path", "one_device", "random", "round_robin"]
