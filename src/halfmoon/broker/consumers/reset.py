"""Moving a group to other offsets: to those of a time (222), or to given ones (31010). Its members are notified (220).

Has no state. Follows Broker2Client.resetOffset (RocketMQ 4.9.8), with the fields that 5.x added.
"""

from __future__ import annotations

from halfmoon.broker.consumers.clients import ConsumerGroup
from halfmoon.broker.consumers.offsets import PATH as OFFSETS
from halfmoon.broker.context import Context
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saves
from halfmoon.broker.service import Service
from halfmoon.errors import BrokerError, ConsumerNotOnline, GroupNotFound, IllegalOperation
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import ResetOffsetBody, TopicConfig, to_json
from halfmoon.wire.codes import VERSION_V3_0_7, Language
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.offset import NO_PROGRESS, InvokeBrokerToResetOffset, MoveGroupOffsets, ResetConsumerClientOffset

ALL, NO_OFFSET = -1, -1
"""In a 222 of 5.x: every queue; no given offset, but a time."""


class Resets(Service):
    """The service that answers 222 and 31010."""

    def __init__(self, context: Context) -> None:
        self._settings, self._store, self._topics, self._groups = context.settings, context.store, context.topics, context.groups
        self._clients, self._offsets, self._peers = context.clients, context.offsets, context.peers

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            InvokeBrokerToResetOffset: self.reset,
            MoveGroupOffsets: self.move,
        }

    @saves(OFFSETS)
    def reset(self, request: Request) -> Reply:
        """Move a group to the messages of a time (222): notify every member (220) and answer the offsets.

        Without force only queues that would go back are moved. Raises 206 when nobody of the group is online.

        Differs: the new offsets are the broker's at once, so that a queue which nobody holds now is moved as well; the original
        leaves it to the members to store them. A time below -1 and a queue that does not exist are refused.
        """
        header = request.header(InvokeBrokerToResetOffset)
        config = self._topics.get(header.topic)
        if config is None:
            raise BrokerError(f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}")
        if header.timestamp < -1:
            raise BrokerError(f"[reset-offset] not a timestamp: {header.timestamp} (-1: the end)")
        table = {}
        for queue_id in self._queue_ids(config, ALL if header.queue_id is None else header.queue_id):
            known = self._offsets.get(header.group, header.topic, queue_id)
            if known is None and queue_id >= config.write_queue_nums:
                continue  # only read, and not by this group
            if known is None:
                raise BrokerError(f"THe consumer group <{header.group}> not exist")
            wanted = self._wanted(header, queue_id)
            table[MessageQueue(header.topic, self._settings.name, queue_id)] = (
                wanted if header.is_force or wanted < known else known
            )
        info = self._clients.group(header.group)
        if info is None:
            raise ConsumerNotOnline(
                f"Consumer not online, so can not reset offset. Group: {header.group} Topic: {header.topic} "
                f"Timestamp: {header.timestamp}"
            )
        return self._move(header.topic, header.group, header.timestamp, table, info)

    def _queue_ids(self, config: TopicConfig, queue_id: int) -> range:
        if queue_id == ALL:
            return range(self._queue_count(config))
        self._check_queue(config, queue_id)
        return range(queue_id, queue_id + 1)

    def _check_queue(self, config: TopicConfig, queue_id: int) -> None:
        if not 0 <= queue_id < self._queue_count(config):
            raise BrokerError(f"queueId[{queue_id}] is illegal, topic {config.topic_name} has {self._queue_count(config)} queues")

    def _queue_count(self, config: TopicConfig) -> int:
        """Return how many queues are read or written: a topic that is to have fewer has some that are only read."""
        return max(config.write_queue_nums, config.read_queue_nums)

    def _wanted(self, header: InvokeBrokerToResetOffset, queue_id: int) -> int:
        if header.offset is not None and header.offset != NO_OFFSET:
            return self._existing(header.topic, queue_id, header.offset)
        end = max(0, self._store.queue_max(header.topic, queue_id))
        if header.timestamp == -1:
            return end
        offset = max(0, self._store.offset_at(header.topic, queue_id, header.timestamp))
        newest = offset == end - 1 and 0 < self._store.store_ms(header.topic, queue_id, offset) < header.timestamp
        return end if newest else offset  # as in 5.x; with 4.x the newest message comes again

    def _existing(self, topic: str, queue_id: int, offset: int) -> int:
        low, high = max(0, self._store.queue_min(topic, queue_id)), max(0, self._store.queue_max(topic, queue_id))
        if not low <= offset <= high:
            raise BrokerError(f"offset {offset} of queue {queue_id} of topic {topic} is outside {low} to {high}")
        return offset

    @saves(OFFSETS)
    def move(self, request: Request) -> Reply:
        """Move a group to the offsets of the body (31010), online or not; all of them, or none when one is refused.

        Raises TopicNotFound, GroupNotFound, and BrokerError for a queue or an offset that does not exist here; IllegalOperation
        where the progress is another than the request says.
        """
        header = request.header(MoveGroupOffsets)
        config = self._topics.existing(header.topic)
        info = self._clients.group(header.group)
        if info is None and self._groups.get(header.group) is None:
            raise GroupNotFound(f"consumer group[{header.group}] not exist")
        table = request.body(ResetOffsetBody).offset_table
        for queue, offset in table.items():
            if queue.topic != header.topic or queue.broker_name != self._settings.name:
                raise BrokerError(f"{queue} is not a queue of topic {header.topic} at this broker")
            self._check_queue(config, queue.queue_id)
            self._existing(header.topic, queue.queue_id, offset)
            now = self._offsets.get(header.group, header.topic, queue.queue_id)
            if header.unmoved_from not in (None, NO_PROGRESS if now is None else now):
                raise IllegalOperation(f"the group is at offset {now} in queue {queue.queue_id}, not at {header.unmoved_from}")
        return self._move(header.topic, header.group, 0, dict(table), info)

    def _move(self, topic: str, group: str, timestamp: int, table: dict[MessageQueue, int], info: ConsumerGroup | None) -> Reply:
        members = list(info.members.values()) if info is not None else []
        for member in members:
            if member.version < VERSION_V3_0_7:
                raise BrokerError(f"the client does not support this feature. version={member.version}")
        if not table:  # a question: members that are told of a reset pause, whatever it moves
            return Reply(body=to_json(ResetOffsetBody()))
        for queue, offset in table.items():
            self._offsets.put(group, topic, queue.queue_id, offset)
        offsets = ResetOffsetBody(offset_table=table)
        body, as_list = to_json(offsets), offsets.list_json()
        notice = ResetConsumerClientOffset(topic=topic, group=group, timestamp=timestamp, is_force=False)
        for member in members:
            command = request_command(notice, as_list if member.language == Language.CPP else body, oneway=True)
            command.language = int(Language.JAVA)
            self._peers.answer(member.peer, encode(command))
        return Reply(body=body)
