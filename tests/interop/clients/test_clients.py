"""What clients that nobody here wrote do with our name server and broker: one test a behaviour, with each client that has it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PullConsumer
from halfmoon.errors import BrokerError
from halfmoon.model import ConsumeFrom, Message, StoredMessage
from tests.authority import Authority
from tests.interop.apache import Cluster
from tests.interop.clients.peers import PEERS
from tests.interop.clients.table import able
from tests.interop.ours import Serve
from tests.interop.peer import Peer, PeerError
from tests.waiting import until

SETTINGS = {
    "messageDelayLevel": "1s 1s 1s 1s 1s", "transactionTimeOut": 300, "transactionCheckInterval": 500,
}  # fmt: skip
"""Times that a test can wait for."""
RULES = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  admin: false
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
- accessKey: operator
  secretKey: 87654321
  admin: true
"""
SIGNED = {"access_key": "RocketMQ", "secret_key": "12345678"}
_NUMBERS = count(1)


class Client:
    """A client's program and a server, with a topic and a group of this test's own."""

    def __init__(self, name: str, peer: Peer, server: Serve | Cluster, **admin: Any) -> None:
        number = next(_NUMBERS)
        self.name, self.peer, self.server = name, peer, server
        self.topic, self.group = f"Clients{number}", f"clients-{number}"
        with self.admin(**admin) as made:
            made.create_topic(self.topic, queue_count=4)

    def admin(self, **settings: Any) -> Admin:
        """Our own administration client at the server."""
        return Admin(nameserver=self.server.nameserver, **settings)

    def call(self, verb: str, **order: Any) -> Any:
        """Give an order, with this test's topic and group unless it names others."""
        return self.peer.call(verb, **{"topic": self.topic, "group": self.group, "nameserver": self.server.nameserver, **order})

    def received(self, message_count: int, *, name: str = "", within_ms: int = 50_000) -> list[dict[str, Any]]:
        """Wait until this test's consumer got so many messages, and return all that it got."""
        return list(self.call("push.wait", name=name or self.group, count=message_count, timeout_ms=within_ms))

    def push(self, **order: Any) -> None:
        """Start this test's consumer."""
        self.call("push", **{"name": self.group, **order})


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Peer]]:
    """Return ``peers(name)``: a new process of a client, ended with the module."""
    started: list[Peer] = []

    def start(name: str) -> Peer:
        started.append(PEERS[name](tmp_path_factory.mktemp(name)))
        return started[-1]

    yield start
    for peer in started:
        peer.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve | Cluster]:
    """The server of all tests that need none of their own."""
    home, version = tmp_path_factory.mktemp("clients"), os.environ.get("INTEROP_TARGET")
    apache = {**SETTINGS, "traceTopicEnable": "true"}
    found = Cluster(version, home, settings=apache) if version else Serve(home / "data", settings=SETTINGS)
    found.start()
    yield found
    found.kill()


@pytest.fixture(scope="module")
def shared(peers: Callable[[str], Peer], server: Serve | Cluster) -> Callable[[str], Client]:
    """Return ``shared(name)``: a client at the shared server, with one process for all tests."""
    running: dict[str, Peer] = {}

    def client(name: str) -> Client:
        if name not in running:
            running[name] = peers(name)
        return Client(name, running[name], server)

    return client


@pytest.fixture
def client(request: pytest.FixtureRequest, shared: Callable[[str], Client]) -> Client:
    """The client that the test's mark names, at the shared server."""
    return shared(request.param)


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    """The texts of messages, sorted."""
    return sorted(message["body"] for message in messages)


def found(admin: Admin, topic: str, message_id: str) -> StoredMessage | None:
    """The message with an id, or None while it is not in the index."""
    try:
        return admin.message_by_id(topic, message_id)
    except BrokerError:
        return None


def stored_as(admin: Admin, topic: str, sent: dict[str, Any]) -> StoredMessage:
    """The message that a client sent, found by an id that the client returned."""
    if "offset_msg_id" in sent:
        return admin.message_by_offset_id(sent["offset_msg_id"])
    stored: StoredMessage = until(partial(found, admin, topic, sent["msg_id"]), "the message in the index")
    return stored


