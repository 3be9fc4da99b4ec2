"""Serve devices of this machine to commands with --cluster, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
from typing import Any

from doppler_tf.cli.options import positive

FUNCTION = "doppler_tf.api.serving.serve"
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


def render(result: dict[str, Any]) -> list:
    """A line of facts."""
    from doppler_tf.report.tables import facts

    return [facts("", {"served": f"{result['devices']} CPU devices at {result['host']}:{result['port']}",
                       "for": f"{result['seconds']:.1f} s"})]
