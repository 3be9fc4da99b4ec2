"""TensorFlow's logical devices: one for each device of a topology, on GPUs or on the CPU."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import weakref

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from doppler_tf.errors import ConfigError
from doppler_tf.graph.topology import Topology

# The name of a device that another process serves.
_SERVER = re.compile(r"/job:(?!localhost/|chief/)[^/]+/replica:\d+/task:\d+")

# TensorFlow then gives each CPU device threads of its own for operations. It reads this when it makes its first device.
os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
# Beside the process's own devices there are at least so many logical CPUs, and one for a host, so that a later call may ask for more than
# the first.
_AT_LEAST = 16


def count_local_devices() -> int:
    """The number of GPUs; without GPUs, the number of cores that this process may use."""
    return len(tf.config.list_physical_devices("GPU")) or count_cores()


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def prepare_devices(count: int, gpu_memory_mb: int = 4096, exact: bool = False, beside: bool = True) -> list[str]:
    """Names of `count` TensorFlow devices, configured if need be; call it before the first TensorFlow operation of the process.

    GPUs where there are any: one each, or several logical ones on each where they are fewer than `count`. Otherwise logical devices
    of the CPU. Those share the machine's cores, so an operation on one of them has cores / count threads (at least 1): a logical device
    then stands for its share of the cores, and a kernel beside others takes about as long as alone.

    What the process does otherwise keeps all cores and TensorFlow's numerics. The devices that our runs use are made beside those of the
    process, with the same names. Where TensorFlow has been initialised before this package was imported, they share its threads, and an
    operation takes as many as it finds.

    Args:
      gpu_memory_mb: memory of each logical GPU, where a GPU is shared.
      exact: on GPUs, TensorFloat-32 is switched off for the process; its products are off by some 1e-3.
      beside: False: the process's own devices are used, and their operations are limited to cores / count threads, as those of a
        cluster have to be.

    Raises:
      ConfigError: TensorFlow has been initialised with fewer devices; they cannot be changed any more.
    """
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if exact and kind == "GPU":
        tf.config.experimental.enable_tensor_float_32_execution(False)
    with contextlib.suppress(RuntimeError):  # already initialised: the present devices may suffice
        _configure(kind, count, gpu_memory_mb, limited=not beside)
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    if kind == "CPU" and beside:
        names = _beside(count)
    if len(names) < count:
        raise ConfigError(f"devices: expected {count} TensorFlow {kind} devices, got {len(names)}, and TensorFlow is initialised; call "
                          f"runtime.prepare_devices({count}) before the first TensorFlow operation of the process")
    return names[:count]


def prepare_topology(topology: Topology) -> list[str]:
    """As `prepare_devices`, a name for each device of a topology. Its host is the CPU where devices are GPUs, else one more logical CPU.

    A host computes nothing, so that it takes no share of the cores.
    """
    host = topology.host_device is not None
    names = prepare_devices(topology.num_devices - host)
    if not host:
        return names
    return [*names, tf.config.list_logical_devices("CPU")[0].name if "GPU" in names[0] else prepare_devices(topology.num_devices)[-1]]


def host_of(device: str) -> str:
    """The CPU of the machine that a TensorFlow device belongs to."""
    return f"{device.rpartition('/device:')[0]}/device:CPU:0"


_BESIDE: dict[str, object] = {}  # TensorFlow's context by device name, all the same
_ONE_CORE: set[str] = set()  # of those the devices that are a core each


def _beside(count: int) -> list[str]:
    """Names of logical CPUs in a context of their own, made by the first call."""
    if not _BESIDE:
        devices, cores = max(count + 1, _AT_LEAST), len(os.sched_getaffinity(0))
        share = max(1, cores // count)
        config = config_pb2.ConfigProto(intra_op_parallelism_threads=share, device_count={"CPU": devices, "GPU": 0})
        options = pywrap_tfe.TFE_NewContextOptions()
        try:
            pywrap_tfe.TFE_ContextOptionsSetConfig(options, config.SerializeToString())
            pywrap_tfe.TFE_ContextOptionsSetDevicePlacementPolicy(options, context.DEVICE_PLACEMENT_SILENT)
            # As a function of its own an operation starts in 30 us, not 12. And TensorFlow 2.21 may then exchange the operands of two that
            # start together on one device (its issue 62523).
            pywrap_tfe.TFE_ContextOptionsSetRunEagerOpAsFunction(options, False)
            made = pywrap_tfe.TFE_NewContext(options)
        finally:
            pywrap_tfe.TFE_DeleteContextOptions(options)
        _BESIDE.update({f"/device:CPU:{d}": made for d in range(devices)})
        _ONE_CORE.update(_BESIDE if share == 1 else ())
    return list(_BESIDE)


def context_of(device: str):
    """The context of TensorFlow that has a device."""
    found = _BESIDE.get(device)
    if found is None:
        context.ensure_initialized()
        return context.context()._handle
    return found


def with_all_cores(device: str) -> str:
    """A name for a device under which its operations have all cores that the process may use: that of the process's own CPU, where it is
    one beside it."""
    return "/job:localhost/replica:0/task:0/device:CPU:0" if device in _BESIDE else device


def is_core(device: str) -> bool:
    """Whether a device is one core of this machine. The operations of a call on it run on other cores, too, while these idle."""
    return device in _ONE_CORE


_TOLD = weakref.WeakSet()  # functions of which that context knows


def make_known(function, device: str) -> None:
    """Tells the context of a device of a concrete function, and of those that it calls, for as long as the function lives."""
    if device not in _BESIDE or function in _TOLD:
        return
    made, definitions = context_of(device), [*function.graph.as_graph_def().library.function, function.function_def]
    for definition in definitions:  # TensorFlow counts how often it is told of one
        content = definition.SerializeToString()
        pywrap_tfe.TFE_ContextAddFunctionDef(made, content, len(content))
    _TOLD.add(function)
    weakref.finalize(function, _forget, made, [definition.signature.name for definition in definitions]).atexit = False


def _forget(made, names: list[str]) -> None:
    for name in names:
        pywrap_tfe.TFE_ContextRemoveFunction(made, name)


@functools.cache  # each vertex and transfer of a run asks
def server_of(device: str) -> str | None:
    """The part of a TensorFlow device's name that names the process which serves it; None: this one."""
    found = _SERVER.match(device)
    return found and found[0]


def _configure(kind: str, count: int, gpu_memory_mb: int, limited: bool) -> None:
    """Splits physical devices evenly into `count` logical ones. Raises RuntimeError once TensorFlow is initialised."""
    physical = tf.config.list_physical_devices(kind)
    if len(physical) >= count:
        return
    for i, device in enumerate(physical):
        share = count // len(physical) + (i < count % len(physical))
        if len(tf.config.get_logical_device_configuration(device) or ()) < share:
            memory = gpu_memory_mb if kind == "GPU" else None
            tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration(memory_limit=memory)] * share)
    if kind == "CPU" and limited and not tf.config.threading.get_intra_op_parallelism_threads():
        tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // count))
