"""This process's TCP sockets: which address its servers hear, whether another server answers, and connections cut off.

TensorFlow's servers listen on every address of the machine, whatever they are told. A filter on the listening socket drops what is sent to
another address than the one meant; the kernel hands it on to each connection made from then on. Those made before are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import select
import socket
import struct
import time
from collections.abc import Iterator

# Of Linux: socket options, and where a filter finds a packet's protocol and its network header.
_SO_ATTACH_FILTER, _SO_LOCK_FILTER = 26, 44
_PROTOCOL, _NETWORK = 0xFFFFF000, 0xFFF00000
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
# By length of an address: the protocol, and where its header holds the destination.
_HEADER = {4: (0x0800, 16), 16: (0x86DD, 24)}
# Between taking a connection from the kernel's queue and having a descriptor for it, a thread needs microseconds.
_DESCRIPTOR_S = 0.02
# What a client of HTTP/2 says first: the preface, and settings without entries. The server answers with settings of its own.
_HELLO, _SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), 4


def own_address(host: str) -> str:
    """The IP address of this machine that `host` names. Raises OSError: it names none."""
    # IPv4 first: what `localhost` means to most programs.
    family, *_, place = min(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
    with socket.socket(family, socket.SOCK_STREAM) as trying:
        trying.bind(place)
    return place[0]


def hear_only(address: str, port: int) -> None:
    """Makes what listens on `port` in this process deaf to what is sent to another address of this machine.

    Connections to others that exist already end, and so do all that the server has not accepted yet.

    Args:
      address: an IP address.

    Raises:
      OSError: nothing was found that listens there, so that nothing is known to be deaf; or the kernel refuses.
    """
    meant = ipaddress.ip_address(address)
    program = _filter(meant.packed)
    buffer, found = ctypes.create_string_buffer(program), False
    for own in _own_sockets():
        if own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and own.getsockname()[1] == port:
            own.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", len(program) // 8, ctypes.addressof(buffer)))
            own.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
            found = True
            waiting = select.poll()
            waiting.register(own, select.POLLIN)
            while waiting.poll(0):
                with contextlib.suppress(OSError):  # the server was faster
                    own.accept()[0].close()
    if not found:
        raise OSError(f"nothing of this process listens on port {port}")
    time.sleep(_DESCRIPTOR_S)
    for own in _own_sockets():
        with contextlib.suppress(OSError):  # not connected
            here = own.getsockname()
            if here[1] == port and own.getpeername() and ipaddress.ip_address(here[0].removeprefix("::ffff:")) != meant:
                own.shutdown(socket.SHUT_RDWR)


def cut(host: str, port: int) -> None:
    """Ends this process's connections to a server; calls in progress fail at once. Does nothing where there are none."""
    with contextlib.suppress(OSError):
        addresses = {info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        for own in _own_sockets():
            with contextlib.suppress(OSError):  # not connected
                peer = own.getpeername()
                if peer[1] == port and peer[0].removeprefix("::ffff:") in addresses:
                    own.shutdown(socket.SHUT_RDWR)


def answers(host: str, port: int, timeout_s: float) -> bool:
    """Whether a gRPC server answers there; a stopped process accepts connections, and does not."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout_s) as asking:
        asking.settimeout(timeout_s)
        asking.sendall(_HELLO)
        frame = asking.recv(9)
        return len(frame) > 3 and frame[3] == _SETTINGS
    return False


def _own_sockets() -> Iterator[socket.socket]:
    """The TCP sockets of this process, each as a copy that is closed afterwards."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as own:
                if own.family in (socket.AF_INET, socket.AF_INET6) and own.type == socket.SOCK_STREAM:
                    yield own


def _filter(address: bytes) -> bytes:
    """A program of the kernel's packet filter that passes what is sent to `address` and drops the rest."""
    protocol, at = _HEADER[len(address)]
    tests = [(_PROTOCOL, protocol), *((_NETWORK + at + 4 * i, word) for i, (word,) in enumerate(struct.iter_unpack(">I", address)))]
    program = b""
    for i, (place, value) in enumerate(tests):
        after = 2 * (len(tests) - 1 - i) + 1  # to the last instruction, which drops
        program += struct.pack("HBBI", _LOAD_WORD, 0, 0, place) + struct.pack("HBBI", _JUMP_IF_EQUAL, 0, after, value)
    return program + struct.pack("HBBI", _RETURN, 0, 0, 0xFFFFFFFF) + struct.pack("HBBI", _RETURN, 0, 0, 0)
