"""Request-reply of Apache's Java clients: over our broker, between versions, and to an asker that is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from halfmoon import Admin, ConsumeFrom, Message, Producer, PushConsumer, StoredMessage
from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaError, JavaPeer
from tests.interop.ours import Serve

TIMEOUT_MS = 20_000
_NUMBERS = count()


class Conversation:
    """An asker and a replier, each a Java client of its version."""

    def __init__(self, asker: JavaPeer, replier: JavaPeer, server: Serve | Cluster, name: str) -> None:
        self.asker, self.replier = asker, replier
        name = f"{name}-{next(_NUMBERS)}"  # a second try meets what the first left in the same Java processes
        self.order: dict[str, Any] = {"nameserver": server.nameserver, "topic": f"Requests-{name}"}
        with Admin(nameserver=server.nameserver) as admin:  # a consumer looks for a topic that is not there twice a minute
            admin.create_topic(self.order["topic"], queue_count=2)
        self.asker.call("producer", group=f"A-{name}", **self.order)
        self.replier.call("producer", group=f"R-{name}", **self.order)
        self.name = name

    def request(self, body: str, *, verb: str = "request", timeout_ms: int = TIMEOUT_MS) -> str:
        """Ask, and return the reply."""
        return str(self.asker.call(verb, group=f"A-{self.name}", body=body, timeout_ms=timeout_ms, **self.order))

    def start_replier(self) -> None:
        """Have somebody reply to every request."""
        self.replier.call("replier", group=f"R-{self.name}", name=f"C-{self.name}", **self.order)

    def stop_replier(self, count: int) -> list[dict[str, object]]:
        """Return what ``count`` replies came to, for who replied."""
        found: list[dict[str, object]] = self.replier.call("replier.stop", count=count)
        return found

    def stop(self) -> None:
        """Stop both producers."""
        self.asker.call("producer.stop", group=f"A-{self.name}")
        self.replier.call("producer.stop", group=f"R-{self.name}")


@pytest.fixture(params=["4.7.1 4.7.1", "4.9.7 4.9.7", "5.3.3 5.3.3", "4.7.1 5.3.3", "5.3.3 4.9.7"])
def conversation(
    request: pytest.FixtureRequest, java: Callable[..., JavaPeer], target: Serve | Cluster
) -> Iterator[Conversation]:  # fmt: skip
    """Asker and replier of these versions."""
    asker, replier = request.param.split()
    talk = Conversation(java(asker), java(replier), target, f"{asker}-{replier}".replace(".", "_"))
    yield talk
    talk.stop()


def test_a_request_gets_its_reply_in_both_ways_of_asking(conversation: Conversation) -> None:
    # A blocking request of 5.3.3 gives up at once, whatever the broker (Apache's as well).
    ways = ["request.async"] if conversation.asker.version == "5.3.3" else ["request", "request.async"]
    conversation.start_replier()
    for way in ways:
        assert conversation.request(f"asked by {way}", verb=way) == f"ASKED BY {way.upper()}"
    sent = conversation.stop_replier(len(ways))
    assert [(reply["status"], reply["topic"]) for reply in sent] == [("SEND_OK", "DefaultCluster_REPLY_TOPIC")] * len(ways)


def test_a_request_that_nobody_replies_to_times_out(java: Callable[..., JavaPeer], target: Serve | Cluster) -> None:
    talk = Conversation(java("4.9.7"), java("4.9.7"), target, "nobody")
    with pytest.raises(JavaError, match=r"send request message to .* OK, but wait reply message timeout"):
        talk.request("anybody?", timeout_ms=1000)
    talk.stop()


VERSIONS = ["4.7.1", "4.9.7", "5.3.3"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_java_consumer_replies_to_our_producer(version: str, java: Callable[..., JavaPeer], target: Serve | Cluster) -> None:
    talk = Conversation(java(version), java(version), target, f"ours-{version}".replace(".", "_"))
    talk.start_replier()
    with Producer(group="P-ours", nameserver=target.nameserver) as producer:
        reply = producer.request(Message(talk.order["topic"], b"from python"), timeout_ms=TIMEOUT_MS)
    assert reply.body == b"FROM PYTHON"
    [sent] = talk.stop_replier(1)
    assert sent["status"] == "SEND_OK"
    talk.stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_our_consumer_replies_to_a_java_producer(version: str, java: Callable[..., JavaPeer], target: Serve | Cluster) -> None:
    talk = Conversation(java(version), java(version), target, f"theirs-{version}".replace(".", "_"))
    consumer = PushConsumer(group="C-ours", nameserver=target.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(talk.order["topic"])
    with Producer(group="R-ours", nameserver=target.nameserver) as producer:

        @consumer.on_message
        def listen(messages: list[StoredMessage]) -> None:
            for message in messages:
                producer.reply(message, message.body.upper())

        with consumer:
            assert talk.request("from java", verb="request.async") == "FROM JAVA"
    talk.stop()
