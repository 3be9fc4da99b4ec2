"""TensorFlow's logical devices: one for each device of a topology, on GPUs or on the CPU."""

from __future__ import annotations

import contextlib
import functools
import os
import re

import tensorflow as tf

from doppler_tf.errors import ConfigError

# The name of a device that another process serves.
_SERVER = re.compile(r"/job:(?!localhost/|chief/)[^/]+/replica:\d+/task:\d+")


def prepare_devices(count: int, gpu_memory_mb: int = 4096) -> list[str]:
    """Names of `count` TensorFlow devices, configured if need be; call it before the first TensorFlow operation of the process.

    GPUs where there are any: one each, or several logical ones on each where they are fewer than `count`. Otherwise logical devices
    of the CPU. Those share the machine's cores and one thread pool, so TensorFlow's intra-op threads are limited to cores / count
    (at least 1) unless the caller has set them: a logical device then stands for its share of the cores, and a kernel beside others
    takes about as long as alone, as long as there is a core for each. This holds for all of the process. On GPUs, TensorFloat-32
    is switched off: its products are off by some 1e-3.

    Args:
      gpu_memory_mb: memory of each logical GPU, where a GPU is shared.

    Raises:
      ConfigError: TensorFlow has been initialised with fewer devices; they cannot be changed any more.
    """
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "GPU":
        tf.config.experimental.enable_tensor_float_32_execution(False)
    with contextlib.suppress(RuntimeError):  # already initialised: the present devices may suffice
        _configure(kind, count, gpu_memory_mb)
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if len(names) < count:
        raise ConfigError(f"devices: expected {count} TensorFlow {kind} devices, got {len(names)}, and TensorFlow is initialised; call "
                          f"runtime.prepare_devices({count}) before the first TensorFlow operation of the process")
    return names[:count]


@functools.cache  # each vertex and transfer of a run asks
def server_of(device: str) -> str | None:
    """The part of a TensorFlow device's name that names the process which serves it; None: this one."""
    found = _SERVER.match(device)
    return found and found[0]


def _configure(kind: str, count: int, gpu_memory_mb: int) -> None:
    """Splits physical devices evenly into `count` logical ones. Raises RuntimeError once TensorFlow is initialised."""
    physical = tf.config.list_physical_devices(kind)
    if len(physical) >= count:
        return
    for i, device in enumerate(physical):
        share = count // len(physical) + (i < count % len(physical))
        if len(tf.config.get_logical_device_configuration(device) or ()) < share:
            memory = gpu_memory_mb if kind == "GPU" else None
            tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration(memory_limit=memory)] * share)
    if kind == "CPU" and not tf.config.threading.get_intra_op_parallelism_threads():
        tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // count))
