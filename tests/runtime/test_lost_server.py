"""A device that is really lost: the process that serves it is killed while graphs run on it."""

import json
import subprocess
import sys

import pytest


def lose(*options):
    """What the program of that name prints."""
    done = subprocess.run([sys.executable, "-m", "tests.lost_server", *options], capture_output=True, text=True, timeout=120)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
def test_the_run_fails_and_says_which_device_is_gone():
    told = lose()
    assert told["device"] == 1
    assert "'CPU:1'" in told["error"]
    assert told["error"].endswith("DeviceLostError: TensorFlow's /job:worker/replica:0/task:0/device:CPU:0 does not answer; place the "
                                  "graph on the devices that are left")
    assert told["outputs"] == 0


@pytest.mark.parametrize("how", ["restart", pytest.param("between", marks=pytest.mark.thorough)])
def test_the_run_and_later_ones_complete_on_what_is_left_where_that_is_wished(how):
    told = lose(how)
    assert told["lost"] == [1]
    assert told["later"] == [[1]] * 3
    assert told["relative_error"] == pytest.approx(0, abs=1e-5)
