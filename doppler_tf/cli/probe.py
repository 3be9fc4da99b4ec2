"""What `doctor` tries in a process of its own, as an import may end it: `python -m doppler_tf.cli.probe`, a JSON object a line."""

from __future__ import annotations

import json
import os
from importlib import import_module

MODULES = ("numpy", "numba", "networkx", "rich", "matplotlib", "ortools.sat.python.cp_model", "pymetis", "tensorflow", "tf_keras",
           "tensorflow_gnn", "tf_agents", "tensorflow_probability")


def main() -> None:
    """Imports each module, then says how TensorFlow is set up; libraries' own words go to stderr."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        errors = {}
        for name in MODULES:
            print(json.dumps({"trying": name}), file=out, flush=True)
            errors[name] = _error(name)
        print(json.dumps({"errors": errors, "tensorflow": None if errors["tensorflow"] else _tensorflow()}), file=out)


def _error(name: str) -> str | None:
    """Why a module cannot be imported, in one line; None where it can."""
    try:
        import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def _tensorflow() -> dict:
    """Which Keras it uses, which devices it finds, how many threads it is told to take (0: one a core)."""
    import tensorflow as tf

    keras = tf.keras.Model.__module__.partition(".")[0]
    return {"keras": f"{keras} {import_module(keras).__version__}", "cpus": len(tf.config.list_physical_devices("CPU")),
            "gpus": [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
                     for gpu in tf.config.list_physical_devices("GPU")],
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads()}


if __name__ == "__main__":
    main()
