"""The lowest and the next offset of each queue of a topic, also of those that are read and not written.

Brokers list the queues that are written (202). The others are asked for one by one: a topic that is to have fewer queues has queues
that are only read, and what is not listed is not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from halfmoon.client.core.ask import ask
from halfmoon.effects import Op
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import TopicOffset, TopicRouteData, TopicStatsTable, from_json
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from halfmoon.wire.table import Header


def topic_ends(route: TopicRouteData, address: str, topic: str, timeout_ms: int) -> Op[dict[MessageQueue, TopicOffset]]:
    """Return the ends of all queues of a topic, called as on the wire, at one broker of its route.

    Raises BrokerError, NetworkError.
    """

    def asked(request: Header) -> Op[Command]:
        return (yield from ask(address, request, b"", timeout_ms))

    table = from_json(TopicStatsTable, (yield from asked(GetTopicStatsInfo(topic=topic))).body).offset_table
    names = {broker.broker_name for broker in route.broker_datas if address in broker.broker_addrs.values()}
    wanted = [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.broker_name in names
        for queue_id in range(data.read_queue_nums)
    ]
    missing = [queue for queue in wanted if queue not in table]
    ends = yield from single_ends(asked, topic, [queue.queue_id for queue in missing])
    return {**table, **{queue: ends[queue.queue_id] for queue in missing}}


def single_ends(asked: Callable[[Header], Op[Command]], topic: str, queue_ids: Iterable[int]) -> Op[dict[int, TopicOffset]]:
    """Return the ends of queues of one broker, each asked for by itself. Raises what ``asked`` raises."""
    ends: dict[int, TopicOffset] = {}
    for queue_id in queue_ids:
        offsets = []
        for request in (GetMinOffset, GetMaxOffset):
            reply = yield from asked(request(topic=topic, queue_id=queue_id))
            offsets.append(max(0, reply.header(OffsetReply).offset))
        ends[queue_id] = TopicOffset(min_offset=offsets[0], max_offset=max(offsets))
    return ends
