"""Serve devices of this machine to commands with --cluster, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import ipaddress
import os
import signal
import socket
import threading
import time
from typing import Any

from doppler_tf.cli.options import positive
from doppler_tf.errors import ConfigError, field_error

EXAMPLE = "python -m doppler_tf worker --listen 127.0.0.1:2222 --devices 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Args: parser: of this command."""
    parser.add_argument("--listen", type=address, default="127.0.0.1:2222", metavar="HOST:PORT",
                        help="address to listen on; port 0 is any that is free (default: 127.0.0.1:2222, for programs on this machine and "
                             "tunnels that end here)")
    parser.add_argument("--devices", type=positive, metavar="N", help="logical CPU devices to serve (default: one for each core)")
    parser.add_argument("--trust-network", action="store_true",
                        help="listen on an address that other machines reach: whoever reaches it can run code here, as nobody is asked "
                             "for a password")


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, an IPv6 address in brackets."""
    from doppler_tf.formats.cluster_json import parse_address

    try:
        return parse_address(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT with a port below 65536, got {text!r}") from None


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Serves until a signal comes; returns what was served, and for how long."""
    from doppler_tf.cli.messages import note
    from doppler_tf.cli.tensorflow import import_quietly, prepare_tensorflow

    (host, port), started = args.listen, time.perf_counter()
    ip = _ip_address(host)
    if not (args.trust_network or ipaddress.ip_address(ip).is_loopback):
        raise field_error(ConfigError, "worker", "", "--listen", "a loopback address, such as 127.0.0.1", host,
                          "whoever reaches another address can run code here: tunnel with ssh, or add --trust-network if you trust all of "
                          "them")
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    prepare_tensorflow()
    server, local = import_quietly("runtime.server"), import_quietly("runtime.local")
    os.environ.update(server.CHANNELS)  # workers speak to each other
    devices = args.devices or local.count_cores()
    port, kept = server.serve(ip, port, devices)
    note(f"worker: {devices} CPU devices at {host}:{port}; Ctrl-C ends it")
    over.wait()
    del kept
    return {"host": host, "port": port, "devices": devices, "seconds": time.perf_counter() - started}


def render(result: dict[str, Any]) -> list:
    """A line of facts."""
    from doppler_tf.report.tables import facts

    return [facts("", {"served": f"{result['devices']} CPU devices at {result['host']}:{result['port']}",
                       "for": f"{result['seconds']:.1f} s"})]


def _ip_address(host: str) -> str:
    try:
        # IPv4 first: what `localhost` means to most programs.
        return min(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))[4][0]
    except OSError as error:
        raise field_error(ConfigError, "worker", "", "--listen", "an address of this machine", host, error.strerror) from None
