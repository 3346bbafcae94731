"""Queries without consuming: messages by key and by id, offsets by time, and the ends of queues.

Follows QueryMessageProcessor and AdminBrokerProcessor (RocketMQ 4.9.8). Reads only.
"""

from __future__ import annotations

from halfmoon.broker.context import Context
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.service import Service
from halfmoon.errors import BrokerError, CorruptRecord, QueryNotFound
from halfmoon.hot import ENTRY
from halfmoon.store.records import RecordFacts, check_at
from halfmoon.wire.bodies import ConsumeQueueEntries, ConsumeQueueEntry, SubscriptionData, to_json
from halfmoon.wire.headers.offset import (
    GetEarliestMsgStoretime,
    GetEarliestMsgStoretimeReply,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    SearchOffsetByTimestamp,
)
from halfmoon.wire.headers.pull import QueryConsumeQueue, QueryMessage, QueryMessageReply, ViewMessageById

ENTRIES_MAX = 1000
"""Entries of a consume queue in one reply: a file has 300,000, which would take seconds and 20 MB to show."""

NOT_FOUND = "can not find message, maybe time range not correct"


class Queries(Service):
    """The service that answers 12, 33, 29 to 32 and 321."""

    def __init__(self, context: Context) -> None:
        self._settings, self._store, self._stale_offsets = context.settings, context.store, context.stale_offsets
        self._clients = context.clients

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            QueryMessage: self.by_key,
            ViewMessageById: self.by_id,
            SearchOffsetByTimestamp: self.offset_by_time,
            GetMaxOffset: self.max_offset,
            GetMinOffset: self.min_offset,
            GetEarliestMsgStoretime: self.earliest_ms,
            QueryConsumeQueue: self.entries,
        }

    def by_key(self, request: Request) -> Reply:
        """Find messages of a topic by key (12). The index compares hashes: clients drop messages with other keys."""
        header = request.header(QueryMessage)
        most = self._settings.unique_query_max if header.unique_key_query else min(header.max_num, self._settings.query_max)
        if most < 1:
            return Reply(
                QueryNotFound.code, NOT_FOUND, QueryMessageReply(index_last_update_timestamp=0, index_last_update_phyoffset=0)
            )
        result = self._store.query(header.topic, header.key, most, header.begin_timestamp, header.end_timestamp)
        reply = QueryMessageReply(
            index_last_update_timestamp=result.last_ms, index_last_update_phyoffset=result.last_physical_offset
        )
        if not result.records:
            return Reply(QueryNotFound.code, NOT_FOUND, reply)
        return Reply(0, None, reply, b"".join(result.records))

    def by_id(self, request: Request) -> Reply:
        """Return the message at a physical offset (33); a damaged one is refused with the reason.

        Differs: the original returns the bytes, which a decoder refuses without saying what they are, and messages of deleted
        topics as long as the log has them.
        """
        offset = request.header(ViewMessageById).offset
        record = self._store.record(offset)
        if record is None:
            raise BrokerError(f"can not find message by the offset, {offset}")
        try:
            facts = check_at(record, 0, offset)
        except CorruptRecord as exc:
            raise BrokerError(f"record at {offset}: {exc.reason}") from exc
        if isinstance(facts, RecordFacts) and not self._store.is_message_of(facts.topic, facts.queue_id, offset):
            raise BrokerError(f"can not find message by the offset, {offset}: its topic {facts.topic} was deleted")
        return Reply(body=record)

    def offset_by_time(self, request: Request) -> Reply:
        """Return the offset of the message stored nearest to a time (29); with a 5.x boundary the lower or upper bound."""
        header = request.header(SearchOffsetByTimestamp)
        topic, queue_id, timestamp = header.topic, header.queue_id, header.timestamp
        if header.boundary_type is None:
            return self._offset(request, topic, queue_id, self._store.offset_at(topic, queue_id, timestamp))
        upper = header.boundary_type.upper() == "UPPER"
        return self._offset(request, topic, queue_id, self._store.bound_at(topic, queue_id, timestamp, upper=upper))

    def max_offset(self, request: Request) -> Reply:
        """Return the end of a queue: the offset of its next visible message (30).

        With ``before``, which is ours alone, the offset behind the last message before that one, or the queue's first.
        """
        header = request.header(GetMaxOffset)
        end = self._store.reported_max(header.topic, header.queue_id)
        if header.before is not None and (queue := self._store.queues.get((header.topic, header.queue_id))) is not None:
            end = queue.real_before(min(header.before, queue.max_offset), queue.min_offset) + 1
        return self._offset(request, header.topic, header.queue_id, end)

    def min_offset(self, request: Request) -> Reply:
        """Return the offset of the oldest message (31); 0 for an empty queue."""
        header = request.header(GetMinOffset)
        return self._offset(request, header.topic, header.queue_id, max(0, self._store.queue_min(header.topic, header.queue_id)))

    def entries(self, request: Request) -> Reply:
        """Return entries of a consume queue as they are stored (321), not beyond the file in which the first one lies.

        With a group, also how it subscribes to the topic. Where no entry is, the reply is a success with a remark and no body, as
        in the original. Differs: at most `ENTRIES_MAX` entries; of a filter only the expression is shown.
        """
        header = request.header(QueryConsumeQueue)
        topic, place = header.topic, f"{header.queue_id}@{header.topic}"
        queue = self._store.queues.get((topic, header.queue_id))
        if queue is None:
            raise BrokerError(f"{place} is not exist!")
        if not queue.min_offset <= header.index < queue.max_offset:
            return Reply(0, f"Index {header.index} of {place} is not exist!")
        body = ConsumeQueueEntries(max_queue_index=queue.max_offset, min_queue_index=queue.min_offset)
        if header.consumer_group is not None:
            info = self._clients.group(header.consumer_group)
            known = info.subscriptions.get(topic) if info is not None else None
            body.filter_data = f"{header.consumer_group}@{topic} is not online!"
            if known is not None:
                body.subscription_data, body.filter_data = SubscriptionData.of(known), "null"
                if known.expression_type != "TAG":
                    body.filter_data = to_json({"expression": known.expression, "expressionType": known.expression_type}).decode()
        entries = queue.entries(header.index, max(0, min(header.count, ENTRIES_MAX)))
        body.queue_data = [ConsumeQueueEntry(*entry) for entry in ENTRY.iter_unpack(entries)]
        return Reply(body=to_json(body))

    def _offset(self, request: Request, topic: str, queue_id: int, offset: int) -> Reply:
        self._stale_offsets.give(request.peer, topic, queue_id, offset)
        return Reply(header=OffsetReply(offset=offset))

    def earliest_ms(self, request: Request) -> Reply:
        """Return when the oldest message was stored (32); -1 for none."""
        header = request.header(GetEarliestMsgStoretime)
        lowest = self._store.bound_at(header.topic, header.queue_id, 0, upper=False)  # skips damaged records
        return Reply(header=GetEarliestMsgStoretimeReply(timestamp=self._store.store_ms(header.topic, header.queue_id, lowest)))
