"""Trims of topics: offsets of queues below which an operator wants nothing to be delivered any more.

Only the lowest offset of a queue moves; log files keep the messages until they expire. The offsets are a table of their own,
because queues are derived from the log and would show the messages again once they are rebuilt.
"""

from __future__ import annotations

import logging

from halfmoon.broker.context import Context
from halfmoon.broker.names import is_system_topic
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saves
from halfmoon.broker.service import Service
from halfmoon.errors import InvalidParameter
from halfmoon.wire.bodies import TrimmedQueue, TrimmedQueues, TrimTable, from_json, to_json
from halfmoon.wire.headers.topic import TrimTopic

PATH = "config/topicTrims.json"

log = logging.getLogger("halfmoon.broker")


class Trimming(Service):
    """The service that answers 31051."""

    def __init__(self, context: Context) -> None:
        """Trim the queues again that were trimmed. Raises StoreError for a table that cannot be read."""
        self._store, self._topics = context.store, context.topics
        saved = context.tables.load(PATH, lambda data: from_json(TrimTable, data, bounds=None))
        self._changed = context.tables.add(PATH, lambda: to_json(TrimTable(self._table)))
        before = {} if saved is None else saved.trims
        self._table: dict[str, dict[int, int]] = {}
        for topic, offsets in before.items():
            for queue_id, offset in offsets.items():
                self._trim(topic, queue_id, offset)
        if self._table != before:  # queues are gone, or lost their ends: what comes there now is new
            self._changed()

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {TrimTopic: self.trim}

    def topic_deleted(self, topic: str) -> None:
        """Forget the trims of a topic that was deleted: another one of its name begins anew."""
        if self._table.pop(topic, None) is not None:
            self._changed()

    @saves(PATH)
    def trim(self, request: Request) -> Reply:
        """Raise the lowest offsets of a topic's queues (31051); return what they were, and become."""
        header = request.header(TrimTopic)
        topic = header.topic
        self._topics.existing(topic, advice="")
        if is_system_topic(topic):
            raise InvalidParameter(f"the topic[{topic}] belongs to the broker")
        if (header.offset is None) == (header.before_ms is None):
            raise InvalidParameter("a trim needs an offset or a time, and not both")
        found = []
        for queue_id in self._store.queue_ids(topic):
            if header.queue_id in (None, queue_id):
                low, high = self._store.queue_min(topic, queue_id), self._store.queue_max(topic, queue_id)
                wanted = header.offset
                if wanted is None:
                    wanted = self._store.bound_at(topic, queue_id, header.before_ms or 0, upper=False) if low < high else low
                found.append(TrimmedQueue(queue_id, low, min(max(low, wanted), high)))
        if not header.dry_run:
            for queue in found:
                if queue.then > queue.min_offset:
                    queue.then = self._trim(topic, queue.queue_id, queue.then)
            self._changed()
            count = sum(queue.then - queue.min_offset for queue in found)
            log.warning("a topic is trimmed, as %s asks: topic=%s messages=%d", request.peer.remote, topic, count)
        return Reply(body=to_json(TrimmedQueues(found)))

    def _trim(self, topic: str, queue_id: int, offset: int) -> int:
        """Trim a queue that is there, and note it; return its lowest offset."""
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return 0
        queue.trim(offset)
        self._table.setdefault(topic, {})[queue_id] = queue.trimmed
        return queue.min_offset
