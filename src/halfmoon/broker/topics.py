"""Topics of this broker: their queues and permissions, saved as ``config/topics.json``; creation by send and by command.

Knows nothing of messages. Follows TopicConfigManager (RocketMQ 4.9.8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping

from msgspec import structs

from halfmoon.broker.names import (
    BATCH_TOPIC,
    BENCHMARK_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    check_topic,
    is_system_topic,
)
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.tables import Tables
from halfmoon.errors import BrokerError, SystemBusy, TopicNotFound, TopicRecreated
from halfmoon.wire.bodies import DataVersion, TopicConfig, TopicConfigTable, from_json, to_json
from halfmoon.wire.codes import Perm

log = logging.getLogger("halfmoon.broker")

PATH = "config/topics.json"
UNIT, UNIT_SUB = 1, 2
NOWHERE = 2**63 - 1
FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


class Topics:
    """The topic table with its version.

    ``on_change(topic)`` is called with each created or changed topic, or None for many; before that ``on_recreated(topic)`` with
    a topic that was deleted since the start.
    """

    def __init__(self, settings: BrokerSettings, tables: Tables, now: int, log_end: Callable[[], int] = lambda: 0) -> None:
        self._settings, self._tables, self._log_end = settings, tables, log_end
        self.epoch = 0
        """Counts changes, so that caches derived from the table can be checked cheaply."""
        self.on_change: Callable[[str | None], None] = lambda topic: None
        saved = tables.load(PATH, lambda data: from_json(TopicConfigTable, data, bounds=None))
        self._table: dict[str, TopicConfig] = dict(saved.topic_config_table) if saved is not None else {}
        self.version: DataVersion = saved.data_version if saved is not None else DataVersion(timestamp=now)
        self.on_recreated: Callable[[str], None] = lambda topic: None
        self._deleted: dict[str, None] = {}
        self._deleted_birth_ms = -1  # the newest of a deleted topic: one created in the same millisecond gets another
        self._most_queues: dict[str, int] = {}
        """Earlier queue counts of topics that have fewer queues now."""
        self._texts: dict[str, bytes] = {}
        """Topics encoded as JSON, so that one more in a large table does not cost encoding all."""
        self._changed = tables.add(PATH, self._dump)
        if others := self._other_broker_names():
            log.warning(
                "the directory is that of broker %s, and starts as %s: clients see other queues; give --broker-name %s",
                " or ".join(others), settings.name, others[0],
            )  # fmt: skip
        self.predefine(now)

    def predefine(self, now: int) -> None:
        """Add the broker's own topics that are missing under its settings, also where the table is at its bound."""
        for config in self._predefined():
            if config.topic_name not in self._table:
                self._enter(config, now)

    def _other_broker_names(self) -> list[str]:
        """Return the names of brokers that ran on this directory, if none ran under this name: each made a topic of its name."""
        own = self.own_names() | {TEMPLATE_TOPIC}
        return [] if self._settings.name in self._table else sorted(
            name
            for name, config in self._table.items()
            if config.perm & Perm.INHERIT and (config.read_queue_nums, config.write_queue_nums) == (1, 1)
            and name not in own and not is_system_topic(name)
        )  # fmt: skip

    def _predefined(self) -> list[TopicConfig]:
        s = self._settings
        configs = [
            topic_config(SELF_TEST_TOPIC, 1),
            topic_config(BENCHMARK_TOPIC, 1024),
            topic_config(s.cluster, 16, Perm.INHERIT | (Perm.READ | Perm.WRITE if s.cluster_topic else 0)),
            topic_config(s.name, 1, Perm.INHERIT | (Perm.READ | Perm.WRITE if s.broker_topic else 0)),
            topic_config(OFFSET_MOVED_TOPIC, 1),
            topic_config(SCHEDULE_TOPIC, 18),
            topic_config(TIMER_TOPIC, 1),
            topic_config(f"{s.cluster}_REPLY_TOPIC", 1),
            topic_config(HALF_TOPIC, 1),
            topic_config(OP_TOPIC, 1),
            topic_config(BATCH_TOPIC, 2),
        ]
        if s.auto_create_topics:
            configs.append(topic_config(TEMPLATE_TOPIC, s.default_queue_count, 7))
        if s.trace_topic:
            configs.append(topic_config(s.trace_topic_name, 1))
        return configs

    def _dump(self) -> bytes:
        texts = self._texts
        for name, config in self._table.items():
            if name not in texts:
                texts[name] = b"%s:%s" % (to_json(name), to_json(config))
        return b'{"dataVersion":%s,"topicConfigTable":{%s}}' % (to_json(self.version), b",".join(texts.values()))

    def _touch(self, now: int) -> None:
        self.version = self.version.next(now)
        self.epoch += 1
        self._changed()

    # ------------------------------------------------------------ reading

    def get(self, topic: str) -> TopicConfig | None:
        """Return the topic's configuration, or None."""
        return self._table.get(topic)

    def existing(self, topic: str, advice: str = f", apply first please!{FAQ}") -> TopicConfig:
        """Return the topic's configuration. Raises TopicNotFound (17), whose remark ends with an advice."""
        config = self._table.get(topic)
        if config is None:
            raise TopicNotFound(f"topic[{topic}] not exist{advice}")
        return config

    def queue_count(self, config: TopicConfig) -> int:
        """Return how many queues of a topic are read, or may have messages of the time when it had more."""
        return max(config.read_queue_nums, self._most_queues.get(config.topic_name, 0))

    def names(self) -> list[str]:
        """Return the names of all topics."""
        return list(self._table)

    def table(self) -> TopicConfigTable:
        """Return all topics with the version, as registration and slaves read it.

        Permissions that the broker does not have are left out.

        Follows registerBrokerAll (4.9.8): a broker without R or W announces its own permission for every topic.
        """
        permission = self._settings.permission
        if permission & 6 == 6:
            return TopicConfigTable(topic_config_table=self._table, data_version=self.version)
        changed = {name: _with_perm(config, config.perm & permission) for name, config in self._table.items()}
        return TopicConfigTable(topic_config_table=changed, data_version=self.version)

    def text(self) -> bytes | None:
        """Return `table` as JSON, at the cost of what changed; None when topics are announced with less permission."""
        return self._dump() if self._settings.permission & 6 == 6 else None

    # ------------------------------------------------------------ creating

    def for_send(self, topic: str, template: str | None, queue_count: int | None, unit: bool, now: int) -> TopicConfig:
        """Return the topic's configuration for a send, created from the sender's template topic where that is allowed.

        Raises:
            TopicNotFound: unknown, and the template does not exist or does not let others inherit.
            BrokerError: unknown, and the sender names no template or no number of queues.
            ServiceNotAvailable: unknown, and the table of topics cannot be saved.
        """
        config = self._table.get(topic)
        if config is not None:
            return config
        self._tables.check(PATH)
        if template is None or queue_count is None:
            raise BrokerError(f"topic[{topic}] not exist, and the send lacks its defaultTopic or defaultTopicQueueNums")
        parent = self._table.get(template)
        if parent is not None and parent.perm & Perm.INHERIT and (template != TEMPLATE_TOPIC or self._settings.auto_create_topics):
            count = max(0, min(queue_count, parent.write_queue_nums))
            config = topic_config(topic, count, parent.perm & ~Perm.INHERIT, UNIT if unit else 0)
            config.topic_filter_type = parent.topic_filter_type
            return self.put(config, now)
        if topic.startswith(RETRY_PREFIX):
            return self.put(topic_config(topic, 1, 6, UNIT if unit else 0), now)
        raise TopicNotFound(f"topic[{topic}] not exist, apply first please!{FAQ}")

    def ensure(self, topic: str, queue_count: int, now: int, *, perm: int = 6, sys_flag: int = 0) -> TopicConfig:
        """Return the topic's configuration, created with these values when it is missing."""
        return self._table.get(topic) or self.put(topic_config(topic, queue_count, perm, sys_flag), now)

    def make_readable(self, topic: str, queue_id: int, now: int) -> str | None:
        """Let consumers see a queue whose topic may have been deleted or shrunk; return what was changed, None: nothing.

        Raises SystemBusy (2) when there are too many topics.
        """
        config = self._table.get(topic)
        if config is None:
            self.ensure(topic, queue_id + 1, now)
            return f"topic {topic} is created again"
        if queue_id >= config.read_queue_nums:
            self.put(structs.replace(config, read_queue_nums=queue_id + 1), now)
            return f"topic {topic} has {queue_id + 1} read queues again"
        return None

    def put(self, config: TopicConfig, now: int) -> TopicConfig:
        """Create or replace a topic. Raises SystemBusy when the table is at its bound."""
        if config.topic_name not in self._table and len(self._table) >= self._settings.topics_max:
            raise SystemBusy(f"the broker has {len(self._table)} topics, its bound (topics_max)")
        known = self._table.get(config.topic_name)
        config.birth_ms = max(now, self._deleted_birth_ms + 1) if known is None else known.birth_ms
        config.birth_offset = self._log_end() if known is None else known.birth_offset
        if known is not None and known.read_queue_nums > config.read_queue_nums:
            self._most_queues[config.topic_name] = self.queue_count(known)
        if config.topic_name in self._deleted:
            del self._deleted[config.topic_name]
            self.on_recreated(config.topic_name)
        return self._enter(config, now)

    def _enter(self, config: TopicConfig, now: int) -> TopicConfig:
        self._table[config.topic_name] = config
        self._texts.pop(config.topic_name, None)
        self._touch(now)
        self.on_change(config.topic_name)
        return config

    def adopt(self, queue_counts: Mapping[str, int], now: int) -> None:
        """Add topics that have queues on disk but are not in the table, because a crash came before it was saved.

        Their birth is unknown: with a new one they would look like recreated topics.
        """
        for topic, queue_count in queue_counts.items():
            if topic not in self._table:
                self._enter(topic_config(topic, queue_count), now)
            elif queue_count > self._table[topic].read_queue_nums:
                self._most_queues[topic] = queue_count

    def begin_at(self, log_end: int, now: int) -> bool:
        """Take back births that lie behind the end of a log whose end was lost; return whether there were any."""
        late = [config for config in self._table.values() if (config.birth_offset or 0) > log_end]
        for config in late:
            self._enter(structs.replace(config, birth_offset=log_end), now)
        return bool(late)

    def renew(self, now: int) -> None:
        """Give all topics another birth: offsets of the store that this one is a copy of may name other messages here."""
        for config in list(self._table.values()):
            self._enter(structs.replace(config, birth_ms=max(now, (config.birth_ms or 0) + 1)), now)

    def accepts_from(self, topic: str) -> int:
        """Return the lowest physical offset of the delayed and half messages that may still be delivered to a topic.

        Messages below it were accepted for an earlier topic of this name, which was deleted. It is 0 where the broker creates
        topics by itself: then a message may recreate its topic. It is beyond the log (`NOWHERE`) where there is no such topic.
        """
        if self._settings.auto_create_topics or topic.startswith(RETRY_PREFIX):
            return 0
        config = self._table.get(topic)
        return NOWHERE if config is None else config.birth_offset or 0

    def gone(self, topic: str) -> str:
        """Return the reason why a message below `accepts_from` is not delivered, for people."""
        return f"topic {topic} was deleted{'' if self._table.get(topic) is None else ' and created again'} after it was accepted"

    def command(self, config: TopicConfig, now: int) -> None:
        """Create or replace a topic by command (17). Raises BrokerError 1 where `check` does."""
        self.check(config)
        self.put(config, now)

    def check(self, config: TopicConfig) -> None:
        """Raise the refusal (code 1) of a bad or system name, impossible numbers, or an unknown type of filter."""
        self._check_free(config.topic_name)
        if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
            raise BrokerError(f"topicFilterType is SINGLE_TAG or MULTI_TAG, not {config.topic_filter_type[:40]}")
        for count in (config.read_queue_nums, config.write_queue_nums):
            if not 0 <= count <= self._settings.queues_max:
                raise BrokerError(f"a topic has 0 to {self._settings.queues_max} queues, not {count}")
        if not 0 <= config.perm <= 15:
            raise BrokerError(f"perm {config.perm} is not made of the bits 1, 2, 4 and 8")

    def check_room(self, topics: Iterable[str], topics_max: int | None = None) -> None:
        """Raise SystemBusy when the table has no room for all these topics; ``topics_max``: None: as it is set."""
        bound = self._settings.topics_max if topics_max is None else topics_max
        count = len(self._table) + len({topic for topic in topics if topic not in self._table})
        if count > max(len(self._table), bound):
            raise SystemBusy(f"the broker would have {count} topics, more than its bound of {bound} (topics_max)")

    def _check_free(self, topic: str) -> None:
        check_topic(topic)
        if is_system_topic(topic) or topic in self.own_names():
            raise BrokerError(f"The topic[{topic}] is conflict with system topic.")

    def own_names(self) -> set[str]:
        """Return the names of system topics that depend on this broker's settings; `SYSTEM_TOPICS` are those of every broker."""
        s = self._settings
        return {s.cluster, s.name, f"{s.cluster}_REPLY_TOPIC"} | ({s.trace_topic_name} if s.trace_topic else set())

    def delete(self, topic: str, now: int) -> None:
        """Forget a topic (215). Raises BrokerError 1 for system topics."""
        self._check_free(topic)
        deleted = self._table.pop(topic, None)
        if deleted is not None:
            self._deleted_birth_ms = max(self._deleted_birth_ms, deleted.birth_ms or 0)
            self._texts.pop(topic, None)
            self._most_queues.pop(topic, None)
            self._deleted[topic] = None
            if len(self._deleted) > self._settings.topics_max:
                del self._deleted[next(iter(self._deleted))]
            self._touch(now)
            self.on_change(None)

    def settings_changed(self, now: int, *, announced: bool) -> None:
        """Let caches go that depend on settings; ``announced``: name servers must be told, for permissions are others."""
        self.epoch += 1
        if announced:
            self._touch(now)
            self.on_change(None)

    def copy(self, table: TopicConfigTable, gone: Container[str]) -> None:
        """Have a slave show its master's table, and of its own topics those that are not ``gone``: retry topics of new members."""
        own = {name: config for name, config in self._table.items() if name not in gone}
        self._table, self.version = own | table.topic_config_table, table.data_version
        self._texts.clear()
        self.epoch += 1
        self.on_change(None)

    def set_ordered(self, topics: set[str]) -> None:
        """Mark exactly these topics as ordered; a name server's reply lists them."""
        for name, config in self._table.items():
            if config.order != (name in topics):
                config.order = name in topics
                self._texts.pop(name, None)
                self.epoch += 1


