"""Which name server is asked, and what is said when none answers."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route_table import RouteTable
from halfmoon.errors import NetworkError, NoRoute
from halfmoon.runtime.connections.sockets import connect_failed
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.client.scripted import Scripted


def test_dead_name_servers_are_named_each_with_the_reason_and_not_taken_for_a_missing_route():
    script = Scripted()
    script.on(GetRouteinfoByTopic, lambda seen: connect_failed(seen.address, ConnectionRefusedError(111, "Connect call failed")))
    table = RouteTable(NameServers(["a:1", "b:2"], Random(1)), Random(1))

    with pytest.raises(NoRoute) as caught:
        script.run(table.publish_info("t"))

    text = str(caught.value)
    assert "connect to a:1 failed: Connection refused" in text
    assert "connect to b:2 failed: Connection refused" in text
    assert "No route info" not in text
    assert isinstance(caught.value.reason, NetworkError)