def events(admin: Admin, message_id: str, topic: str) -> list[str] | None:
    """What clients reported of a message, or None while that is less than three things."""
    found = [event.what for event in admin.trace(message_id, topic).events if event.reported_by == "client"]
    return found if len(found) >= 3 else None


def whole(wanted: set[str], received: list[set[str]]) -> list[set[str]] | None:
    """Each member's share of what is wanted, or None while something is missing."""
    return [each & wanted for each in received] if wanted <= set().union(*received) else None


def known(admin: Admin, group: str, topic: str) -> bool:
    """Whether the broker knows a producer of a group."""
    try:
        return bool(admin.producer_connections(group, topic).connection_set)
    except BrokerError:
        return False


@able("send")
def test_what_it_sends_is_found_by_the_ids_that_it_returns_and_is_consumed(client: Client) -> None:
    client.call("producer")
    sent = client.call("send", body="é {n}", count=5, keys="k-{n} all", properties={"colour": "blau é"})
    client.push()
    received = {message["body"]: message for message in client.received(5)}
    client.call("push.stop", name=client.group)

    with client.admin() as admin:
        assert len(sent) == 5
        for i, result in enumerate(sent):
            assert result.get("status", "SEND_OK") == "SEND_OK"
            ids = {result[name] for name in ("msg_id", "offset_msg_id") if result.get(name)}
            for message_id in ids:
                stored = until(partial(found, admin, client.topic, message_id), f"the message {message_id}")
                assert stored.body.decode() == f"é {i}"
                if "queue_id" in result:
                    assert (stored.queue_id, stored.queue_offset) == (result["queue_id"], result["queue_offset"])
            message = received[f"é {i}"]
            assert message["msg_id"] in ids
            assert (message["keys"], message["properties"]["colour"]) == (f"k-{i} all", "blau é")


@able("batch")
def test_a_batch_that_it_sends_arrives_message_by_message(client: Client) -> None:
    client.call("producer")
    sent = client.call("send.batch", body="b {n}", count=5, tag="a")
    client.push(expression="a")
    received = client.received(5)
    client.call("push.stop", name=client.group)

    assert sent["status"] == "SEND_OK"
    assert bodies(received) == [f"b {i}" for i in range(5)]
    assert {message["queue_id"] for message in received} == {sent["queue_id"]}


@able("exchange")
def test_large_bodies_go_both_ways_between_it_and_our_own_client(client: Client) -> None:
    large = "".join(f"{i} é;" for i in range(4_000))
    ours: dict[str, Any] = {"group": f"{client.group}-ours", "nameserver": client.server.nameserver}
    client.call("producer")
    (sent,) = client.call("send", body=large)
    with PullConsumer(consume_from=ConsumeFrom.FIRST_OFFSET, **ours) as consumer:
        consumer.subscribe(client.topic)
        (got,) = until(lambda: consumer.poll(timeout_ms=1_000), "what the client sent")
    with Producer(**ours) as producer:
        producer.send(Message(client.topic, large.upper().encode()))
    client.push()
    received = client.received(2)
    client.call("push.stop", name=client.group)

    assert got.body.decode() == large
    assert {got.offset_msg_id, got.msg_id} >= {sent[name] for name in ("msg_id", "offset_msg_id") if sent.get(name)}
    assert got.size_bytes < len(large)
    assert bodies(received) == sorted([large, large.upper()])


@able("tag")
def test_a_subscription_to_two_tags_gets_these_two_only(client: Client) -> None:
    client.call("producer")
    client.call("send", body="none")
    for tag in ("b", "AaAa", "BBBB", "a"):  # the hash codes of two of them are the same
        client.call("send", body=tag, tag=tag, count=2)
    client.push(expression="a || AaAa")
    client.received(4)
    time.sleep(0.2)
    received = client.call("push.stop", name=client.group)

    assert bodies(received) == ["AaAa", "AaAa", "a", "a"]


