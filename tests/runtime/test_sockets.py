"""What this process hears, whether others answer, and connections cut off: with sockets of this machine."""

import socket

import pytest

from runtime.clusters.sockets import answers, cut, hear_only, own_address


@pytest.fixture
def listening():
    """A socket that listens on every address, IPv4 and IPv6, as TensorFlow's servers do."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        yield server


def reached(address, port):
    try:
        socket.create_connection((address, port), 0.3).close()
    except TimeoutError:
        return False
    return True


def test_a_server_hears_one_address_alone(listening):
    port, every = listening.getsockname()[1], ("127.0.0.1", "127.0.0.2", "::1")
    assert all(reached(address, port) for address in every)
    hear_only("127.0.0.1", port)
    assert [reached(address, port) for address in every] == [True, False, False]


def test_an_address_of_ipv6_too(listening):
    port = listening.getsockname()[1]
    hear_only("::1", port)
    assert [reached(address, port) for address in ("127.0.0.1", "::1")] == [False, True]


def test_other_servers_of_the_process_still_hear(listening):
    with socket.create_server(("127.0.0.2", 0)) as other:
        hear_only("127.0.0.1", listening.getsockname()[1])
        assert reached("127.0.0.2", other.getsockname()[1])


def test_connections_made_before_end_unless_they_are_meant(listening):
    address = listening.getsockname()
    kept, ended = (socket.create_connection((to, address[1])) for to in ("127.0.0.1", "127.0.0.2"))
    accepted = [listening.accept()[0] for _ in range(2)]
    waiting = socket.create_connection(("127.0.0.2", address[1]))
    hear_only("127.0.0.1", address[1])
    for each in (ended, waiting):
        each.settimeout(1.0)
        assert each.recv(1) == b""
    accepted[0].sendall(b"x")
    assert kept.recv(1) == b"x"
    for each in (kept, ended, waiting, *accepted):
        each.close()


def test_where_nothing_listens_nothing_is_called_deaf(listening):
    port = listening.getsockname()[1]
    listening.close()
    with pytest.raises(OSError, match=f"nothing of this process listens on port {port}"):
        hear_only("127.0.0.1", port)


@pytest.mark.parametrize(("host", "address"), [("localhost", "127.0.0.1"), ("127.0.0.2", "127.0.0.2"), ("0.0.0.0", "0.0.0.0")])
def test_addresses_of_this_machine(host, address):
    assert own_address(host) == address


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_addresses_of_others(host):
    with pytest.raises(OSError, match=r"Cannot assign|not known|Temporary failure"):
        own_address(host)


def test_who_accepts_and_says_nothing_does_not_answer(listening):
    assert not answers("127.0.0.1", listening.getsockname()[1], 0.2)


def test_nobody_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert not answers("127.0.0.1", port, 0.2)


def test_connections_to_one_server_are_cut(listening):
    port = listening.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as other:
        kept = socket.create_connection(other.getsockname())
        lost = [socket.create_connection((address, port)) for address in ("127.0.0.1", "::1")]
        for address in ("127.0.0.1", "::1"):
            cut(address, port)
        for each in lost:
            each.settimeout(1.0)
            assert each.recv(1) == b""
            each.close()
        assert kept.send(b"x") == 1
        kept.close()


def test_where_nothing_is_connected_nothing_is_cut():
    cut("127.0.0.1", 1)
