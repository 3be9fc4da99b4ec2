"""`worker`: devices of this machine, served to other programs."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import threading
import time
from typing import Any

from doppler_tf.api.tensorflow import import_quietly, prepare_tensorflow
from doppler_tf.errors import ConfigError, field_error
from doppler_tf.notes import note


def serve(listen: tuple[str, int] = ("127.0.0.1", 2222), devices: int | None = None, trust_network: bool = False) -> dict[str, Any]:
    """Serves until a signal comes; returns what was served, and for how long.

    Args:
      listen: host and port; port 0 is any that is free.
      devices: logical CPU devices; None: one for each core.
      trust_network: the address may be one that other machines reach: whoever reaches it can run code here.
    """
    (host, port), started = listen, time.perf_counter()
    ip = _ip_address(host)
    if not (trust_network or ipaddress.ip_address(ip).is_loopback):
        raise field_error(ConfigError, "worker", "", "--listen", "a loopback address, such as 127.0.0.1", host,
                          "whoever reaches another address can run code here: tunnel with ssh, or add --trust-network if you trust all of "
                          "them")
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    prepare_tensorflow()
    server, cpus = import_quietly("runtime.clusters.server"), import_quietly("runtime.devices")
    os.environ.update(server.CHANNELS)  # workers speak to each other
    devices = devices or cpus.count_cores()
    port, kept = server.serve(ip, port, devices)
    note(f"worker: {devices} CPU devices at {host}:{port}; Ctrl-C ends it")
    over.wait()
    del kept
    return {"host": host, "port": port, "devices": devices, "seconds": time.perf_counter() - started}


def _ip_address(host: str) -> str:
    try:
        # IPv4 first: what `localhost` means to most programs.
        return min(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))[4][0]
    except OSError as error:
        raise field_error(ConfigError, "worker", "", "--listen", "an address of this machine", host, error.strerror) from None
