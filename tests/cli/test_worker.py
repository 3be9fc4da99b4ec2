"""`worker` serves, and `run --cluster` runs there: two programs on the loopback address, as users start them."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from tests.commands import doppler


@contextlib.contextmanager
def serving():
    """A worker with two devices, and its port."""
    command = [sys.executable, "-m", "doppler_tf", "worker", "--listen", "127.0.0.1:0", "--devices", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = next(line for line in process.stderr if line.startswith("worker:"))
            yield process, int(re.fullmatch(r"worker: 2 CPU devices at 127\.0\.0\.1:(\d+); Ctrl-C ends it\n", said)[1])
        finally:
            process.kill()


@pytest.fixture
def worker():
    with serving() as found:
        yield found


@pytest.fixture
def another():
    with serving() as found:
        yield found


def program(*words):
    # TensorFlow would ask a proxy for web pages for the way to a worker.
    environment = os.environ | {"http_proxy": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-m", "doppler_tf", *words], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_graph_runs_on_a_worker_which_a_signal_ends(worker, write, tmp_path):
    process, port = worker
    with pytest.raises(TimeoutError):  # though TensorFlow listens on every address
        socket.create_connection(("127.0.0.2", port), 0.3)
    cluster, graph, assignment = write({"worker": [f"127.0.0.1:{port}"]}, "cluster.json"), tmp_path / "g.json", tmp_path / "a.json"
    doppler("workload", "chainmm", "--devices", 2, "--scale", "small", "--out", graph)
    doppler("place", graph, "--topology", "cpu:2", "--method", "round_robin", "--out", assignment)
    found = program("run", str(graph), "--topology", "cpu:2", "--cluster", str(cluster), "--assignment", str(assignment),
                    "--executor", "tf", "--repeats", "2", "--json")
    assert [found[key] for key in ("outputs_match", "trace_valid", "work_conserving")] == [True] * 3
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(told)["devices"] == 2


SCALED = """
from data import EinsumProgram, elementwise, tensor_input
program = EinsumProgram({{"a": 4}}, {{"x": tensor_input("a")}}, (elementwise("y", "scale", "a -> a", "x", factor={factor}, offset=0.0),))
"""


def test_a_worker_computes_nothing_as_an_earlier_command_did(worker, write, tmp_path):
    """XLA keeps what it has compiled by a function's name, and a second process names its functions as the first did."""
    cluster, assignment = write({"worker": [f"127.0.0.1:{worker[1]}"]}, "cluster.json"), tmp_path / "a.json"
    for factor in (2.0, 3.0):
        source, graph = tmp_path / f"scaled_{factor:g}.py", tmp_path / f"{factor:g}.json"
        source.write_text(SCALED.format(factor=factor))
        doppler("workload", f"{source}:program", "--devices", 2, "--out", graph)
        doppler("place", graph, "--topology", "cpu:2", "--method", "one_device", "--out", assignment)
        found = program("run", str(graph), "--topology", "cpu:2", "--cluster", str(cluster), "--assignment", str(assignment),
                        "--executor", "tf", "--json")
        assert found["outputs_match"]


@pytest.mark.thorough  # test_cluster.py loses such a machine
def test_a_worker_keeps_what_its_devices_have_no_room_for(worker, write, tmp_path):
    cluster, graph, assignment = write({"worker": [f"127.0.0.1:{worker[1]}"]}, "cluster.json"), tmp_path / "g.json", tmp_path / "a.json"
    short = ("--topology", "cpu:2", "--memory", "8MB")
    doppler("workload", "chainmm", "--devices", 2, "--scale", "small", "--out", graph)
    doppler("place", graph, *short, "--out", assignment)
    found = program("run", str(graph), *short, "--cluster", str(cluster), "--assignment", str(assignment), "--executor", "tf",
                    "--repeats", "2", "--json")
    assert [found[key] for key in ("outputs_match", "trace_valid", "work_conserving")] == [True] * 3
    assert found["offload"]["reloads"] > 0