def check_birth(topic: str, birth_ms: int | None, claimed: int | None) -> None:
    """Check that an offset speaks of the topic that is there, made at ``birth_ms``; ``claimed`` is the birth that came with it.

    None and numbers below 0 say nothing. A topic whose birth is not known (`Topics.adopt`) may be any. Peers are told 0 of it; one
    that comes back with 0 for a known birth speaks of another topic, for nothing else gives a topic a birth.
    Raises TopicRecreated (31017).
    """
    if claimed is not None and claimed >= 0 and birth_ms is not None and claimed != birth_ms:
        raise TopicRecreated(
            f"topic {topic} was deleted and made again, or restored from a backup: the offset is one of the topic made at"
            f" {claimed}, not at {birth_ms}"
        )


def topic_text(config: TopicConfig) -> str:
    """Return a configuration as remarks show it. Follows TopicConfig.toString and PermName.perm2String."""
    perm = "".join(letter if config.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, topicFilterType={config.topic_filter_type}, "
        f"topicSysFlag={config.topic_sys_flag}, order={'true' if config.order else 'false'}]"
    )


def topic_config(topic: str, queue_count: int, perm: int = 6, sys_flag: int = 0) -> TopicConfig:
    """Return a configuration with the same number of queues to read and to write."""
    return TopicConfig(
        topic_name=topic, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=int(perm), topic_sys_flag=sys_flag
    )


def _with_perm(config: TopicConfig, perm: int) -> TopicConfig:
    changed = topic_config(config.topic_name, 0, perm, config.topic_sys_flag)
    changed.read_queue_nums, changed.write_queue_nums = config.read_queue_nums, config.write_queue_nums
    changed.topic_filter_type, changed.order = config.topic_filter_type, config.order
    return changed
