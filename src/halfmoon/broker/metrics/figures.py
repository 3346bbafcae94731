"""The values of a broker's metrics, gathered a few at a time: see `halfmoon.metrics.Samples`. Changes nothing, reads no clock."""

from __future__ import annotations

from collections.abc import Generator

from halfmoon.broker.broker import Broker
from halfmoon.broker.metrics import declared as m
from halfmoon.broker.metrics.lag import OldestMessages
from halfmoon.broker.names import DEAD_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic
from halfmoon.instant import Instant
from halfmoon.limits import STUCK_MS
from halfmoon.metrics import Metric, Samples
from halfmoon.model import MessageModel

_QUEUES_AT_ONCE = 256


class Figures:
    """Present values of one broker's metrics."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._context = broker, broker.context
        self._store, self._stats = broker.store, broker.stats
        self._cluster, self._name = broker.settings.cluster, broker.settings.name
        self._address = f"{broker.settings.address}:{broker.settings.port}"
        self.oldest = OldestMessages(broker.store)

    def samples(self, now: Instant) -> Samples:
        """Yield all; those of topics and groups come last."""
        self.oldest.begin()
        yield from self._of_broker()
        yield None
        yield from self._runtime(now)
        yield None
        yield from self._broker.services.samples((self._name,), now)
        own = self._context.topics.own_names()
        for topic in self._context.topics.names():
            yield from self._topic(topic, is_own=topic in own or is_system_topic(topic))
        yield from self._groups(now)

    # ------------------------------------------------------------ the broker

    def _of_broker(self) -> Samples:
        broker, store, stats, labels = self._broker, self._store, self._stats, (self._name,)
        usage = store.disk_usage()
        rated = (self._cluster, self._address, self._name)
        yield m.PUTS_RATE, rated, stats.per_second("BROKER_PUT_NUMS")[0]
        yield m.GETS_RATE, rated, stats.per_second("BROKER_GET_NUMS")[0]
        yield m.TOPICS, labels, len(broker.topics.names())
        yield m.QUEUES, labels, len(store.queues)
        yield m.GROUPS, labels, len(broker.groups.names())
        yield m.WRITABLE, labels, int(store.refusal is None)
        yield m.UNSAVED, labels, len(broker.tables.failed)
        yield m.DISK_FREE, labels, usage.free_bytes
        yield m.DISK_USED, labels, usage.total_bytes - usage.free_bytes
        if (ends_ms := broker.admin.certificate_expires_ms()) is not None:
            yield m.CERTIFICATE, labels, ends_ms / 1000
        yield m.LOG_BYTES, labels, store.end_offset - store.min_offset

    def _runtime(self, now: Instant) -> Samples:
        texts, store = self._broker.admin.runtime_texts(now), self._store
        boot, version = texts["bootTimestamp"], texts["brokerVersion"]
        labels = (self._cluster, self._address, "", texts["brokerVersionDesc"], boot, version)
        usage = store.disk_usage()
        yield m.CAPACITY, labels, usage.total_bytes
        yield m.CAPACITY_FREE, labels, usage.free_bytes
        yield m.UNSYNCED, labels, store.end_offset - store.durable_offset
        for key, metric in m.RUNTIME.items():
            yield metric, labels, float(texts[key])
        for key, metrics in m.RUNTIME_RATES.items():
            for metric, text in zip(metrics, texts[key].split()):
                yield metric, labels, float(text)
        times = texts["putMessageDistributeTime"]
        for metric, part in zip(m.PUT_TIMES, () if times == "null" else times.split()):
            yield metric, labels, int(part.rpartition(":")[2])

    # ------------------------------------------------------------ topics and groups

    def _topic(self, topic: str, *, is_own: bool) -> Samples:
        config = self._context.topics.get(topic)
        if config is None:
            return
        end = 0
        for first in range(0, config.write_queue_nums, _QUEUES_AT_ONCE):
            last = min(first + _QUEUES_AT_ONCE, config.write_queue_nums)
            end += sum([self._store.queue_max(topic, queue_id) for queue_id in range(first, last)])
            yield None
        if not end and is_own:
            return
        labels = (self._cluster, self._name, topic)
        if topic.startswith(DEAD_PREFIX):
            yield m.DEAD_END, (self._cluster, self._name, topic.removeprefix(DEAD_PREFIX)), end
        elif topic.startswith(RETRY_PREFIX):
            yield m.RETRY_END, labels, end
        else:
            yield m.TOPIC_END, labels, end
        if (item := self._stats.item("TOPIC_PUT_NUMS", topic)) is not None:
            yield m.TOPIC_PUTS, labels, item.rate(0).per_second
        if (item := self._stats.item("TOPIC_PUT_SIZE", topic)) is not None:
            yield m.TOPIC_BYTES, labels, item.rate(0).per_second

    def _groups(self, now: Instant) -> Samples:
        """Yield what groups have consumed: where they have progress, and what they subscribe to."""
        keys = dict.fromkeys(self._context.offsets.keys())
        for group, info in list(self._context.clients.consumers.items()):
            yield None
            keys |= dict.fromkeys(f"{topic}@{group}" for topic in info.subscriptions)
        for key in keys:
            yield None
            topic, _, group = key.rpartition("@")
            if not group.startswith(SYSTEM_GROUP_PREFIX):
                yield from self._group(topic, group, now)
        for group in self._context.groups.names():
            yield None
            if not group.startswith(SYSTEM_GROUP_PREFIX) and (waiting := self._broker.progress.redelivery(group)) is not None:
                yield m.REDELIVERY, (self._name, group), waiting

    def _group(self, topic: str, group: str, now: Instant) -> Samples:
        """Yield a group's progress in a topic.

        A group that is online has no lag in topics that it no longer subscribes to; a broadcasting group keeps no progress here.
        """
        config, info = self._context.topics.get(topic), self._context.clients.group(group)
        if config is None or (info is not None and info.subscriptions and topic not in info.subscriptions):
            return
        labels = (self._cluster, self._name, topic, group)
        key = f"{topic}@{group}"
        for metric, name in ((m.GROUP_GETS, "GROUP_GET_NUMS"), (m.GROUP_BYTES, "GROUP_GET_SIZE")):
            if (item := self._stats.item(name, key)) is not None:
                yield metric, labels, item.rate(0).per_second
        if (item := self._stats.item("SNDBCK_PUT_NUMS", key)) is not None:
            yield m.SENT_BACK, labels, item.rate(0).total
        if info is not None and info.model is MessageModel.BROADCASTING:
            return
        consumed, behind, since, stuck = yield from self._progress(topic, group, config.read_queue_nums, now)
        yield m.GROUP_OFFSET, labels, consumed
        yield m.ACCUMULATED, labels, behind
        if since is not None:
            yield m.LATENCY, labels, now.date - since
            yield m.LAG, labels, (now.date - since) / 1000
        members = 0 if info is None else len(info.members)
        yield m.STUCK, labels, stuck if members else 0
        yield _difference(topic), (group, topic, str(members), str(int(MessageModel.CLUSTERING))), behind

    def _progress(
        self, topic: str, group: str, queue_count: int, now: Instant
    ) -> Generator[None, None, tuple[int, int, int | None, int]]:
        """Return how many messages are consumed, how many are not, and when the oldest of these was stored (now: there are none).

        None: it is not known, because something could not be read or too much was. Last, in how many queues messages have waited
        for `STUCK_MS` without progress.
        """
        queues, offsets, oldest = self._store.queues, self._context.offsets, self.oldest
        consumed = behind = stuck = 0
        first: int | None = None
        is_known = True
        for queue_id in range(queue_count):
            if queue_id % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
                yield None
            queue = queues.get((topic, queue_id))
            if queue is None:
                continue
            offset = offsets.get(group, topic, queue_id) or 0
            consumed += offset
            if offset >= queue.max_offset:
                continue
            behind += queue.max_offset - offset
            reads = oldest.reads
            place = oldest.place(queue, max(offset, queue.min_offset))
            is_known = is_known and place is not None
            if place is not None and (first is None or place < first):
                first = place
            stuck += self._stands(group, topic, queue_id, place, now)
            if oldest.reads > reads:
                yield None
        stored_ms = now.date if first is None else oldest.stored_ms(first)
        return consumed, behind, None if stored_ms is None or not is_known else min(now.date, stored_ms), stuck

    def _stands(self, group: str, topic: str, queue_id: int, place: int | None, now: Instant) -> bool:
        """Return whether a message has waited for `STUCK_MS`, and the progress of its queue has stood still for as long."""
        if place is None or now.steady - self._broker.progress.unmoved_since(group, topic, queue_id) < STUCK_MS:
            return False
        stored_ms = self.oldest.stored_ms(place)
        return stored_ms is not None and now.date - stored_ms >= STUCK_MS


def _difference(topic: str) -> Metric:
    if topic.startswith(DEAD_PREFIX):
        return m.DEAD_DIFFERENCE
    return m.RETRY_DIFFERENCE if topic.startswith(RETRY_PREFIX) else m.DIFFERENCE
