"""Heuristics by name; each takes (problem, rng) and returns one Assignment that honours pins and colocation groups."""

from doppler_tf.heuristics.constructive.critical_path import CriticalPath
from doppler_tf.heuristics.constructive.enumerative import enumerative
from doppler_tf.heuristics.constructive.list_schedulers import cpop, etf, fcp, heft, min_min, peft
from doppler_tf.heuristics.constructive.partition import partition
from doppler_tf.heuristics.constructive.simple import critical_path, one_device, random, round_robin
from doppler_tf.heuristics.exact.cp_sat import solve
from doppler_tf.heuristics.pool import Pool
from doppler_tf.heuristics.problem import Problem
from doppler_tf.heuristics.repeats.tied_search import search_tied
from doppler_tf.heuristics.search.annealing import anneal
from doppler_tf.heuristics.search.budget import Budget
from doppler_tf.heuristics.search.local_search import climb
from doppler_tf.heuristics.search.random_search import draw_best

# Constructive heuristics, in the order in which `place` tries them. If two are equally good, the first wins.
CONSTRUCTIVE = {
    "critical_path": critical_path, "heft": heft, "cpop": cpop, "peft": peft, "etf": etf, "fcp": fcp, "min_min": min_min,
    "enumerative": enumerative, "partition": partition, "round_robin": round_robin, "one_device": one_device, "random": random}
# Searches spend a budget of simulations or seconds: (problem, rng, budget, start, pool) -> Found.
SEARCHES = {
    "annealing": anneal, "local_search": climb, "tied_search": search_tied, "random_search": draw_best, "cp_sat": solve}
# Constructive heuristics to compare with, which look at neither time nor memory.
YARDSTICKS = ("round_robin", "one_device", "random")
# Heuristics that take a second at most for 100,000 vertices.
FAST = ("critical_path", "heft", "cpop", "peft", "fcp", "round_robin", "one_device", "random")
# Constructive heuristics that always make the same assignment.
DETERMINISTIC = ("heft", "cpop", "peft", "etf", "fcp", "min_min", "enumerative", "round_robin", "one_device")
# All of them; searches with their default budget.
HEURISTICS = CONSTRUCTIVE | {name: lambda problem, rng, search=search: search(problem, rng).assignment for name, search in SEARCHES.items()}

__all__ = ["CONSTRUCTIVE", "DETERMINISTIC", "FAST", "HEURISTICS", "SEARCHES", "YARDSTICKS", "Budget", "CriticalPath", "Pool", "Problem",
           *CONSTRUCTIVE, "anneal", "climb", "draw_best", "search_tied", "solve"]
