"""Addresses as text, and sockets bound to them."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from halfmoon.runtime.server.addresses import address_text, bound_socket


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (("10.0.0.1", 5), "10.0.0.1:5"),
        (("::1", 5, 0, 0), "[::1]:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1:5"),
        ("", "unknown:0"),
    ],
)
def test_addresses_are_written_as_host_and_port(name: Any, text: str) -> None:
    assert address_text(name) == text


def test_the_first_address_that_can_be_bound_is_taken_and_ipv4_goes_before_ipv6() -> None:
    found = socket.getaddrinfo("127.0.0.1", 0, type=socket.SOCK_STREAM)
    with bound_socket([(socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", 0, 0, 0)), *found]) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert sock.getsockname()[1] != 0


def test_nobody_else_gets_a_port_that_the_system_chose_before_it_is_listened_on() -> None:
    def address(port: int) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    with bound_socket(address(0)) as sock, pytest.raises(OSError):
        bound_socket(address(sock.getsockname()[1]))


def test_an_address_of_another_machine_cannot_be_bound() -> None:
    with pytest.raises(OSError):
        bound_socket([(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", 0))])
    with pytest.raises(OSError, match="no address"):
        bound_socket([])
