"""What both servers are given before the admin tool asks: topics, groups, messages, an online producer and an online consumer.

All messages go to queues that the calls choose, so that both servers hold the same. Runs the calls one after another in one JVM.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.mqadmin.commands import OPEN_CALLS, arguments
from tests.interop.mqadmin.masks import masked
from tests.interop.ours import Serve
from tests.waiting import until

TOPIC, LATER, SINGLE = "MqTopic", "MqLater", "MqSingle"
GROUP, OFFLINE, CLONE, PRODUCER, TRACING = "MqGroup", "MqOffline", "MqClone", "MqProducer", "MqTracing"
SENT = 11
LIST = ""
"""The call without a command: it prints a list of them."""
ENDLESS_MS = {"clusterRT": 2_500}
"""Commands that never end by themselves, and after how long they are interrupted."""
SAMPLED_S = 11.0
"""After so long both brokers have taken a sample of all counters (each 10 s)."""

APACHE = {
    "traceTopicEnable": "true",
    "brokerFastFailureEnable": "false",
    "waitTimeMillsInSendQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
}
"""Settings of Apache's broker: the topic for traces, which ours has by default, and patience on a machine that others use too."""

Names = dict[str, str]


def prepare(peer: JavaPeer, server: Serve | Cluster) -> Names:
    """Make topics, groups, messages and clients; return what the words in the table's braces stand for."""
    broker = f"127.0.0.1:{server.broker_port}"
    for group in (GROUP, OFFLINE, CLONE):
        _admin(peer, server, "updateSubGroup", "-b", broker, "-g", group)
    for topic, queues in ((TOPIC, "2"), ("MadeBySend", "2"), (LATER, "1"), (SINGLE, "1"), ("nowhere", "1")):
        _admin(peer, server, "updateTopic", "-b", broker, "-t", topic, "-r", queues, "-w", queues)
    _until_routed(peer, server, "nowhere")
    peer.call("producer", group=PRODUCER, nameserver=server.nameserver)
    peer.call("producer", group=TRACING, nameserver=server.nameserver, trace=True)
    sent = _send(peer, PRODUCER, body="m {n}", keys="key-{n}", tag="TagA", count=10, select=True)
    [traced] = _send(peer, TRACING, body="traced", keys="traced", tag="TagB", queue_id=0)
    [single] = _send(peer, PRODUCER, SINGLE, body="single")
    _send(peer, PRODUCER, LATER, body="later", level=1)
    consumers: list[dict[str, Any]] = [
        {"name": group, "topic": TOPIC, "group": group, "nameserver": server.nameserver, "trace": group == GROUP}
        for group in (OFFLINE, GROUP)
    ]
    for consumer in consumers:
        peer.call("push", **consumer)
    for group in (OFFLINE, GROUP):
        peer.call("push.wait", name=group, count=SENT, timeout_ms=30_000)
    sampled_s = time.monotonic() + SAMPLED_S
    for group in (OFFLINE, GROUP):
        _until_reported(peer, server, group)
        peer.call("push.stop", name=group)
        _until_routed(peer, server, f"%RETRY%{group}")
    peer.call("push", **consumers[1])
    time.sleep(max(0.0, sampled_s - time.monotonic()))
    until(lambda: _allocated(_admin(peer, server, "consumerProgress", "-g", GROUP, "-s", "true")))
    until(lambda: {"Pub", "Sub"} <= set(_admin(peer, server, "queryMsgTraceById", "-i", traced["msg_id"]).split()))
    [client] = re.findall(r"^(\S+@peer-\S+)", _admin(peer, server, "consumerConnection", "-g", GROUP), re.MULTILINE)
    now = int(time.time() * 1000)
    return {
        "topic": TOPIC, "group": GROUP, "offline": OFFLINE, "clone": CLONE, "producer": PRODUCER, "cluster": "DefaultCluster",
        "broker": broker, "client": client, "offset_id": sent[0]["offset_msg_id"], "unique_id": sent[0]["msg_id"],
        "single_id": single["offset_msg_id"], "later": LATER,
        "traced_id": traced["msg_id"], "unknown_unique_id": "7F0000010000000000000000FFFFFFFF",
        "unknown_offset_id": sent[0]["offset_msg_id"][:16] + "00000000FFFFFFFF", "long_name": "x" * 130,
        "past_ms": str(now - 600_000), "future_ms": str(now + 600_000),
    }  # fmt: skip


def _reported(progress: str) -> bool:
    """Whether a group has reported that it consumed everything: a consumer does so after 10 s, and at its end if all goes well."""
    rows = [line for line in progress.splitlines() if line.startswith(f"{TOPIC} ")]
    return len(rows) == 2 and re.search(r"Diff Total: +0$", progress, re.MULTILINE) is not None


def _allocated(progress: str) -> bool:
    """Whether each queue of a group is read by somebody: a retry topic's is found out a while after it was made."""
    rows = [line.split() for line in progress.splitlines() if " broker-a " in line]
    return len(rows) == 3 and all(row[5] != "N/A" for row in rows)


def _admin(peer: JavaPeer, server: Serve | Cluster, *arguments: str) -> str:
    return peer.mqadmin(*arguments, "-n", server.nameserver)


def _send(peer: JavaPeer, group: str, topic: str = TOPIC, **order: Any) -> list[dict[str, Any]]:
    return list(peer.call("send", group=group, topic=topic, **order))


def _until_routed(peer: JavaPeer, server: Serve | Cluster, topic: str) -> None:
    until(lambda: "brokerName" in _admin(peer, server, "topicRoute", "-t", topic))


def _until_reported(peer: JavaPeer, server: Serve | Cluster, group: str) -> None:
    until(lambda: _reported(_admin(peer, server, "consumerProgress", "-g", group)))


def prints(server: Serve | Cluster, home: Path) -> dict[str, list[str]]:
    """Start the server, prepare it, and return the masked lines that each call printed."""
    home.mkdir(parents=True)
    peer = JavaPeer("4.9.7", home)
    try:
        server.start()
        names = {**prepare(peer, server), "home": str(home / "export")}
        data = server.stores[0] if isinstance(server, Cluster) else server.data
        hidden = {names["client"]: "<client>", str(home): "<home>", str(data): "<data>"}
        return {LIST: peer.mqadmin().splitlines(), **{call: run(peer, server, call, names, hidden) for call in OPEN_CALLS}}
    finally:
        peer.stop()
        server.kill()


def run(peer: JavaPeer, server: Serve | Cluster, call: str, names: Names, hidden: Names) -> list[str]:
    """Make a call and return what it printed, masked. ``hidden`` are texts to be replaced by names, besides addresses."""
    hidden = {names["broker"]: "<broker>", server.nameserver: "<nameserver>", **hidden}
    command, *others = (word.format(**names) for word in arguments(call))
    printed = peer.mqadmin(command, *others, "-n", server.nameserver, within_ms=ENDLESS_MS.get(command, 50_000))
    return masked(command, printed + _exported(printed), hidden)


def _exported(printed: str) -> str:
    """Return what the file holds that a command says it wrote, with its keys in order."""
    path = re.search(r"^export (\S+\.json) success", printed)
    if path is None:
        return ""
    return "\n" + json.dumps(json.loads(Path(path[1]).read_text()), indent=1, sort_keys=True)
