"""Runs a SavedModel with TensorFlow alone: `stock_tensorflow.py FOLDER DEVICES ARGUMENTS.npz RESULTS.npz CALLS [unfused]`.

It prints a JSON object: kind and device of each operation in the graphs that TensorFlow's executor ran, by name, the devices of the
variables, and modules of ours that were imported. The results are the outputs of each call as "CALL/NAME", and as "plain/NAME" those of a
model that was loaded without options.
"""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

folder, devices, arguments, results, calls, *options = sys.argv[1:]
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0],
                                           [tf.config.LogicalDeviceConfiguration()] * int(devices))
tensors = {name: tf.constant(value) for name, value in np.load(arguments).items()}
loaded = tf.saved_model.load(folder, options=tf.saved_model.LoadOptions(experimental_variable_policy="save_variable_devices"))
tf.config.set_soft_device_placement(False)
plain = tf.saved_model.load(folder).signatures["serving_default"](**tensors)
made = {f"plain/{name}": x.numpy() for name, x in plain.items()}
if "unfused" in options:
    tf.config.optimizer.set_experimental_options({"remapping": False})
context.enable_run_metadata()
for call in range(int(calls)):
    made.update({f"{call}/{name}": x.numpy() for name, x in loaded.signatures["serving_default"](**tensors).items()})
trace = context.export_run_metadata()
np.savez(results, **made)
print(json.dumps({"ran": {node.name: [node.op, node.device] for graph in trace.partition_graphs for node in graph.node},
                  "variables": {name: variable.device for name, variable in loaded.weights.items()},
                  "ours": sorted({"doppler_tf", "data", "runtime", "agents", "tests"} & set(sys.modules))}))
