"""A broker without sockets: connections are numbers, requests go in as frames, what comes out is read back as commands."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.columns.signing import Signer
from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.model import ConsumeType, MessageModel, subscription
from halfmoon.ports import DiskUsage
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.bench import Bench
from halfmoon.wire.bodies import ConsumeFromWhere, ConsumerData, HeartbeatData, ProducerData, SubscriptionData, to_json
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.headers.send import SendMessageV2

START_MS = 1_700_000_000_000
OF_THE_BROKER = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Properties that every stored message gets from a broker with default settings."""
SMALL = {"commit_log_file_bytes": 256 * 1024, "queue_file_bytes": 2000, "hash_slots": 1000, "index_entries_max": 4000}


class Talk(Bench):
    """One broker and what its peers were sent. ``held_queues`` keeps the works that create queues, as ``held_back`` all others.

    ``lease``: it is the master of a pair; called with the time, it returns the lease.
    """

    def __init__(self, root, *, store=None, disk=None, lease=None, **settings):
        super().__init__(START_MS)
        self.make_lease = lease
        self.root = root
        self.settings = BrokerSettings(**settings)
        self.store_settings = StoreSettings(**{**SMALL, **(store or {})})
        self.disk = disk or RealDisk(str(root))
        if disk is None:  # how full the machine's disk is changes nothing
            self.disk.usage = lambda: DiskUsage(1 << 40, 9 << 36)
        self.held_queues: list[Work] | None = None
        self.open()

    def open(self):
        self.opaque = 0
        lease = None if self.make_lease is None else self.make_lease(self.instant.steady)
        self.broker = Broker(self.settings, self.store_settings, self.disk, Random(1), self.instant, lease=lease)
        self.begin(self.broker)

    def restart(self):
        """Stop cleanly and open the directory again."""
        self.stop()
        self.broker.close(self.instant)
        self.open()

    def held(self, work):
        return self.held_queues if work.name == "create queues" else self.held_back

    def release(self):
        """Run the works that were held back."""
        works = [*(self.held_queues or ()), *(self.held_back or ())]
        self.held_queues = self.held_back = None
        for work in works:
            self.run_work(work)
        self.run_effects()

    # ------------------------------------------------------------ requests

    def post(self, header, body=b"", *, peer=1, serialization=JSON, oneway=False, version=409, code=None, who=None):
        """Send a request, signed by ``who``, without looking for its answer; return its opaque."""
        self.opaque += 1
        command = request_command(header, body, opaque=self.opaque, serialization=serialization, oneway=oneway)
        command.version = version
        if code is not None:
            command.code = code
        if who is not None:
            command.fields = {**command.fields, **Signer(*who).sign(command.fields, body)}
        self.feed(peer, encode(command))
        return self.opaque

    def answer(self, opaque, *, peer=1):
        """Take out the answer to a request, or None while there is none."""
        for command in self.received[peer]:
            if command.is_response and command.opaque == opaque:
                self.received[peer].remove(command)
                return command
        return None

    def ask(self, header, body=b"", **kw):
        """Send a request, let a turn pass and return its answer."""
        opaque = self.post(header, body, **kw)
        self.turn()
        return self.answer(opaque, peer=kw.get("peer", 1))

    def send(self, topic="T", body=b"x", *, queue_id=0, properties="", **kw):
        return self.ask(send_header(topic, queue_id=queue_id, properties=properties), body, **kw)

    def post_send(self, topic="T", body=b"x"):
        """Send a message and let a turn pass, without looking for its answer; return its opaque."""
        opaque = self.post(send_header(topic), body)
        self.turn()
        return opaque

    def pull(self, topic="T", *, offset=0, queue_id=0, group="G", wait_ms=0, expression="*", **kw):
        return self.ask(
            pull_header(topic, offset=offset, queue_id=queue_id, group=group, wait_ms=wait_ms, expression=expression), **kw
        )

    def consume(self, *topics, group="G", peer=1, client_id=None, model=MessageModel.CLUSTERING, expression="*", version=1):
        """Send a consumer's heartbeat."""
        data = HeartbeatData(
            client_id=client_id or f"client-{peer}",
            producer_data_set=[ProducerData("CLIENT_INNER_PRODUCER")],
            consumer_data_set=[
                ConsumerData(
                    group_name=group, consume_type=ConsumeType.CONSUME_PASSIVELY, message_model=model,
                    consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                    subscription_data_set=[SubscriptionData.of(subscription(t, expression, version=version)) for t in topics],
                )
            ],
        )  # fmt: skip
        return self.ask(HeartBeat(), to_json(data), peer=peer)


def send_header(topic="T", **changed):
    fields = {
        "producer_group": "P", "topic": topic, "default_topic": "TBW102", "default_topic_queue_nums": 4, "queue_id": 0,
        "sys_flag": 0, "born_timestamp": START_MS - 5, "flag": 0, "properties": "", "reconsume_times": 0, "unit_mode": False,
        "batch": False,
    }  # fmt: skip
    return SendMessageV2(**{**fields, **changed})


def pull_header(topic="T", *, offset=0, queue_id=0, group="G", wait_ms=0, expression="*", version=0, commit=None):
    flag = (2 if wait_ms else 0) | (4 if expression is not None else 0) | (1 if commit is not None else 0)
    return PullMessage(
        consumer_group=group, topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=32, sys_flag=flag,
        commit_offset=commit or 0, suspend_timeout_millis=wait_ms, sub_version=version, subscription=expression,
        expression_type=None if expression is None else "TAG",
    )  # fmt: skip


def full_for(talk: Talk, topic: str, queue_id: int | None = None, error: Exception | None = None) -> Callable[[], None]:
    """From now on nothing can be stored in a topic (or one queue of it), until the broker starts again or the returned function is
    called. ``error``: the mistake instead of a full disk.
    """
    appending = talk.broker.store._appending
    gather = appending._gather

    def full(wanted: str, number: int, *others: Any) -> Any:
        if wanted == topic and queue_id in (None, number):
            raise error or StoreNotWritable("full")
        return gather(wanted, number, *others)

    appending._gather = full  # type: ignore[method-assign]
    return lambda: setattr(appending, "_gather", gather)
