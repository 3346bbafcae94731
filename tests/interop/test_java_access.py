"""Access control with Apache's clients and admin tool: the same accounts at Apache's broker and at ours, and the same refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon import Message, Producer, PullConsumer
from halfmoon.client.admin import Admin
from halfmoon.columns.signing import Signer
from halfmoon.model import ConsumeFrom
from halfmoon.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData, to_json
from halfmoon.wire.headers.client import GetConsumerListByGroup, HeartBeat
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.headers.pull import PullMessage, QueryMessage
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.headers.topic import GetAllTopicConfig, UpdateAndCreateTopic
from halfmoon.wire.signature import Credentials
from halfmoon.wire.table import Header, fields_of, request_type
from tests.broker.access.rule_files import write
from tests.interop.apache import Cluster
from tests.interop.asking import Answer, Asker, Question
from tests.interop.java_peer import JavaError, JavaPeer
from tests.interop.ours import Serve
from tests.waiting import until

RULES = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [orders=PUB|SUB, reading=SUB, closed=DENY]
  groupPerms: [G_orders=SUB, P_orders=PUB, G_closed=DENY]
- accessKey: rocketmq2
  secretKey: 87654321
  whiteRemoteAddress: 192.168.1.{1,2}
  admin: true
"""
USER: dict[str, Any] = {"access_key": "RocketMQ", "secret_key": "12345678"}
ADMIN: dict[str, Any] = {"access_key": "rocketmq2", "secret_key": "87654321"}
TOOLS = "accessKey: rocketmq2\nsecretKey: 87654321\n"

Broker = Serve | Cluster


def write_rules(broker_home: Path, text: str = RULES) -> None:
    write(broker_home, text)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    data = tmp_path_factory.mktemp("ours") / "data"
    write_rules(data)
    server = Serve(data, settings={"aclEnable": "true"}).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("theirs")
    write_rules(home)
    cluster = Cluster("4.9.7", home, settings={"aclEnable": "true"}).start()
    yield cluster
    cluster.kill()


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    """A JVM whose admin tool signs as an administrator."""
    home = tmp_path_factory.mktemp("tool")
    (home / "conf").mkdir()
    (home / "conf" / "tools.yml").write_text(TOOLS)
    peer = JavaPeer("4.9.7", home)
    yield peer
    peer.stop()


def ask(broker: Broker, header: Header, body: bytes, who: Credentials | None) -> Answer:
    """Send one request on a connection of its own, signed or not."""
    fields = fields_of(header)
    signed = Signer(*who).sign(fields, body) if who is not None else {}
    asker = Asker(broker.broker_port)
    try:
        return asker.ask(Question(type(header).__name__, request_type(header).code, {**fields, **signed}, body))
    finally:
        asker.close()


def send(topic: str) -> SendMessageV2:
    return SendMessageV2(
        producer_group="P_orders", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0, sys_flag=0,
        born_timestamp=1, flag=0, properties="", reconsume_times=0, unit_mode=False, batch=False,
    )  # fmt: skip


def pull(topic: str, group: str) -> PullMessage:
    return PullMessage(
        consumer_group=group, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=4, commit_offset=0,
        suspend_timeout_millis=0, sub_version=0, subscription="*", expression_type="TAG",
    )  # fmt: skip


def make_topic(broker: Broker, *topics: str) -> None:
    with Admin(nameserver=broker.nameserver, **ADMIN) as admin:
        for topic in topics:
            admin.create_topic(topic, queue_count=2)


@pytest.mark.parametrize("version", ["4.9.7", "4.7.1", "5.3.3"])
@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
def test_signed_java_clients_send_and_consume(ours: Serve, java: Callable[..., JavaPeer], version: str, serialization: str) -> None:
    peer = java(version, serialization)
    make_topic(ours, "orders")
    own: dict[str, Any] = {"topic": "orders", "nameserver": ours.nameserver, **USER}
    tag, name = f"{version}-{serialization}", f"access-{version}-{serialization}"
    peer.call("producer", group="P_orders", **own)
    peer.call("push", name=name, group="G_orders", expression=tag, **own)
    peer.call("send", group="P_orders", body="sync {n}", count=3, tag=tag, **own)
    peer.call("send.async", group="P_orders", body="async {n}", count=3, tag=tag, **own)
    peer.call("send.batch", group="P_orders", body="batch {n}", count=3, tag=tag, **own)
    peer.call("send.oneway", group="P_orders", body="oneway {n}", count=3, tag=tag, **own)
    wanted = {f"{how} {n}" for how in ("sync", "async", "batch", "oneway") for n in range(3)}

    def received() -> set[str]:
        return {message["body"] for message in peer.call("push.wait", name=name, count=0, timeout_ms=0)}

    # each at least once: what a consumer has not reported comes again if its queues are shared out anew
    until(lambda: received() >= wanted)
    assert received() == wanted
    peer.call("push.stop", name=name)
    peer.call("producer.stop", group="P_orders")


