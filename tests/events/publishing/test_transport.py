"""Every transport has the calls of the protocol, with the same arguments: the client's, the bus's and the one of these tests."""

from __future__ import annotations

import inspect

import pytest

from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.events.publishing.transport import Transport
from halfmoon.events.testing import MemoryTransport
from tests.events.fakes import FakeTransport

CALLS = [name for name in vars(Transport) if not name.startswith("_")]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [ClientTransport, MemoryTransport, FakeTransport])
def test_a_transport_takes_the_arguments_of_the_protocol(kind: type, name: str) -> None:
    declared, made = getattr(Transport, name), getattr(kind, name)
    assert inspect.iscoroutinefunction(made) == inspect.iscoroutinefunction(declared)
    taken = [
        [(one.name, one.kind, one.default) for one in inspect.signature(call).parameters.values()] for call in (made, declared)
    ]
    assert taken[0] == taken[1]
