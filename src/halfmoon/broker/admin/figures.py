"""Figures of topics for lists of them: messages, rate, size and groups of many topics in one request."""

from __future__ import annotations

from halfmoon.broker.context import Context
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.service import Service
from halfmoon.wire.bodies import TopicFigures, TopicFiguresTable, TopicList, to_json
from halfmoon.wire.headers.topic import GetTopicFigures

QUEUES_MAX = 256
"""Queues with messages that one request looks at, some 8 ms; the other topics of the request are left to the next one."""


class Figures(Service):
    """The service that answers 31050."""

    queues_max = QUEUES_MAX

    def __init__(self, context: Context) -> None:
        self._store, self._topics, self._stats = context.store, context.topics, context.stats
        self._offsets, self._clients = context.offsets, context.clients

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {GetTopicFigures: self.figures}

    def figures(self, request: Request) -> Reply:
        """Return the figures of the first topics of a list (31050); topics that this broker does not have are left out."""
        names = request.body(TopicList).topic_list
        groups, rows, looked, answered = self._groups(set(names)), list[TopicFigures](), 0, 0
        for name in names:
            config = self._topics.get(name)
            if config is not None:
                queue_ids = range(max(config.read_queue_nums, config.write_queue_nums))
                used = [queue_id for queue_id in queue_ids if self._count(name, queue_id)]
                if answered and looked + len(used) > self.queues_max:
                    break
                looked += len(used)
                rows.append(TopicFigures(
                    name, sum(self._count(name, queue_id) for queue_id in used), self._stats.incoming(name),
                    sum(self._store.ranges.size_bytes(name, queue_id) for queue_id in used), sorted(groups.get(name, ())),
                ))  # fmt: skip
            answered += 1
        return Reply(body=to_json(TopicFiguresTable(rows, answered)))

    def _count(self, topic: str, queue_id: int) -> int:
        return self._store.ranges.message_count(topic, queue_id)

    def _groups(self, names: set[str]) -> dict[str, set[str]]:
        """Return the groups that consume each topic or have progress in it."""
        groups: dict[str, set[str]] = {}
        progress = self._offsets.keys()
        for key in progress:
            topic, _, group = key.rpartition("@")
            if topic in names:
                groups.setdefault(topic, set()).add(group)
        for group, info in self._clients.consumers.items():
            for topic in names.intersection(info.subscriptions):
                groups.setdefault(topic, set()).add(group)
        return groups
