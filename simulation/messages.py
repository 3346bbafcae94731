"""Workload of messages that are sent, pulled, consumed and committed under every kind of fault."""

from __future__ import annotations

from typing import Any

from halfmoon.errors import BadMessage
from halfmoon.limits import CONNECTION_IDLE_MS
from halfmoon.testing.cluster import BrokerNode, Cluster
from halfmoon.testing.driver import Task
from halfmoon.testing.requests import QUEUES
from halfmoon.wire.bodies import ClusterInfo, from_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeReply,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
)
from halfmoon.wire.headers.pull import ViewMessageById
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from halfmoon.wire.record import decode_record
from simulation.checkers import check, routes_agree
from simulation.faults import REGISTER_MS
from simulation.history import BROKER, History, Workload, changed
from simulation.ledger import Contents, Ledger, Place, Seen
from simulation.users import WorkloadPlan, consumer, producer, puller

TOPICS = ("orders", "payments")
GROUP = "consumers"
SILENCE = ("silent for", "no heartbeat", "did not register in time")
"""Reasons of connections that are closed because nothing came."""

NETWORK_MS = (50, 10_000)
"""Longest time that the network keeps an answer: as it is, and where packets are lost and come again."""

SEARCHES_MAX = 8
"""Messages of one queue that are searched for, those at its ends among them."""


class Messages(Workload):
    """Senders, pullers and consumers that speak the wire; at the end searches, progress and indexes are compared, too."""

    NAME, CHANCE = "messages", "history"

    def __init__(self, history: History) -> None:
        super().__init__(history)
        self._users: list[Task[Any]] = []

    def draw(self) -> dict[str, Any]:
        self.history.draw_flush()
        return {"brokers": self.chance.choice((1, 1, 2)), "nameservers": self.chance.choice((1, 2)), "broker": BROKER}

    def begin(self) -> None:
        self.plan = self.history.plan
        self.plan.on_seen = self.history.must_be_durable
        self.messages.network_ms = NETWORK_MS[bool({"cut", "lose", "power"}.intersection(self.history.faults.kinds))]
        self._start_users()
        self.cluster.run(ms=300)

    def end(self) -> None:
        self.cluster.run(ms=1500)
        self.plan.closing = True
        self.history.until_done(self._users, 30_000, "users")
        self.cluster.run(ms=2500)

    def problems(self) -> dict[str, list[str]]:
        """Compare queues with what users learned, brokers with their disks, and both with what they are after a restart."""
        cluster, ledger = self.cluster, self.messages
        contents, offsets = self._contents(), self._offsets()
        problems = check(ledger, contents, offsets)
        problems |= {"refusing": refusing(cluster), "silence": called_silent(cluster)}
        problems["searches"] = searches_differ(cluster, self.plan, contents, ledger)
        problems |= self._after_a_clean_stop(contents, offsets)
        cluster.run(ms=REGISTER_MS + 5_000)
        return problems | {"routes": routes_agree(self._routes(), dict(self.plan.brokers))}

    def count(self) -> dict[str, int | str]:
        ledger = self.messages
        return {"acknowledged": len(ledger.acked), "read": len(ledger.seen), "commits": len(ledger.commits)}

    def _start_users(self) -> None:
        split, chance = self.cluster.timeline.split, self.chance
        for i in range(chance.randint(2, 4)):
            name, serialization = f"sender-{i}", chance.choice((JSON, ROCKETMQ))
            users = self.cluster.driver(name, serialization)
            operation = producer(self.plan, name, chance.choice(TOPICS), split(name), pause_ms=(0, chance.choice((60, 200, 500))))
            self._users.append(users.start(operation, name))
        for i in range(chance.randint(2, 5)):
            name, tag = f"puller-{i}", chance.choice((None, None, "paid", "sent||lost"))
            users = self.cluster.driver(name, chance.choice((JSON, ROCKETMQ)))
            self._users.append(users.start(puller(self.plan, self._place(), split(name), tag=tag), name))
        for place in {self._place(): None for _ in range(chance.randint(1, 4))}:
            name = f"consumer-{place}"
            self._users.append(self.cluster.driver(name).start(consumer(self.plan, GROUP, place, split(name)), name))

    def _place(self) -> Place:
        chance = self.chance
        return Place(chance.choice(sorted(self.plan.brokers)), chance.choice(TOPICS), chance.randrange(QUEUES))

    def _routes(self) -> list[dict[str, str]]:
        """Return what each name server knows: brokers and their addresses."""
        replies = [self.cluster.request(node.address, GetBrokerClusterInfo()) for node in self.cluster.nameservers]
        tables = [from_json(ClusterInfo, reply.body).broker_addr_table for reply in replies]
        return [{name: data.broker_addrs.get(0, "") for name, data in sorted(table.items())} for table in tables]

    def _offsets(self) -> dict[tuple[str, Place], int]:
        offsets = {}
        for place in self.history.places(TOPICS, QUEUES):
            request = QueryConsumerOffset(consumer_group=GROUP, topic=place.topic, queue_id=place.queue_id)
            reply = self.cluster.request(self.plan.brokers[place.broker], request)
            if reply.code == 0:
                offsets[GROUP, place] = reply.header(OffsetReply).offset
        return offsets

    def _contents(self) -> Contents:
        return self.history.contents(self.history.places(TOPICS, QUEUES))

    def _after_a_clean_stop(self, contents: Contents, offsets: dict[tuple[str, Place], int]) -> dict[str, list[str]]:
        """Stop every broker, compare its indexes with its log, start it, and find everything as it was."""
        problems = self.history.restart_all(self._fsck_differs)
        self.cluster.run(ms=1000)
        again, offsets_again = self._contents(), self._offsets()
        problems["restart"] = changed(contents, again)
        if offsets != offsets_again:
            problems["restart"].append(f"consumer offsets were {offsets} and are {offsets_again} after a clean restart")
        return problems

    def _fsck_differs(self, broker: BrokerNode) -> dict[str, list[str]]:
        damaged = self.messages.damage_of(broker.name).places
        return {"fsck": self.history.fsck_differs(broker)} if damaged else {}


