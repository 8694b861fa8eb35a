"""A free port is nobody else's for a while."""

from __future__ import annotations

import socket

import pytest

from headrace.server.ports import free_port, is_free


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