@able("sql92")
def test_a_subscription_by_sql92_gets_what_fits_only(client: Client) -> None:
    client.call("producer")
    for i in range(6):
        client.call("send", body=f"m {i}", tag="a", properties={"weight": str(i), "colour": "red" if i % 2 else "blue"})
    client.call("send", body="no weight", tag="a")
    client.push(sql="weight > 2 AND colour = 'red'")
    client.received(2)
    time.sleep(0.2)
    received = client.call("push.stop", name=client.group)

    assert bodies(received) == ["m 3", "m 5"]


@able("share")
def test_two_members_of_a_group_share_a_topic(client: Client) -> None:
    client.call("producer")
    names = [f"{client.group}-{i}" for i in range(2)]
    for name in names:
        client.push(name=name)
    rounds = count(1)

    def shared_out() -> bool:
        """Send sixteen messages, and say whether each member got some of them, and none came twice."""
        number = next(rounds)
        client.call("send", body=f"{number} {{n}}", count=16)
        wanted = {f"{number} {i}" for i in range(16)}
        shares = until(lambda: whole(wanted, [set(bodies(client.received(0, name=name))) for name in names]), "every message")
        return all(shares) and sum(map(len, shares)) == len(wanted)

    until(shared_out, "both members to get their share")
    for name in names:
        client.call("push.stop", name=name)


@able("broadcast")
def test_each_member_of_a_broadcast_group_gets_everything(client: Client) -> None:
    client.call("producer")
    names = [f"{client.group}-{i}" for i in range(2)]
    for name in names:
        client.push(name=name, broadcast=True)
    rounds = count(1)

    def reached_all() -> bool:
        """Send eight messages, and say whether each member got all of them: some begin with what comes when they are ready."""
        number = next(rounds)
        before = {name: len(client.received(0, name=name)) for name in names}
        client.call("send", body=f"{number} {{n}}", count=8)
        received = [bodies(client.received(before[name] + 8, name=name, within_ms=2_000)[before[name] :]) for name in names]
        return received == [[f"{number} {i}" for i in range(8)]] * 2

    until(reached_all, "both members to get everything")
    for name in names:
        client.call("push.stop", name=name)


@able("order")
def test_messages_of_one_key_are_consumed_in_the_order_in_which_they_were_sent(client: Client) -> None:
    client.call("producer")
    client.push(orderly=True)
    for i in range(20):
        for key in ("red", "blue", "green"):
            client.call("send", body=f"{key} {i}", sharding_key=key)
    received = client.received(60)
    client.call("push.stop", name=client.group)

    for key in ("red", "blue", "green"):
        mine = [message for message in received if message["body"].startswith(key)]
        assert [message["body"] for message in mine] == [f"{key} {i}" for i in range(20)]
        assert len({message.get("queue_id") for message in mine}) == 1


@able("delay")
def test_a_message_with_a_delay_level_comes_when_its_time_is_over(client: Client) -> None:
    client.call("producer")
    client.push()
    client.call("send", body="at once")
    client.received(1)  # from now on it would be seen if the other came too early
    client.call("send", body="later", level=1)
    received = client.received(2)
    client.call("push.stop", name=client.group)

    assert [message["body"] for message in received] == ["at once", "later"]
    assert received[1]["at_ms"] - received[1]["born_ms"] >= 1000


@able("deliver_at")
@pytest.mark.skipif("INTEROP_TARGET" in os.environ, reason="Apache's brokers do not read Aliyun's property")
def test_a_message_for_a_point_in_time_does_not_come_before(client: Client) -> None:
    client.call("producer")
    client.push()
    client.call("send", body="at once")
    client.received(1)
    when_ms = int(time.time() * 1000) + 1500
    client.call("send", body="later", deliver_ms=when_ms)
    received = client.received(2)
    client.call("push.stop", name=client.group)

    assert [message["body"] for message in received] == ["at once", "later"]
    assert received[1]["at_ms"] >= when_ms