def refusing(cluster: Cluster) -> list[str]:
    """Return which brokers take no messages although every fault has ended: what failed for good was started again since."""
    return [
        f"{broker.name}: {broker.core.store.failure}"
        for broker in cluster.brokers
        if broker.running and broker.core.store.failure is not None
    ]


def called_silent(cluster: Cluster, least_ms: int = CONNECTION_IDLE_MS, *, beat_ms: int = 0) -> list[str]:
    """Return which connections were closed for silence (idle, no heartbeat, no registration) after less than ``least_ms``.

    ``beat_ms`` is how far heartbeats are apart at most. Only they count against *no heartbeat*: other bytes may have come since.
    """
    return [
        f"{host.name} closed {closed.remote} ({closed.reason}) {closed.at_ms - closed.heard_ms} ms after it was heard"
        for host in [*cluster.nameservers, *(broker.host for broker in cluster.brokers)]
        for closed in host.closed
        if any(word in closed.reason for word in SILENCE)
        if closed.at_ms - closed.heard_ms < least_ms - (beat_ms if closed.reason == "no heartbeat" else 0)
    ]


def searches_differ(cluster: Cluster, plan: WorkloadPlan, contents: Contents, ledger: Ledger) -> list[str]:
    """Return which answers to searches by time and by id are not what the queues hold. Brokers' clocks have only gone on."""
    problems = []
    for place, queue in contents.items():
        stored = {offset: decode_record(memoryview(seen.record)).store_ms for offset, seen in queue.messages.items()}
        address, offsets = plan.brokers[place.broker], sorted(stored)
        if not offsets:
            continue
        problems += _earliest(cluster.request(address, _of(GetEarliestMsgStoretime, place)), place, stored[offsets[0]])
        for offset in offsets[:: -(-len(offsets) // (SEARCHES_MAX - 1))] + offsets[-1:]:
            first = min(earlier for earlier in offsets if stored[earlier] == stored[offset])
            reply = cluster.request(address, _of(SearchOffsetByTimestamp, place, timestamp=stored[offset]))
            if reply.code or reply.header(OffsetReply).offset != first:
                problems.append(f"{place}@{first} was stored at {stored[offset]}; a search answers {_brief(reply)}")
            seen = queue.messages[offset]
            if (place, offset) in ledger.spoilt:
                continue  # its body is damaged: a pull hands it out, and leaves the judgement to its consumer
            problems += _by_id(cluster.request(address, ViewMessageById(offset=seen.physical_offset)), place, seen)
    for broker, physical_offset in sorted(ledger.spoilt_bytes):
        reply = cluster.request(plan.brokers[broker], ViewMessageById(offset=physical_offset))
        if reply.code == 0 and not _is_whole(reply.body, physical_offset):
            problems.append(f"{broker} shows {reply.body[:100]!r} as the message at {physical_offset}, where a record was damaged")
    return problems


def _of(request: Any, place: Place, **fields: Any) -> Any:
    return request(topic=place.topic, queue_id=place.queue_id, **fields)


def _earliest(reply: Command, place: Place, stored_ms: int) -> list[str]:
    if reply.code == 0 and reply.header(GetEarliestMsgStoretimeReply).timestamp == stored_ms:
        return []
    return [f"the first message of {place} was stored at {stored_ms}, and asked for that time the broker answers {_brief(reply)}"]


def _by_id(reply: Command, place: Place, seen: Seen) -> list[str]:
    if reply.code == 0 and reply.body == seen.record:
        return []
    return [f"{place}@{seen.queue_offset} lies at {seen.physical_offset}, and asked for that the broker answers {_brief(reply)}"]


def _is_whole(record: bytes | memoryview, physical_offset: int) -> bool:
    try:
        return decode_record(memoryview(record)).physical_offset == physical_offset
    except BadMessage:
        return False


def _brief(reply: Command) -> str:
    return f"{reply.code} {reply.remark or ''} {reply.fields} {bytes(reply.body[:60])!r}"