def test_a_signed_lite_consumer_and_a_signed_transaction(ours: Serve, java: Callable[..., JavaPeer]) -> None:
    peer = java("4.9.7")
    make_topic(ours, "orders")
    own: dict[str, Any] = {"topic": "orders", "nameserver": ours.nameserver, **USER}
    peer.call("lite", name="lite-access", group="G_orders", subscribe=True, expression="tx", auto_commit=True, **own)
    peer.call("tx.producer", name="tx-access", group="P_orders", **own)
    peer.call("tx.send", name="tx-access", body="paid", tag="tx", properties={"execute": "COMMIT_MESSAGE"}, **own)
    found = peer.call("lite.poll", name="lite-access", count=1, timeout_ms=30_000)
    peer.call("lite.stop", name="lite-access")
    peer.call("tx.stop", name="tx-access")

    assert [message["body"] for message in found] == ["paid"]


@pytest.mark.parametrize(("topic", "account", "words"), [
    ("orders", {}, "No accessKey is configured"),
    ("orders", {**USER, "access_key": "nobody1"}, "No acl config for nobody1"),
    ("orders", {**USER, "secret_key": "123456789"}, "Check signature failed for accessKey=RocketMQ"),
    ("reading", USER, "No default permission for topic:reading"),
    ("closed", USER, "No default permission for topic:closed"),
])  # fmt: skip
def test_a_java_client_is_told_the_same_as_by_apaches_broker(
    ours: Serve, theirs: Cluster, java: Callable[..., JavaPeer], topic: str, account: dict[str, Any], words: str
) -> None:
    peer = java("4.9.7")
    said = []
    brokers: list[Broker] = [ours, theirs]
    for number, broker in enumerate(brokers):
        make_topic(broker, "orders", "reading", "closed")
        group = f"P_told_{topic}_{words.split()[1]}_{number}"
        peer.call("producer", group=group, nameserver=broker.nameserver, retries=0, **account)
        with pytest.raises(JavaError) as caught:
            peer.call("send", group=group, topic=topic, body="x", select=True)
        peer.call("producer.stop", group=group)
        said.append((caught.value.name, caught.value.code, masked(caught.value.text)))

    assert words in said[0][2]
    assert said[0] == said[1]


def masked(text: str) -> str:
    """A text without the line of Java that Apache's remarks end with, without addresses, and without secrets, which ours hides."""
    text = re.sub(r"secretKey=\S+ cannot", "secretKey=*** cannot", text)
    text = re.sub(r", org\.apache\.rocketmq\.acl\.plain\.[\w.]+\(\w+\.java:\d+\)", "", text)
    return re.sub(r"127\.0\.0\.1:\d+|@[0-9a-f]+", "ADDRESS", text)


WRONG = Credentials("RocketMQ", "123456789")
BEAT = to_json(HeartbeatData(client_id="c", consumer_data_set=[ConsumerData(
    group_name="G_orders", subscription_data_set=[SubscriptionData(topic="closed")]
)]))  # fmt: skip
QUERY = QueryMessage(topic="orders", key="k", max_num=1, begin_timestamp=0, end_timestamp=2**60, unique_key_query=True)
NEW_TOPIC = UpdateAndCreateTopic(
    topic="more", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG"
)