@able("transaction")
def test_transactions_are_committed_rolled_back_and_checked(client: Client) -> None:
    client.call("tx.producer", name=client.group)
    fates = {
        "committed": ("COMMIT_MESSAGE", "COMMIT_MESSAGE"), "rolled back": ("ROLLBACK_MESSAGE", "ROLLBACK_MESSAGE"),
        "committed later": ("UNKNOW", "COMMIT_MESSAGE"), "rolled back later": ("UNKNOW", "ROLLBACK_MESSAGE"),
    }  # fmt: skip
    for body, (execute, check) in fates.items():
        (sent,) = client.call("tx.send", name=client.group, body=body, properties={"execute": execute, "check": check})
        assert sent.get("status", "SEND_OK") == "SEND_OK"
    client.push()
    checked = partial(client.call, "tx.checks", name=client.group)
    until(lambda: {"committed later", "rolled back later"} <= set(bodies(checked())), "both checks")
    client.received(2)
    time.sleep(0.3)
    received = client.call("push.stop", name=client.group)
    client.call("tx.stop", name=client.group)

    assert bodies(received) == ["committed", "committed later"]


@able("retry")
def test_what_it_failed_to_consume_comes_again_and_ends_as_a_dead_letter(client: Client) -> None:
    with client.admin() as admin:  # or it would find the route of this topic half a minute later
        admin.create_topic(f"%RETRY%{client.group}", queue_count=1)
    client.call("producer")
    client.call("send", body="again", tag="a")
    client.push(fails=1, reconsume_max=1)
    again = client.received(2)
    client.call("push.stop", name=client.group)
    client.push(name=f"{client.group}-dead", fails=9, reconsume_max=1)
    client.call("send", body="dead", tag="a")
    dead = client.received(2, name=f"{client.group}-dead")
    with client.admin() as admin:
        letters = until(lambda: admin.dead_letters(client.group), "the dead letter")
    client.call("push.stop", name=f"{client.group}-dead")

    assert [(m["body"], m["reconsume_times"]) for m in again + dead] == [("again", 0), ("again", 1), ("dead", 0), ("dead", 1)]
    assert [letter.message.body for letter in letters] == [b"dead"]


@able("request")
def test_a_request_is_answered_by_the_reply(client: Client) -> None:
    client.call("producer")
    client.push(replies=True)
    requester = f"{client.group}-requester"
    client.call("producer", group=requester)
    client.call("send", group=requester, topic=f"{client.topic}Other", body="before")
    with client.admin() as admin:  # Go's heartbeat goes to brokers that it sent to, and a reply to whom the broker knows
        until(partial(known, admin, requester, client.topic), "the requester's heartbeat")

    assert client.call("request", group=requester, body="question", timeout_ms=30_000) == "answer to question"
    client.call("push.stop", name=client.group)


@able("namespace")
def test_it_keeps_to_its_namespace(client: Client) -> None:
    own = {"namespace": f"NS{client.group}"}
    with client.admin(**own) as admin:
        admin.create_topic(client.topic, queue_count=1)
    with Producer(group=f"{client.group}-ours", nameserver=client.server.nameserver) as producer:
        producer.send(Message(client.topic, b"outside"))
    client.call("producer", **own)
    (sent,) = client.call("send", body="inside", **own)
    client.push(**own)
    received = client.received(1)
    client.call("push.stop", name=client.group)
    with client.admin() as admin:
        stored = stored_as(admin, f"{own['namespace']}%{client.topic}", sent)

    assert stored.topic == f"{own['namespace']}%{client.topic}"
    assert bodies(received) == ["inside"]


@able("operate")
def test_an_operator_asks_it_hands_it_a_message_and_moves_its_group(client: Client) -> None:
    client.call("producer")
    sent = client.call("send", body="m {n}", count=4)
    client.push()
    client.received(4)
    with client.admin() as admin:
        (member,) = admin.consumer_connections(client.group).connection_set
        info = admin.consumer_running_info(client.group, member.client_id)
        third = stored_as(admin, client.topic, sent[2])
        result = admin.consume_directly(client.group, member.client_id, third.offset_msg_id)
        handed = client.received(5)
        admin.reset_offsets(client.group, client.topic, "earliest")
        again = client.received(9)
    client.call("push.stop", name=client.group)

    assert client.topic in {subscription.topic for subscription in info.subscription_set}
    assert (result.consume_result, handed[4]["body"]) == ("CR_SUCCESS", "m 2")
    assert bodies(again[5:]) == [f"m {i}" for i in range(4)]


