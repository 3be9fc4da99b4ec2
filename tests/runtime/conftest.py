"""TensorFlow with four logical devices, no test that leaves threads behind, and small graphs to run."""

import gc
import os
import signal
import threading
from functools import partial

import numpy as np
import pytest

from doppler_tf.graph.records import graph_from_records
from doppler_tf.schedule.assignment import assignment_from_devices
from runtime import prepare_devices


@pytest.fixture(scope="session", autouse=True)
def four_devices():
    return prepare_devices(4)


@pytest.fixture(autouse=True)
def no_thread_left():
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.daemon:  # one that is let go may still be ending
            thread.join(5.0)
    assert not set(threading.enumerate()) - before


@pytest.fixture
def make_graph():
    """graph({vertex: (exec_s, [predecessors])}, ...): explicit costs, one transfer_s and one size for all."""
    def make(vertices, transfer_s=0.0, output_bytes=1.0):
        nodes = [{"id": v, "exec_s": exec_s, "output_bytes": output_bytes} for v, (exec_s, _) in vertices.items()]
        edges = [{"source": p, "target": v, "transfer_s": transfer_s} for v, (_, predecessors) in vertices.items() for p in predecessors]
        return graph_from_records(nodes, edges, {"name": "toy"})
    return make


@pytest.fixture
def random_graph(make_graph):
    """graph(vertices, seed): each vertex with up to two recent predecessors; exec of 0 to 2 s, transfers of 0.5 s."""
    def make(count, seed):
        rng = np.random.default_rng(seed)
        return make_graph({v: (float(rng.integers(0, 3)), sorted({int(p) for p in rng.integers(max(0, v - 8), v, min(v, 2))}))
                           for v in range(count)}, transfer_s=0.5)
    return make


@pytest.fixture
def place():
    """assignment(graph, costs, seed): a random device for every vertex; or an order besides."""
    def make(graph, costs, seed, order=None):
        devices = np.random.default_rng(seed).integers(0, costs.num_devices, graph.num_vertices).tolist()
        return assignment_from_devices(graph, costs, devices, order)
    return make


@pytest.fixture
def ctrl_c():
    """What sends this process a Ctrl-C, which Python's own handler hears: a process started in the background inherits one that ignores it.

    In a callback of the garbage collector, such as Hypothesis has, it would be lost.
    """
    before, callbacks = signal.signal(signal.SIGINT, signal.default_int_handler), gc.callbacks[:]
    gc.callbacks.clear()
    yield partial(os.kill, os.getpid(), signal.SIGINT)
    gc.callbacks[:] = callbacks
    signal.signal(signal.SIGINT, before)
