"""Finding all records of one message at all brokers: visible, half, parked, given back, dead; and trace records. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.find import QUERY_TIMEOUT_MS, broker_of, message_by_offset_id
from halfmoon.client.core.admin.half_queue import EXPIRED_TOPIC, HALF_TOPIC
from halfmoon.client.core.admin.pages import Master
from halfmoon.client.core.ask import ask
from halfmoon.client.core.consume.pull import unpacked
from halfmoon.client.core.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from halfmoon.effects import Op, gather, now
from halfmoon.errors import BrokerError, HalfmoonError, QueryNotFound, UsageError
from halfmoon.model import StoredMessage
from halfmoon.wire.bodies import GroupList, TopicList, from_json
from halfmoon.wire.bodies.traces import TraceRecord, decode_traces
from halfmoon.wire.headers.pull import QueryMessage
from halfmoon.wire.headers.route import GetAllTopicListFromNameserver
from halfmoon.wire.headers.topic import QueryTopicConsumeByWho
from halfmoon.wire.record import decode_records

PARKING = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
"""Topics where a message waits for its time."""

TOPICS_MAX, GROUPS_MAX = 1000, 200
"""Topics that are searched for a message whose topic is not given, and groups of a topic that are looked at."""
SIDE_BY_SIDE = 16
"""Questions under way at the same time, so that a search is no storm."""
COPIES_MAX = 64
REPORT_BYTES_MAX = 1024 * 1024
"""How much of one trace message's body is read. Clients send up to 128,000 bytes."""


class Copies:
    """All records of a message, each kind the oldest first."""

    def __init__(self, brokers: Sequence[Master], topic: str, messages: list[StoredMessage], silent: list[str]) -> None:
        self._names = {master.address: master.name for master in brokers}
        self._all = sorted(messages, key=lambda copy: (copy.store_ms, copy.physical_offset))
        self.visible = self.of(topic)
        self.halves = self.of(HALF_TOPIC)
        self.expired = self.of(EXPIRED_TOPIC)
        self.parked = [copy for copy in self._all if copy.topic in PARKING]
        self.silent = silent
        """Names of the brokers that did not answer, or not to every question."""

    def __bool__(self) -> bool:
        return bool(self._all)

    def of(self, topic: str) -> list[StoredMessage]:
        """Return the records in a topic."""
        return [copy for copy in self._all if copy.topic == topic]

    def parked_for(self, topic: str) -> list[StoredMessage]:
        """Return the records that wait, or waited, to be written to a topic."""
        return [copy for copy in self.parked if copy.properties.get("REAL_TOPIC") == topic]

    def oldest(self) -> StoredMessage:
        """Return the first record of all."""
        return self._all[0]

    def name_of(self, copy: StoredMessage) -> str:
        """Return the name of the broker that has a record."""
        return copy.broker_name or self._names.get(copy.store_host, copy.store_host)

    def address_of(self, copy: StoredMessage) -> str:
        """Return the address of the broker that has a record."""
        named = next((address for address, name in self._names.items() if name == copy.broker_name), None)
        return named or copy.store_host


def located(admin: AdminCore, brokers: Sequence[Master], name: str, topic: str | None) -> Op[tuple[str, str]]:
    """Return the sender's id of a message and its topic on the wire. Raises QueryNotFound, UsageError."""
    if broker_of(name) in {master.address for master in brokers}:  # nobody else is asked because an id says so
        try:
            message = yield from message_by_offset_id(admin, name)
            return message.msg_id, origin_topic(message)
        except BrokerError:
            pass  # a sender's id may look the same
    if topic is not None:
        return name, admin.wire(topic)
    halves, _ = yield from _everywhere(admin, brokers, [HALF_TOPIC, *PARKING], name)
    if halves:
        return name, origin_topic(halves[0])
    reply = yield from admin.name_servers.ask(GetAllTopicListFromNameserver())
    known = from_json(TopicList, reply.body).topic_list
    topics = [candidate for candidate in known if not is_system_topic(candidate) and not candidate.startswith("%")]
    if len(topics) > TOPICS_MAX:
        raise UsageError(f"there are {len(topics)} topics, too many to search: name the message's topic")
    messages, _ = yield from _everywhere(admin, brokers, sorted(topics), name)
    if not messages:
        raise QueryNotFound(f"no message {name} in any of {len(topics)} topics")
    return name, messages[0].topic


