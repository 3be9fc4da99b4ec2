"""The devices of this machine for programs on others: TensorFlow's server, deaf to all addresses but the one it is given."""

from __future__ import annotations

import os

import tensorflow as tf

from doppler_tf.errors import ConfigError
from runtime.clusters.sockets import hear_only, own_address

# What a process that speaks to servers has in its environment beforehand. A machine that is cut off is given up a second after a try to
# connect, not after 20, and three after it last took data, not after as long as it was away. A proxy for web pages is not asked.
CHANNELS = {"TF_GRPC_DEFAULT_OPTIONS": "grpc.min_reconnect_backoff_ms=1000,grpc.max_reconnect_backoff_ms=1000,"
                                       "grpc.keepalive_time_ms=300000,grpc.keepalive_timeout_ms=3000,grpc.enable_http_proxy=0"}
# Each call occupies a thread, also while it waits for a tensor from another worker. With one for each core, two workers that send each
# other tensors wait for ever.
_WAITING = 128


def serve(host: str, port: int, devices: int) -> tuple[int, object]:
    """Serves `devices` logical CPU devices until the process ends.

    As with `prepare_devices`, a kernel on one of them has (cores of this process) / devices threads, at least 1.

    Args:
      host: an IP address of this machine; 0.0.0.0 or `::` for all. port: 0 for any that is free.

    Returns:
      The port, and the server, which lives as long as somebody refers to it.

    Raises:
      ConfigError: nobody can listen there.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // devices)
    config = tf.compat.v1.ConfigProto(device_count={"CPU": devices, "GPU": 0}, intra_op_parallelism_threads=threads,
                                      inter_op_parallelism_threads=_WAITING)
    try:
        own_address(host)  # nobody would reach another
        server = tf.distribute.Server({"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0, config=config, start=False)
        port = int(server.target.rpartition(":")[2])
        if host not in ("0.0.0.0", "::"):
            hear_only(host, port)
    except (tf.errors.OpError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"worker: {host}:{port}: expected an address and a free port of this machine, got {reason}; choose "
                          f"others") from None
    server.start()
    return port, server
