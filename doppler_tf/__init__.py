"""Device assignment in asynchronous dataflow graphs: the domain. `import doppler_tf` stays light; names load on first use."""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {
    "read_graph": "doppler_tf.formats.graph_json", "write_graph": "doppler_tf.formats.graph_json",
    "read_topology": "doppler_tf.formats.topology_json", "Topology": "doppler_tf.graph.topology", "Device": "doppler_tf.graph.topology",
    "Host": "doppler_tf.graph.topology",
    "DataflowGraph": "doppler_tf.graph.dataflow", "build_costs": "doppler_tf.graph.costs", "estimated": "doppler_tf.graph.costs",
    "convert": "doppler_tf.formats.foreign.conversion", "write_converted": "doppler_tf.formats.foreign.conversion",
    "Assignment": "doppler_tf.schedule.assignment",
    "simulate": "doppler_tf.schedule.simulator", "place": "doppler_tf.placement", "validate_trace": "doppler_tf.schedule.validation",
    "calibrate": "doppler_tf.api.calibration", "capture": "doppler_tf.api.capturing",
    "compare": "doppler_tf.api.comparison.comparing", "connect": "doppler_tf.api.inputs",
    "distribute": "doppler_tf.api.distribution.distribute", "export": "doppler_tf.api.exporting",
    "export_placed": "doppler_tf.api.exporting", "measure": "doppler_tf.api.measuring",
    "prepare_devices": "doppler_tf.api.distribution.distribute", "run": "doppler_tf.api.running", "train": "doppler_tf.api.training",
    "write_report": "doppler_tf.api.runs.reporting",
}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'doppler_tf' has no attribute {name!r}; public names: {', '.join(sorted(_HOMES))}")
    return getattr(import_module(_HOMES[name]), name)
