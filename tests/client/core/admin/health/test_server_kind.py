"""Name servers and brokers are told apart by what they do not know, also where they refuse it to us."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.health.server_kind import server_kind
from halfmoon.errors import ConnectFailed
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import REFUSED, Reply, Scripted


@pytest.mark.parametrize(
    ("of_broker", "of_name_server", "kind"),
    [(0, 3, "broker"), (1, 3, "broker"), (16, 3, "broker"), (3, 0, "name server"), (3, 1, "name server"), (3, 3, None)],
)
def test_the_request_that_a_server_knows_says_what_it_is(of_broker, of_name_server, kind):
    script = Scripted()
    core = admin(script)
    script.on(GetBrokerRuntimeInfo, Reply(of_broker))
    script.on(GetBrokerClusterInfo, Reply(of_name_server))

    assert script.run(server_kind(core, "host:1")) == kind


def test_a_server_that_cannot_be_reached_is_an_error():
    script = Scripted()
    core = admin(script)
    script.on(GetBrokerRuntimeInfo, lambda _: REFUSED)

    with pytest.raises(ConnectFailed):
        script.run(server_kind(core, "host:1"))