def origin_topic(message: StoredMessage) -> str:
    """Return the topic that a message was sent to, whichever of its records this is."""
    properties, topic = message.properties, message.topic
    if topic in (HALF_TOPIC, EXPIRED_TOPIC, *PARKING):
        topic = properties.get("REAL_TOPIC", topic)
    return properties.get("RETRY_TOPIC", topic) if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else topic


def groups_of(admin: AdminCore, brokers: Sequence[Master], topic: str) -> Op[list[str]]:
    """Return the groups that consume a topic or have consumed it, at most `GROUPS_MAX`, by their names on the wire."""
    groups: set[str] = set()
    for master in brokers:
        try:
            reply = yield from ask(master.address, QueryTopicConsumeByWho(topic=topic), b"", admin.settings.request_timeout_ms)
        except HalfmoonError:
            continue
        groups |= set(from_json(GroupList, reply.body).group_list)
    return sorted(groups)[:GROUPS_MAX]


def copies_of(admin: AdminCore, brokers: Sequence[Master], topic: str, msg_id: str, groups: Sequence[str]) -> Op[Copies]:
    """Return all records of a message: in its topic, in those of brokers, and in those of groups."""
    topics = [topic, HALF_TOPIC, EXPIRED_TOPIC, *PARKING]
    topics += [prefix + group for group in groups for prefix in (RETRY_PREFIX, DLQ_PREFIX)]
    messages, silent = yield from _everywhere(admin, brokers, topics, msg_id)
    return Copies(brokers, topic, messages, silent)


def _everywhere(
    admin: AdminCore, brokers: Sequence[Master], topics: Sequence[str], msg_id: str
) -> Op[tuple[list[StoredMessage], list[str]]]:
    """Return the records of a message in some topics of all brokers, and which brokers did not answer. Raises when none did."""
    over = (yield from now()) + 3_600_000
    questions = [(master, topic) for topic in dict.fromkeys(topics) for master in brokers]
    messages: list[StoredMessage] = []
    silent: dict[str, None] = {}
    error: Exception | None = None
    answered = False
    for at in range(0, len(questions), SIDE_BY_SIDE):
        chunk = questions[at : at + SIDE_BY_SIDE]
        outcomes = yield from gather([_query(master, topic, msg_id, over, unique=True) for master, topic in chunk])
        for (master, _), outcome in zip(chunk, outcomes):
            if isinstance(outcome, Exception):
                error, silent[master.name] = outcome, None
            else:
                answered = True
                messages += [copy for copy in outcome if copy.msg_id == msg_id]
    if error is not None and not answered:
        raise error
    return messages, list(silent)


def _query(master: Master, topic: str, key: str, over: int, *, unique: bool) -> Op[list[StoredMessage]]:
    request = QueryMessage(topic=topic, key=key, max_num=COPIES_MAX, begin_timestamp=0, end_timestamp=over, unique_key_query=unique)
    try:
        reply = yield from ask(master.address, request, b"", QUERY_TIMEOUT_MS)
    except QueryNotFound:
        return []
    messages = [unpacked(message) for message in decode_records(reply.body) if message.topic == topic]
    for message in messages:
        message.broker_name = master.name
    return messages


def traced(admin: AdminCore, brokers: Sequence[Master], trace_topic: str, msg_id: str) -> Op[list[TraceRecord]]:
    """Return what clients reported of a message in a trace topic; nothing when no broker has it."""
    over = (yield from now()) + 3_600_000
    records: list[TraceRecord] = []
    for outcome in (yield from gather([_query(master, trace_topic, msg_id, over, unique=False) for master in brokers])):
        if not isinstance(outcome, Exception):
            for message in outcome:
                text = message.beginning(REPORT_BYTES_MAX).decode("utf-8", "replace")
                records += [record for record in decode_traces(text) if record.msg_id == msg_id]
    return records
