"""Places a chain of matrix products and runs it on two TensorFlow devices; checks the result and the trace.

Run from the repository root: .venv/bin/python -m examples.run_on_devices
(It uses two GPUs if there are any, else two logical devices of the CPU.)
"""

from data import assemble_outputs, build_workload, evaluate_program, input_tiles, output_vertices, relative_error, workload_program
from doppler_tf import build_costs, place, read_topology, validate_trace
from runtime import TensorFlowExecutor, prepare_devices

DEVICES = 2


def main() -> None:
    prepare_devices(DEVICES)  # before TensorFlow's first operation
    graph = build_workload("chainmm", DEVICES, scale="small")  # (A @ B) + C @ (D @ E), cut into tiles
    costs = build_costs(graph, read_topology(f"cpu:{DEVICES}"))
    placed = place(graph, costs)
    print(f"{graph.name}: {len(graph.work_vertices)} vertices, placed by {placed.assignment.method}, "
          f"simulated {1e3 * placed.makespan_s:.2f} ms, lower bound {1e3 * placed.lower_bound_s:.2f} ms")

    # The graph stores its program and the seed of the input values.
    record = graph.attributes["workload"]
    program = workload_program(record)
    tensors = program.draw_inputs(record["seed"])
    with TensorFlowExecutor(input_tiles(graph, tensors), output_vertices(graph)) as executor:
        trace = executor.execute(graph, costs, placed.assignment)
        outputs = assemble_outputs(graph, executor.outputs)
    print(f"measured {1e3 * trace.makespan_s:.2f} ms, {len(trace.producer)} transfers")

    error = relative_error(outputs, evaluate_program(program, tensors))
    print(f"relative error against the unsharded program: {error:.1e} ({'ok' if error <= 1e-5 else 'wrong'})")
    # The dispatcher's log is judged exactly. Measured times would need a tolerance.
    report = validate_trace(graph, costs, placed.assignment, trace.log)
    print(f"trace valid: {report.valid}, work conserving: {report.work_conserving}")


if __name__ == "__main__":
    main()
