"""Names of hosts: a resolver that fails or hangs neither holds up a call, nor takes away addresses that were known."""

from __future__ import annotations

import socket
import threading

import pytest

from halfmoon.errors import LeaseUnavailable
from halfmoon.runtime.leases.addresses import ADDRESSES_MAX, Resolver
from halfmoon.runtime.leases.deadline import Deadline

SOON = 50
"""Milliseconds of a deadline that is near."""


def far() -> Deadline:
    """Return a deadline that is far away."""
    return Deadline(60_000, "db:1")


class Names:
    """A resolver of the system: answers, fails, or hangs while `answers` is not set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.found: list[str] | OSError = ["10.0.0.1", "10.0.0.2"]
        self.asked = 0

    def __call__(self, host: str) -> list[str]:
        self.asked += 1
        self.answers.wait(60)
        if isinstance(self.found, OSError):
            raise self.found
        return self.found


def test_an_address_needs_no_resolver() -> None:
    names = Names()
    assert Resolver(names).addresses("10.0.0.9", far()) == ["10.0.0.9"]
    assert Resolver(names).addresses("::1", far()) == ["::1"]
    assert names.asked == 0


def test_a_name_is_asked_for_each_time_and_moves() -> None:
    names = Names()
    resolver = Resolver(names)
    assert resolver.addresses("db", far()) == ["10.0.0.1", "10.0.0.2"]
    names.found = [f"10.0.1.{number}" for number in range(20)]
    assert resolver.addresses("db", far()) == names.found[:ADDRESSES_MAX]


def test_known_addresses_serve_while_the_resolver_fails_or_hangs() -> None:
    names = Names()
    resolver = Resolver(names)
    resolver.addresses("db", far())
    names.found = socket.gaierror(-3, "Temporary failure in name resolution")
    assert resolver.addresses("db", far()) == ["10.0.0.1", "10.0.0.2"]
    names.answers.clear()
    for _ in range(3):
        assert resolver.addresses("db", Deadline(SOON, "db:1")) == ["10.0.0.1", "10.0.0.2"]
    assert names.asked == 3  # one of them still waits, and no more
    names.answers.set()


def test_a_name_that_was_never_found_is_an_error_with_its_reason() -> None:
    names = Names()
    resolver = Resolver(names)
    names.answers.clear()
    with pytest.raises(LeaseUnavailable, match="db:1: the name db is not found: the resolver does not answer"):
        resolver.addresses("db", Deadline(SOON, "db:1"))
    names.found = socket.gaierror(-2, "Name or service not known")
    names.answers.set()
    with pytest.raises(LeaseUnavailable, match="db:1: the name db is not found: Name or service not known"):
        resolver.addresses("db", far())
    names.found = ["10.0.0.3"]
    assert resolver.addresses("db", far()) == ["10.0.0.3"]


def test_the_systems_resolver_knows_this_machine() -> None:
    assert set(Resolver().addresses("localhost", far())) <= {"127.0.0.1", "::1"}
