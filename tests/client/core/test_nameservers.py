"""Which name server is asked, and what is said when none answers."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route_table import RouteTable
from halfmoon.errors import ACCESS_REFUSED, AccessRefused, NetworkError, NoNameServerAnswers, NoRoute
from halfmoon.runtime.connections.sockets import connect_failed
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.route import DeleteTopicInNamesrv, GetRouteinfoByTopic
from tests.client.scripted import Reply, Scripted


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


NOT_SUPPORTED, NO_ACCOUNT = Reply(3), Reply(1, remark=f"{ACCESS_REFUSED}No accessKey is configured, org.apache.X.java:1")


@pytest.mark.parametrize("answer", [NOT_SUPPORTED, NO_ACCOUNT], ids=["does not know the request", "requires an account"])
def test_a_broker_that_was_given_as_a_name_server_is_named(answer):
    script = Scripted()
    script.on(GetRouteinfoByTopic, answer)
    script.on(GetBrokerRuntimeInfo, Reply(body=b'{"table":{}}'))

    with pytest.raises(
        NoNameServerAnswers, match=r"^no name server answers: a:1 is a broker, not a name server; check the address "
    ):
        script.run(NameServers(["a:1"], Random(1)).ask(GetRouteinfoByTopic(topic="t")))


def test_a_name_server_that_does_not_know_a_request_is_no_broker():
    script = Scripted()
    script.on(GetRouteinfoByTopic, NOT_SUPPORTED)
    script.on(GetBrokerRuntimeInfo, NOT_SUPPORTED)

    assert script.run(NameServers(["a:1"], Random(1)).call(GetRouteinfoByTopic(topic="t"))).code == 3


def test_the_next_name_server_is_asked_where_the_first_is_a_broker():
    script = Scripted()
    script.on(GetRouteinfoByTopic, lambda seen: NOT_SUPPORTED if seen.address == "a:1" else Reply())
    script.on(GetBrokerRuntimeInfo, Reply(body=b'{"table":{}}'))

    for seed in range(4):
        assert script.run(NameServers(["a:1", "b:2"], Random(seed)).ask(GetRouteinfoByTopic(topic="t"))).code == 0


def test_a_name_server_that_does_not_allow_a_change_is_no_broker():
    script = Scripted()
    script.on(DeleteTopicInNamesrv, Reply(1, remark=f"{ACCESS_REFUSED}DELETE_TOPIC_IN_NAMESRV needs the right to register"))
    script.on(GetBrokerRuntimeInfo, NOT_SUPPORTED)

    with pytest.raises(AccessRefused, match="needs the right to register"):
        script.run(NameServers(["a:1"], Random(1)).ask(DeleteTopicInNamesrv(topic="t")))


def test_a_broker_that_wants_an_account_for_everything_is_named():
    script = Scripted()
    script.on(GetRouteinfoByTopic, NO_ACCOUNT)
    script.on(GetBrokerRuntimeInfo, NO_ACCOUNT)

    with pytest.raises(NoNameServerAnswers, match="a:1 is a broker"):
        script.run(NameServers(["a:1"], Random(1)).ask(GetRouteinfoByTopic(topic="t")))
