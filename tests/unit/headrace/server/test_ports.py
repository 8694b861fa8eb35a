"""A free port is nobody else's for a while."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import pytest

from headrace.errors import ConfigError
from headrace.server.ports import close_all, free_port, holder, http_url, is_free, listen


def test_a_free_port_is_kept_from_who_wants_any_and_not_from_a_server_that_asks_for_it() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        # The kernel passes over what cannot be had so, when it chooses one.
        other.bind(("127.0.0.1", port))
    assert is_free("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)) as server:
        assert not is_free("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port), 30) as client:
            ours, _ = server.accept()
            with ours:
                client.sendall(b"x")
                assert ours.recv(1) == b"x"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 30)


def test_the_process_that_listens_is_named_if_psutil_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    assert holder(port) == ""
    with socket.create_server(("127.0.0.1", port)):
        assert holder(port).startswith(f"pid {os.getpid()} (")
        monkeypatch.setitem(sys.modules, "psutil", None)
        assert holder(port) == ""
        with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is already in use$"):
            listen("x", "127.0.0.1", port, change="another")


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::", "[::]", "::1", "[::1]"])
def test_addresses_of_ipv6_are_listened_on_with_or_without_brackets(host: str) -> None:
    port = free_port()
    listeners = listen("x", host, port, change="another")
    try:
        answering = []
        for address in ("127.0.0.1", "::1"):
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection((address, port), 30).close()
                answering.append(address)
        assert answering == (["::1"] if "1" in host else ["127.0.0.1", "::1"])
        assert http_url(host, port) == f"http://[::1]:{port}"
        assert not is_free(host, port)
    finally:
        close_all(listeners)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_port_of_ipv4_is_taken_for_both() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ConfigError, match="in use"):
        listen("x", "::", port, change="another")