@able("trace")
def test_the_trace_of_a_message_has_what_it_reports(client: Client) -> None:
    client.call("producer", trace=True)
    (sent,) = client.call("send", body="traced")
    client.push(trace=True)
    client.received(1)
    with client.admin() as admin:
        reported = until(partial(events, admin, sent["msg_id"], client.topic), "three reports of the client")
    client.call("push.stop", name=client.group)

    assert reported == ["sent", "handed to the listener", "listener returned"]


@able("signed")
def test_it_signs_what_it_asks_and_is_refused_with_a_wrong_secret_or_none(
    client: Client, peers: Callable[[str], Peer], serve: Callable[..., Serve], tmp_path: Path
) -> None:
    rules = tmp_path / "data" / "conf" / "plain_acl.yml"
    rules.parent.mkdir(parents=True)
    rules.write_text(RULES)
    rules.chmod(0o600)
    guarded = serve(aclEnable="true")
    signed = Client(client.name, peers(client.name), guarded, access_key="operator", secret_key="87654321")
    signed.call("producer", **SIGNED)
    signed.call("send", body="m {n}", count=3, **SIGNED)
    signed.push(**SIGNED)
    received = signed.received(3)
    signed.call("push.stop", name=signed.group)

    assert bodies(received) == ["m 0", "m 1", "m 2"]
    unsigned = "No acl config for nobody" if client.name == "ons" else "No accessKey"  # Aliyun's client signs always
    for wrong, reason in (({}, unsigned), ({**SIGNED, "secret_key": "23456789"}, "Check signature failed")):
        stranger = Client(client.name, peers(client.name), guarded, access_key="operator", secret_key="87654321")
        stranger.call("producer", **wrong)
        with pytest.raises(PeerError):
            stranger.call("send", body="refused", **wrong)
        assert reason in guarded.log
        with stranger.admin(access_key="operator", secret_key="87654321") as admin:
            assert [row.max_offset for row in admin.topic_stats(stranger.topic).values()] == [0] * 4


@able("tls")
def test_it_speaks_tls_where_nothing_else_is_taken(
    client: Client, peers: Callable[[str], Peer], serve: Callable[..., Serve], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "certificates")
    pair = authority.pair("server")
    settings = {"tls.server.mode": "enforcing", "tls.server.certPath": pair.cert, "tls.server.keyPath": pair.key}
    secure = Client(client.name, peers(client.name), serve(**settings), use_tls=True, tls_ca=authority.ca)
    order = {"tls": True, "ca": authority.ca}
    secure.call("producer", **order)
    secure.call("send", body="m {n}", count=3, **order)
    secure.push(**order)
    received = secure.received(3)
    secure.call("push.stop", name=secure.group)

    assert bodies(received) == ["m 0", "m 1", "m 2"]


@able("restart")
def test_what_a_killed_broker_acknowledged_is_consumed_when_it_is_back(
    client: Client, peers: Callable[[str], Peer], serve: Callable[..., Serve]
) -> None:
    killed = serve()
    mine = Client(client.name, peers(client.name), killed)
    mine.call("producer")
    mine.push()
    mine.call("load", body="m {n}")
    for _ in range(2):
        wanted = mine.call("load.count") + 200
        until(lambda: mine.call("load.count") >= wanted, "the producer to get through", within_s=90)  # noqa: B023
        killed.kill()
        killed.start()
    wanted = mine.call("load.count") + 200
    until(lambda: mine.call("load.count") >= wanted, "the producer to get through", within_s=90)
    acknowledged = set(mine.call("load.stop")["acknowledged"])
    until(lambda: acknowledged <= set(bodies(mine.received(0))), "all that was acknowledged", within_s=90)
    mine.call("push.stop", name=mine.group)

    assert len(acknowledged) >= 600
