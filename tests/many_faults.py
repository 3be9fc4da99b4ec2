"""A program: every fault of `lost_worker` many times over, all at once, and a table of what came of it.

`python -m tests.many_faults TIMES [restart]`. An outcome is right if the outputs are (1e-5), or if a lost machine or a stalled task was
named.
"""

import json
import subprocess
import sys
from collections import Counter

import numpy as np

FAULTS = ("kill", "stop", "cut", "slow")


def main(times, restart):
    command = [sys.executable, "-m", "tests.lost_worker"]
    programs = {fault: subprocess.Popen([*command, fault, times, *restart], stdout=subprocess.PIPE, text=True) for fault in FAULTS}
    for fault, program in programs.items():
        told, ended = program.communicate()[0], program.returncode
        found = json.loads(told.splitlines()[-1]) if ended == 0 else []
        took_s = [each["took_s"] for each in found]
        print(json.dumps({"fault": fault, "restart": bool(restart), "exit": ended, "times": len(found),
                          "ended_as": Counter(map(kind, found)), "wrong": [each for each in found if not right(each)],
                          "left": [each["left"] for each in found if each["left"]],
                          "not_whole_again": [each["again"] for each in found if each["again"][0] or each["again"][1] > 1e-5],
                          "took_s": np.percentile(took_s, [0, 50, 100]).round(2).tolist() if found else None}), flush=True)


def kind(found):
    """How a run ended that noticed a fault."""
    return found.get("kind") or ("went on without it" if found.get("lost") else "went on" if found["noticed"] else "not noticed")


def right(found):
    if "kind" in found:
        return found["outputs"] == 0 and ("does not answer" in found["message"] or found["kind"] == "StalledError")
    return found["noticed"] and found["error"] <= 1e-5


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
