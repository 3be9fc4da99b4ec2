"""Several machines: network namespaces of this computer, each with a worker on one core."""

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.machines import allowed

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", autouse=True)
def machines_allowed():
    if not allowed():
        pytest.skip("network namespaces need root and the system's permission")


def lose(*how):
    """What the program `lost_worker` prints."""
    done = subprocess.run([sys.executable, "-m", "tests.lost_worker", *how], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("host", [(), ("host",)])
@pytest.mark.parametrize("fault", ["kill", "stop", "cut"])
def test_the_run_ends_and_names_machine_and_vertex(fault, host):
    """Also where the machine that is lost keeps its own device's tensors."""
    for told in lose(fault, "3", *host):
        assert told["kind"] == "DeviceLostError"
        assert "vertex '" in told["message"] or "placing inputs failed" in told["message"]  # if lost between two runs
        assert "worker 10.77.0.3:2222 does not answer" in told["message"]
        assert told["outputs"] == 0
        assert told["took_s"] < 6.0
        assert told["left"] == []
        assert told["again"] == [[], pytest.approx(0, abs=1e-5)]


@pytest.mark.parametrize("fault", ["kill", "stop", "cut"])
def test_or_goes_on_where_that_is_wished(fault):
    for told in lose(fault, "3", "restart"):
        assert told["lost"] == [2]
        assert told["error"] < 1e-5
        assert told["left"] == []
        assert told["again"] == [[], pytest.approx(0, abs=1e-5)]


def test_a_slow_link_makes_no_outputs_wrong():
    for told in lose("slow", "3"):
        assert told.get("error", 0.0) < 1e-5
        assert told.get("kind", "StalledError") == "StalledError"
        assert told["left"] == []
        assert told["again"] == [[], pytest.approx(0, abs=1e-5)]


HELD = """
import time
from tests.machines import Machines
with Machines(2) as machines:
    machines.enter(0)
    machines.worker(1)
    print(machines.name, *machines.processes(1), flush=True)
    time.sleep(60)
"""


def test_machines_are_removed_by_a_signal():
    with subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, text=True) as process:
        name, worker = process.stdout.readline().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    assert name not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not os.path.exists(f"/proc/{worker}")
