"""What both servers are given before the admin tool asks: topics, groups, messages, an online producer and an online consumer.

All messages go to queues that the calls choose, so that both servers hold the same. Runs the calls one after another in one JVM.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interop.apache import Cluster
from tests.interop.java_peer import JavaPeer
from tests.interop.mqadmin.commands import NUMBERED
from tests.interop.mqadmin.masks import masked
from tests.interop.ours import Serve

TOPIC, LATER, SINGLE = "MqTopic", "MqLater", "MqSingle"
GROUP, OFFLINE, CLONE, PRODUCER, TRACING = "MqGroup", "MqOffline", "MqClone", "MqProducer", "MqTracing"
SENT = 11
LIST = ""
"""The call without a command: it prints a list of them."""
ENDLESS_MS = {"clusterRT": 2_500}
"""Commands that never end by themselves, and after how long they are interrupted."""
SAMPLED_S = 11.0
"""After so long the consumer has reported its offsets and both brokers have taken a sample of all counters (each 10 s)."""

OUR_DEFAULTS = {"traceTopicEnable": "true"}
"""Settings of Apache's broker that have another default there."""

Names = dict[str, str]


def prepare(peer: JavaPeer, server: Serve | Cluster) -> Names:
    """Make topics, groups, messages and clients; return what the words in the table's braces stand for."""
    broker = f"127.0.0.1:{server.broker_port}"
    for group in (GROUP, OFFLINE, CLONE):
        _admin(peer, server, "updateSubGroup", "-b", broker, "-g", group)
    for topic, queues in ((TOPIC, "2"), ("MadeBySend", "2"), (LATER, "1"), (SINGLE, "1"), ("nowhere", "1")):
        _admin(peer, server, "updateTopic", "-b", broker, "-t", topic, "-r", queues, "-w", queues)
    _until(lambda: "brokerName" in _admin(peer, server, "topicRoute", "-t", "nowhere"))
    peer.call("producer", group=PRODUCER, nameserver=server.nameserver)
    peer.call("producer", group=TRACING, nameserver=server.nameserver, trace=True)
    sent = _send(peer, PRODUCER, body="m {n}", keys="key-{n}", tag="TagA", count=10, select=True)
    [traced] = _send(peer, TRACING, body="traced", keys="traced", tag="TagB", queue_id=0)
    [single] = _send(peer, PRODUCER, SINGLE, body="single")
    _send(peer, PRODUCER, LATER, body="later", level=1)
    for group in (OFFLINE, GROUP):
        peer.call("push", name=group, topic=TOPIC, group=group, nameserver=server.nameserver, trace=True)
        peer.call("push.wait", name=group, count=SENT, timeout_ms=30_000)
        if group == OFFLINE:
            peer.call("push.stop", name=group)
    time.sleep(SAMPLED_S)
    _until(lambda: "%RETRY%" in _admin(peer, server, "consumerProgress", "-g", GROUP))
    _until(lambda: "Sub" in _admin(peer, server, "queryMsgTraceById", "-i", traced["msg_id"]))
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


def _admin(peer: JavaPeer, server: Serve | Cluster, *arguments: str) -> str:
    return peer.mqadmin(*arguments, "-n", server.nameserver)


def _send(peer: JavaPeer, group: str, topic: str = TOPIC, **order: Any) -> list[dict[str, Any]]:
    return list(peer.call("send", group=group, topic=topic, **order))


def _until(holds: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait until something holds, or for so long: what it should have been shows in the prints."""
    end = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)


def prints(server: Serve | Cluster, home: Path) -> dict[str, list[str]]:
    """Start the server, prepare it, and return the masked lines that each call printed."""
    home.mkdir(parents=True)
    peer = JavaPeer("4.9.7", home)
    try:
        server.start()
        names = {**prepare(peer, server), "home": str(home / "export")}
        data = server.stores[0] if isinstance(server, Cluster) else server.data
        hidden = {
            names["broker"]: "<broker>", server.nameserver: "<nameserver>", names["client"]: "<client>", str(home): "<home>",
            str(data): "<data>",
        }  # fmt: skip
        found = {LIST: peer.mqadmin().splitlines()}
        for call in NUMBERED:
            arguments = [word.format(**names) for word in shlex.split(call.split("  #")[0])]
            within_ms = ENDLESS_MS.get(arguments[0], 50_000)
            printed = peer.mqadmin(*arguments, "-n", server.nameserver, within_ms=within_ms)
            found[call] = masked(call, printed + _exported(printed), hidden)
        return found
    finally:
        peer.stop()
        server.kill()


def _exported(printed: str) -> str:
    """Return what the file holds that a command says it wrote, with its keys in order."""
    path = re.search(r"^export (\S+\.json) success", printed)
    if path is None:
        return ""
    return "\n" + json.dumps(json.loads(Path(path[1]).read_text()), indent=1, sort_keys=True)