@pytest.mark.parametrize("who", [None, Credentials("nobody1", "12345678"), WRONG, Credentials(*USER.values())], ids=repr)
@pytest.mark.parametrize(("header", "body"), [
    (send("orders"), b"x"), (send("closed"), b"x"), (send("unknown"), b"x"), (send("reading"), b"x"),
    (send("RMQ_SYS_TRACE_TOPIC"), b"x"), (pull("closed", "G_orders"), b""),
    (pull("orders", "G_closed"), b""), (GetConsumerListByGroup(consumer_group="G_closed"), b""), (HeartBeat(), BEAT),
    (GetMaxOffset(topic="reading", queue_id=0), b""), (GetAllTopicConfig(), b""), (NEW_TOPIC, b""), (QUERY, b""),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_each_request_is_refused_or_let_pass_as_by_apaches_broker(
    ours: Serve, theirs: Cluster, header: Any, body: bytes, who: Credentials | None
) -> None:
    refusals = []
    for broker in (ours, theirs):
        reply = ask(broker, header, body, who)
        refused = reply.code == 1 and "AclException" in (reply.remark or "")
        refusals.append(masked(reply.remark or "") if refused else None)

    assert refusals[0] == refusals[1]


def test_our_client_is_let_in_by_apaches_broker_also_with_its_query_by_unique_key(theirs: Cluster) -> None:
    make_topic(theirs, "orders")
    with Producer(group="P_orders", nameserver=theirs.nameserver, **USER) as producer:
        sent = producer.send(Message("orders", b"ours", keys=["k-1"]))
    with PullConsumer(group="G_orders", nameserver=theirs.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET, **USER) as consumer:
        consumer.subscribe("orders")
        until(lambda: b"ours" in [message.body for message in consumer.poll(timeout_ms=1000)])  # beside what other tests send
    with Admin(nameserver=theirs.nameserver, **USER) as admin:
        by_id = admin.message_by_id("orders", sent.msg_id)

    assert by_id.body == b"ours"


def test_the_admin_tool_changes_accounts_as_at_apaches_broker(ours: Serve, theirs: Cluster, tool: JavaPeer) -> None:
    printed = [list(administer(tool, broker)) for broker in (ours, theirs)]

    for own, apaches in zip(*printed, strict=True):
        assert own == apaches
    assert "account3" in printed[0][1]


def administer(tool: JavaPeer, broker: Broker) -> Iterator[str]:
    """Run the tool's commands about accounts; yield what each prints."""
    at = ["-n", broker.nameserver, "-b", f"127.0.0.1:{broker.broker_port}"]
    account = [
        "-a",
        "account3",
        "-s",
        "secret-3",
        "-i",
        "DENY",
        "-u",
        "SUB",
        "-t",
        "orders=PUB",
        "-g",
        "G_orders=SUB",
        "-m",
        "false",
    ]

    def run(*arguments: str) -> str:
        printed = re.sub(r"(?m)^\d{4}-.*|\s+$", "", masked(tool.mqadmin(*arguments)))
        return re.sub(r"(secretKey\s*:) .*", r"\1 ***", printed)  # ours masks them

    yield run("updateAclConfig", *at, *account)
    yield run("getAclConfig", *at)
    assert can_send(broker, {"access_key": "account3", "secret_key": "secret-3"})
    yield run("updateAclConfig", *at, "-a", "short", "-s", "secret-3")
    yield run("updateGlobalWhiteAddr", *at, "-g", "10.10.154.1,10.10.154.2")
    yield run("deleteAclConfig", *at, "-a", "account3")
    yield run("deleteAclConfig", *at, "-a", "account3")
    yield run("getAclConfig", *at)
    assert not can_send(broker, {"access_key": "account3", "secret_key": "secret-3"})


def can_send(broker: Broker, account: dict[str, Any]) -> bool:
    return ask(broker, send("orders"), b"x", Credentials(*account.values())).code == 0


def test_a_changed_file_and_a_white_address_count_for_connected_java_clients(tmp_path: Path, java: Callable[..., JavaPeer]) -> None:
    write_rules(tmp_path / "data")
    server = Serve(tmp_path / "data", settings={"aclEnable": "true"}).start()
    peer = java("4.9.7")
    try:
        make_topic(server, "orders")
        peer.call("producer", group="P_reload", nameserver=server.nameserver, retries=0, **{**USER, "secret_key": "wrong-secret"})
        with pytest.raises(JavaError, match="Check signature failed"):
            peer.call("send", group="P_reload", topic="orders", body="x", select=True)
        write_rules(tmp_path / "data", RULES.replace("whiteRemoteAddress:\n", "whiteRemoteAddress: 127.0.0.*\n"))
        until(lambda: sends(peer, "P_reload"), "the changed file to count", within_s=20)
        peer.call("producer.stop", group="P_reload")
    finally:
        server.kill()


def sends(peer: JavaPeer, group: str) -> bool:
    """Whether a producer is let send."""
    try:
        return bool(peer.call("send", group=group, topic="orders", body="x"))
    except JavaError:
        return False
