"""A program: devices are this process and another one, which is killed while graphs run; prints what came of it as JSON."""

import json
import os
import subprocess
import sys
import threading
import time

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import tensorflow as tf

from data import assemble_outputs, build_workload, evaluate_program, input_tiles, output_vertices, relative_error, workload_program
from doppler_tf.errors import DeviceLostError
from doppler_tf.graph.costs import build_costs
from doppler_tf.graph.topology import cpu
from doppler_tf.schedule.assignment import assignment_from_devices
from runtime import TensorFlowExecutor

SERVER = """
import tensorflow as tf
server = tf.distribute.Server({"worker": ["localhost:0"]}, job_name="worker", task_index=0)
print(server.target, flush=True)
server.join()
"""
PATIENCE_S = 20.0


def main() -> None:
    """Runs until the loss is noticed; with `restart` as argument the run goes on without the lost device, and so do later ones; with
    `between` the server is killed when nothing runs."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        tf.config.experimental_connect_to_host(server.stdout.readline().strip().removeprefix("grpc://"))
        print(json.dumps(lose(server, sys.argv[1:])), flush=True)
    finally:
        server.kill()
    os._exit(0)  # TensorFlow would wait for the server at exit


def lose(server: subprocess.Popen, how: list[str]) -> dict:
    """What the first run that notices the loss said."""
    graph = build_workload("chainmm", 2, scale="small")
    record = graph.attributes["workload"]
    program = workload_program(record)
    tensors = program.draw_inputs(record["seed"])
    costs = build_costs(graph, cpu(2))
    assignment = assignment_from_devices(graph, costs, np.random.default_rng(0).integers(0, 2, graph.num_vertices).tolist())
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    with TensorFlowExecutor(input_tiles(graph, tensors), output_vertices(graph), devices, restart_on_loss=bool(how)) as executor:
        executor.execute(graph, costs, assignment)
        timer = threading.Timer(0.2, server.kill)
        timer.start()
        if how == ["between"]:
            timer.join()
            server.wait()
        until_s = time.perf_counter() + PATIENCE_S
        while time.perf_counter() < until_s:
            try:
                trace = executor.execute(graph, costs, assignment)
            except DeviceLostError as error:
                return {"error": str(error), "device": error.device, "outputs": len(executor.outputs)}
            if trace.lost:
                later = [executor.execute(graph, costs, assignment).lost for _ in range(3)]
                return {"lost": trace.lost, "later": later,
                        "relative_error": relative_error(assemble_outputs(graph, executor.outputs), evaluate_program(program, tensors))}
    return {"error": "the loss was not noticed"}


if __name__ == "__main__":
    main()
