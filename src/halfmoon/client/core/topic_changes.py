"""Creating a topic and changing one that is there: only what is named changes, and no unread message disappears unsaid."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.ask import ask, at_each
from halfmoon.client.core.names import check_topic, is_system_topic, whole
from halfmoon.client.core.queue_ends import topic_ends
from halfmoon.effects import Op, sleep
from halfmoon.errors import TopicNotFound, UsageError
from halfmoon.wire.bodies import ConsumeStats, GroupList, TopicConfig, TopicConfigTable, from_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.group import GetConsumeStats
from halfmoon.wire.headers.topic import GetAllTopicConfig, QueryTopicConsumeByWho, UpdateAndCreateTopic
from halfmoon.wire.table import Header

T = TypeVar("T")

QUEUES, PERM = 8, 6
"""Queues and permission of a new topic."""
KNOWN_TRIES, KNOWN_PAUSE_MS = 40, 50
"""How often and how long a new topic is waited for: two seconds."""


def create_topic(
    admin: AdminCore,
    topic: str,
    *,
    queue_count: int | None = None,
    write_queue_count: int | None = None,
    perm: int | None = None,
    order: bool | None = None,
    cluster: str | None = None,
    broker_address: str | None = None,
    force: bool = False,
) -> Op[dict[str, TopicConfig]]:
    """Create or change a topic on one broker, or on every master of a cluster (of all clusters when none is named).

    What is None stays as it is; a new topic has 8 queues and ``perm`` 6 (2 write, 4 read, 6 both). ``queue_count`` is the number of
    queues to read, and to write unless ``write_queue_count`` says another. Returns the configuration by broker's address, when the
    name servers know the topic, or after two seconds: brokers register new topics in their own time.

    Raises UsageError where queues would be removed that hold messages which a group has not read, or which no group reads, unless
    ``force``: nothing is changed then. Raises PartlyDone where brokers fail later.
    """
    check_topic(topic)
    for name, value in (("queue_count", queue_count), ("write_queue_count", write_queue_count), ("perm", perm)):
        if value is not None:
            whole(name, value)
    if is_system_topic(topic):
        raise UsageError(f"The topic[{topic}] is conflict with system topic.")
    brokers = {broker_address: broker_address} if broker_address else (yield from admin.masters(cluster))
    made: dict[str, TopicConfig] = {}
    for address in brokers.values():
        known = (yield from _answer(admin, address, GetAllTopicConfig(), TopicConfigTable)).topic_config_table.get(
            admin.wire(topic)
        )
        made[address] = _wanted(admin.wire(topic), known, queue_count, write_queue_count, perm, order)
        if known is not None and not force:
            removed = range(made[address].read_queue_nums, known.read_queue_nums)
            yield from _check_read(admin, address, topic, removed)
    yield from at_each({name: _asked(admin, address, _request(made[address])) for name, address in brokers.items()})
    yield from _wait_for_route(admin, topic, set(brokers.values()))
    return made


def _request(config: TopicConfig) -> UpdateAndCreateTopic:
    return UpdateAndCreateTopic(
        topic=config.topic_name, default_topic="TBW102", read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums, perm=config.perm, topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag, order=config.order,
    )  # fmt: skip


def _wait_for_route(admin: AdminCore, topic: str, addresses: set[str]) -> Op[None]:
    """Wait until the route of a topic has these brokers, or until `KNOWN_TRIES` looks were in vain."""
    for _ in range(KNOWN_TRIES):
        try:
            route = yield from admin.topic_route(topic)
        except TopicNotFound:
            known: set[str] = set()
        else:
            known = {address for broker in route.broker_datas for address in broker.broker_addrs.values()}
        if known >= addresses:
            return
        yield from sleep(KNOWN_PAUSE_MS)


def _wanted(
    name: str,
    known: TopicConfig | None,
    queue_count: int | None,
    write_queue_count: int | None,
    perm: int | None,
    order: bool | None,
) -> TopicConfig:
    config = replace(known or TopicConfig(topic_name=name, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=PERM))
    if queue_count is not None:
        config.read_queue_nums = config.write_queue_nums = queue_count
    if write_queue_count is not None:
        config.write_queue_nums = write_queue_count
    config.perm = config.perm if perm is None else perm
    config.order = config.order if order is None else order
    return config


def _check_read(admin: AdminCore, address: str, topic: str, removed: range) -> Op[None]:
    """Raise UsageError if queues of a topic hold messages that a group has not read, or that no group reads."""
    if not removed:
        return
    route = yield from admin.topic_route(topic)
    known = yield from topic_ends(route, address, admin.wire(topic), admin.settings.request_timeout_ms)
    ends = {queue.queue_id: (each.min_offset, each.max_offset) for queue, each in known.items() if queue.queue_id in removed}
    groups = (yield from _answer(admin, address, QueryTopicConsumeByWho(topic=admin.wire(topic)), GroupList)).group_list
    unread: dict[str, int] = {}
    for group in sorted(groups):
        request = GetConsumeStats(consumer_group=group, topic=admin.wire(topic))
        table = (yield from _answer(admin, address, request, ConsumeStats)).offset_table
        reached = {queue.queue_id: wrapper.consumer_offset for queue, wrapper in table.items()}
        unread[group] = sum(max(0, high - max(low, reached.get(queue_id, 0))) for queue_id, (low, high) in ends.items())
    if not groups:
        unread["no group"] = sum(high - low for low, high in ends.values())
    group, count = max(unread.items(), key=lambda item: item[1])
    if count:
        who = "which no group reads" if not groups else f"which group {group} has not read"
        raise UsageError(
            f"queues {removed[0]} to {removed[-1]} of topic {topic} on {address} hold {count} messages {who}, and would not be "
            "read any more: nothing is changed. Write to fewer queues until they are read, or give force (--force)"
        )


def _asked(admin: AdminCore, address: str, request: Header) -> Op[Command]:
    return (yield from ask(address, request, b"", admin.settings.request_timeout_ms))


def _answer(admin: AdminCore, address: str, request: Header, cls: type[T]) -> Op[T]:
    return from_json(cls, (yield from _asked(admin, address, request)).body)