@pytest.mark.thorough
def test_one_tensor_goes_to_both_devices_of_another_worker(worker, another, write, tmp_path):
    """And these copies may be under way at once."""
    cluster, graph = write({"worker": [f"127.0.0.1:{port}" for _, port in (worker, another)]}, "cluster.json"), tmp_path / "g.json"
    doppler("workload", "chainmm", "--devices", 4, "--scale", "small", "--option", "n=256", "--out", graph)
    assignment = str(tmp_path / "round_robin.json")
    doppler("place", graph, "--topology", "cpu:4", "--method", "round_robin", "--out", assignment)
    found = program("run", str(graph), "--topology", "cpu:4", "--cluster", str(cluster), "--assignment", assignment,
                    "--executor", "tf", "--repeats", "5", "--json")
    assert [found[key] for key in ("outputs_match", "trace_valid", "work_conserving")] == [True] * 3


def test_a_cluster_that_is_not_there(cli, diamond, write):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    cluster, assignment = write({"worker": [f"127.0.0.1:{port}"]}, "cluster.json"), write([None, 0, 1, 0], "a.json")
    outcome = cli("run", diamond, "--topology", "ideal:2", "--cluster", cluster, "--assignment", assignment, "--executor", "tf")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{cluster}: worker 127.0.0.1:{port}: expected a TensorFlow server that answers within 10 s, got none" in outcome.err


def test_one_worker_under_two_names(cli, diamond, write):
    cluster, assignment = write({"worker": ["127.0.0.1:2222", "localhost:2222"]}, "cluster.json"), write([None, 0, 1, 0], "a.json")
    outcome = cli("run", diamond, "--topology", "ideal:2", "--cluster", cluster, "--assignment", assignment, "--executor", "tf")
    assert (outcome.code, outcome.out) == (2, "")
    assert "expected different machines or ports, got one twice under two names: 127.0.0.1:2222, localhost:2222" in outcome.err


def test_an_address_of_another_machine():
    command = [sys.executable, "-m", "doppler_tf", "worker", "--listen", "192.0.2.1:0", "--trust-network"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "worker: 192.0.2.1:0: expected an address and a free port of this machine" in done.stderr


DISTRIBUTED = """
import sys
import doppler_tf
cluster = doppler_tf.connect(sys.argv[1])  # before TensorFlow's first operation
import numpy as np, tensorflow as tf
weight = tf.Variable(np.random.default_rng(0).normal(size=(64, 64)).astype("f"))
function = tf.function(lambda x: {"left": tf.nn.relu(x @ weight), "right": x @ x})
x = np.random.default_rng(1).normal(size=(64, 64)).astype("f")
with doppler_tf.distribute(function, x, budget_s=0.2, cluster=cluster) as placed:
    for each in (x, -x):
        for name, value in placed(each).items():
            np.testing.assert_allclose(value, function(each)[name], rtol=1e-4, atol=1e-5)
    print(placed.costs.topology.device_names)
"""


@pytest.mark.thorough
def test_what_else_takes_a_cluster(worker, write, tmp_path):
    _, port = worker
    cluster, graph = write({"worker": [f"127.0.0.1:{port}"]}, "cluster.json"), tmp_path / "g.json"
    program("workload", "chainmm", "--devices", "2", "--scale", "small", "--option", "n=128", "--out", str(graph), "--json")
    here = ("--cluster", str(cluster), "--json")
    measured = program("calibrate", str(graph), "--topology", "cpu:2", "--assignments", "5", "--out", str(tmp_path / "m"), *here)
    names = [f"127.0.0.1:{port}/CPU:0", f"127.0.0.1:{port}/CPU:1"]
    assert {(link["source"], link["destination"]) for link in measured["links"]} == {tuple(names), tuple(names[::-1])}
    files = (str(tmp_path / "m" / "graph.json"), "--topology", str(tmp_path / "m" / "topology.json"))
    chosen = program("place", *files, "--measure", "12", *here)
    assert chosen["measured"][chosen["chosen"]]["runs"] > 0
    compared = program("compare", *files, "--methods", "round_robin,critical_path", "--measure", "3", *here)
    assert min(row["median_s"] for row in compared["measured"].values()) > 0
    trained = program("train", *files, "--imitation", "4", "--simulated", "8", "--real", "4", "--run-dir", str(tmp_path / "run"), *here)
    assert trained["graphs"]["chainmm"]["measured"]["failed"] == 0
    done = subprocess.run([sys.executable, "-c", DISTRIBUTED, str(cluster)], capture_output=True, text=True, timeout=240)
    assert done.stdout == f"{tuple(names)}\n", done.stderr
