"""A program: a graph runs on three machines, and one is lost again and again; prints what came of it as JSON.

`python -m tests.lost_worker kill|stop|cut|slow TIMES [restart|host]`. The first machine is the chief, the last one is lost. Its link is
slowed a hundredfold. With `host` its device has half of the memory that it needs, and its machine keeps the rest.
"""

import json
import os
import sys
import threading
import time
from dataclasses import replace

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tests.machines import PORT, Machines, stop

PATIENCE_S, TIMEOUT_S = 60.0, 3.0
USUAL, SLOW = "1gbit", "10mbit"
LOST = 2


def main(fault, times, restart, host):
    with Machines(3) as machines:
        machines.enter(0)
        workers = {i: machines.worker(i) for i in (1, LOST)}
        machines.shape(LOST, USUAL)

        def begin():
            if fault == "kill":
                workers[LOST].kill()
                workers[LOST].wait()
            elif fault == "stop":
                stop(workers[LOST])
            elif fault == "cut":
                machines.cut(LOST)
            else:
                machines.shape(LOST, SLOW)

        def end():
            if fault == "kill":
                workers[LOST] = machines.worker(LOST)
            elif fault == "stop":
                stop(workers[LOST], False)
            elif fault == "cut":
                machines.cut(LOST, False)
            else:
                machines.shape(LOST, USUAL)
            time.sleep(0.3)

        def processes():
            return {pid for i in workers for pid in machines.processes(i)} - {worker.pid for worker in workers.values()}

        from doppler_tf.formats.cluster_json import ClusterSpec
        from runtime.clusters.cluster import Cluster

        spec = ClusterSpec("machines", tuple((machines.address(i), PORT) for i in (1, LOST)), (machines.address(0), PORT))
        print(json.dumps(lose(Cluster(spec), begin, end, processes, times, restart, host)), flush=True)


def planned(graph, costs, assignment):
    """What runs with a plan where the last device is short of memory, and where the results that its host keeps are then."""
    from doppler_tf.graph.costs import build_costs
    from doppler_tf.graph.topology import Host
    from doppler_tf.offload.planning import plan_offload
    from doppler_tf.schedule.memory import needed_bytes
    from doppler_tf.schedule.offloaded import kept_on_host, offloaded
    from doppler_tf.schedule.simulator import Simulator
    from doppler_tf.schedule.trace import peak_bytes

    peak = peak_bytes(graph, costs, assignment, Simulator().execute(graph, costs, assignment))[LOST]
    limit = max(0.5 * peak, needed_bytes(graph, costs)[graph.work_vertices].max())
    short = replace(costs.topology.with_memory([None, None, limit]), host=Host((1e8, 1e8, 1e9)))
    costs = build_costs(graph, short)
    ran = offloaded(graph, costs, plan_offload(graph, costs, assignment)[1])
    assert limit < peak
    assert ran[0].num_vertices > graph.num_vertices
    return ran, kept_on_host(graph, ran[0])


def lose(cluster, begin, end, processes, times, restart, host):
    """By fault what the run said that noticed it, how long it took, what was left, and what the next run computed."""
    from data import assemble_outputs, build_workload, evaluate_program, input_tiles, output_vertices, relative_error, workload_program
    from doppler_tf.errors import DeviceLostError, StalledError
    from doppler_tf.graph.costs import build_costs
    from doppler_tf.graph.topology import cpu
    from doppler_tf.schedule.assignment import assignment_from_devices
    from runtime import TensorFlowExecutor

    graph = build_workload("chainmm", 3, scale="small")
    record = graph.attributes["workload"]
    program = workload_program(record)
    tensors = program.draw_inputs(record["seed"])
    expected = evaluate_program(program, tensors)
    costs, rng = build_costs(graph, cpu(3)), np.random.default_rng(0)
    assignment = assignment_from_devices(graph, costs, rng.integers(0, 3, graph.num_vertices).tolist())
    ran, kept = planned(graph, costs, assignment) if host else ((graph, costs, assignment), {})
    before, told, outputs = set(threading.enumerate()), [], output_vertices(graph)
    with TensorFlowExecutor(input_tiles(graph, tensors), [kept.get(t, t) for t in outputs], keep_inputs=not host, timeout_s=TIMEOUT_S,
                            cluster=cluster, restart_on_loss=restart) as executor:
        def error():
            return relative_error(assemble_outputs(graph, {t: executor.outputs[kept.get(t, t)] for t in outputs}), expected)

        usual_s = min(executor.execute(*ran).makespan_s for _ in range(5))
        for _ in range(times):
            timer = threading.Timer(2 * usual_s * rng.random(), begin)
            timer.start()
            found, until_s = {"noticed": False}, time.perf_counter() + PATIENCE_S
            while not found["noticed"] and time.perf_counter() < until_s:
                started_s, trace = time.perf_counter(), None
                try:
                    trace = executor.execute(*ran)
                    found = {"noticed": bool(trace.lost) or trace.makespan_s > 5 * usual_s, "lost": trace.lost, "error": error()}
                except (DeviceLostError, StalledError) as lost:
                    found = {"noticed": True, "message": str(lost), "kind": type(lost).__name__,
                             "outputs": 0 if trace else len(executor.outputs)}  # of a whole run they could not be fetched
            found["took_s"] = time.perf_counter() - started_s
            timer.join()
            executor.close()  # forgets what was lost
            end()
            until_s = time.perf_counter() + 5.0
            while (left := set(threading.enumerate()) - before) and time.perf_counter() < until_s:
                time.sleep(0.05)
            found["left"] = [*sorted(thread.name for thread in left), *processes()]
            again = executor.execute(*ran)
            assert (again.peak_tensor_bytes <= ran[1].memory_bytes).all()
            found["again"] = again.lost, error()
            told.append(found)
    return told


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *(word in sys.argv[3:] for word in ("restart", "host")))
