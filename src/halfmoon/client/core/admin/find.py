"""Finding stored messages: by key, by the sender's or the broker's id, by time. Reads only."""

from __future__ import annotations

from halfmoon.client.core.admin.admin import AdminCore, answers_of
from halfmoon.client.core.ask import ask, call
from halfmoon.client.core.consume.pull import pull_result, read_request, unpacked
from halfmoon.client.core.names import wrap
from halfmoon.effects import Op, gather, now
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, QueryNotFound, TopicNotFound, UsageError
from halfmoon.model import MessageQueue, PullResult, PullStatus, StoredMessage, Subscription
from halfmoon.wire.headers.pull import QueryMessage, ViewMessageById
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.record import decode_record, decode_records

PULL_COUNT = 32
QUERY_TIMEOUT_MS = 15_000
"""Looking through an index takes its time. Follows MQAdminImpl.queryMessage."""


def message_by_offset_id(admin: AdminCore, offset_msg_id: str) -> Op[StoredMessage]:
    """Return the message with a broker's id, which names the broker itself. Raises UsageError, BrokerError."""
    where = parse_offset_msg_id(offset_msg_id)
    reply = yield from ask(where.address, ViewMessageById(offset=where.physical_offset), b"", admin.settings.request_timeout_ms)
    return unpacked(decode_record(bytes(reply.body)))


def broker_of(name: str) -> str:
    """Return the address of the broker that a broker's id names; empty for any other text."""
    try:
        return parse_offset_msg_id(name).address
    except UsageError:
        return ""


def read_page(
    admin: AdminCore, address: str, queue: MessageQueue, offset: int, count: int, *, alone: bool = False
) -> Op[PullResult | None]:
    """Read messages of a queue from an offset on, at most 32 (see `pull_result`); at its end ``next_offset`` is the offset."""
    reply = yield from call(address, read_request(queue, offset, min(count, PULL_COUNT)), b"", admin.settings.request_timeout_ms)
    page = pull_result(reply, queue, Subscription(queue.topic), offset, address, alone=alone)
    if page is not None and (page.status is PullStatus.NO_NEW_MSG or page.next_offset <= offset):
        page.next_offset = offset
    return page


def messages_by_key(
    admin: AdminCore, topic: str, key: str, *, count_max: int = 64, begin_ms: int = 0, end_ms: int | None = None,
    failing: list[str] | None = None,
) -> Op[list[StoredMessage]]:  # fmt: skip
    """Return messages of a topic that carry a key, stored between two times (ms since the epoch), of all its brokers, oldest first.

    Their ``broker_name`` is set. Raises the error of any broker, unless it is named in ``failing`` (see `answers_of`): a list
    without its messages would look complete.
    """
    outcomes = yield from _query_all(admin, topic, key, count_max, begin_ms, end_ms, unique=False)
    found = [message for some in answers_of(outcomes.items(), failing) for message in some if key in message.keys]
    messages = sorted(found, key=lambda message: message.store_ms)[:count_max]
    names = yield from _broker_names(admin)
    for message in messages:
        message.broker_name = names.get(message.store_host, message.store_host)
    return messages


def _broker_names(admin: AdminCore) -> Op[dict[str, str]]:
    """Return the name of the broker at each address of the cluster: an answer to a search has the address only."""
    table = (yield from admin.cluster()).broker_addr_table
    return {address: name for name, data in table.items() for address in data.broker_addrs.values()}


def messages_by_unique_key(admin: AdminCore, topic: str, msg_id: str) -> Op[list[StoredMessage]]:
    """Return the messages of a topic with a sender's id, at most 64, the oldest first.

    Raises the error of a broker that may have the message, where none is found.
    """
    outcomes = yield from _query_all(admin, topic, msg_id, 64, 0, None, unique=True)
    failing: list[str] = []
    answers = answers_of(outcomes.items(), failing)
    messages = [message for some in answers for message in some if message.msg_id == msg_id]
    if failing and not messages:
        answers_of(outcomes.items(), None)
    return sorted(messages, key=lambda message: message.store_ms)[:64]


def _query_all(
    admin: AdminCore, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int | None, *, unique: bool
) -> Op[dict[str, list[StoredMessage] | Exception]]:
    """Return the messages that each broker of a topic finds, or its error, by broker name; other keys may have the same hash."""
    end_ms = (yield from now()) + 3_600_000 if end_ms is None else end_ms
    request = QueryMessage(
        topic=wrap(topic, admin.settings.namespace), key=key, max_num=count_max, begin_timestamp=begin_ms, end_timestamp=end_ms,
        unique_key_query=unique,
    )  # fmt: skip
    brokers = yield from admin.masters_of(topic)
    return dict(zip(brokers, (yield from gather([_query(address, request) for address in brokers.values()]))))


def _query(address: str, request: QueryMessage) -> Op[list[StoredMessage]]:
    try:
        reply = yield from ask(address, request, b"", QUERY_TIMEOUT_MS)
    except QueryNotFound:
        return []
    return [unpacked(message) for message in decode_records(reply.body) if message.topic == request.topic]


def message_by_id(admin: AdminCore, topic: str, msg_id: str) -> Op[StoredMessage]:
    """Return the message with a sender's id, or with a broker's.

    Raises QueryNotFound; the error of a broker that may have the message and does not answer.
    """
    failure: HalfmoonError | None = None
    try:
        if messages := (yield from messages_by_unique_key(admin, topic, msg_id)):
            return messages[0]
    except (BrokerError, NetworkError) as exc:
        failure = exc
    try:
        return (yield from message_by_offset_id(admin, msg_id))
    except HalfmoonError as exc:
        if failure is not None and not isinstance(failure, TopicNotFound):
            raise failure from exc
        raise QueryNotFound(f"no message {msg_id} in topic {topic}") from exc


def find_message(admin: AdminCore, msg_id: str, topic: str | None = None) -> Op[StoredMessage]:
    """Return the message with a broker's id, or with a sender's id in a topic; ``broker_name`` is set.

    Brokers of the cluster are asked and no others, whatever address an id names: it may come from anywhere. Raises QueryNotFound,
    NetworkError; UsageError for a sender's id without a topic.
    """
    names = yield from _broker_names(admin)
    found: list[StoredMessage] = []
    if broker_of(msg_id) in names:
        try:
            found = [(yield from message_by_offset_id(admin, msg_id))]
        except BrokerError:
            pass  # a sender's id may look the same
    if not found and topic is not None:
        found = yield from messages_by_unique_key(admin, topic, msg_id)
    if not found and topic is None and broker_of(msg_id) not in names:
        raise UsageError(f"{msg_id} is no id of a broker of this cluster: name the topic to find it as a sender's id")
    if not found:
        raise QueryNotFound(f"no message {msg_id}{f' in topic {topic}' if topic else ''}; it may be deleted by now")
    found[0].broker_name = names.get(found[0].store_host, found[0].store_host)
    return found[0]


def messages_at(admin: AdminCore, queue: MessageQueue, offset: int, count: int = PULL_COUNT) -> Op[PullResult]:
    """Return messages of a queue from an offset on, at most 32; at its end ``next_offset`` is the offset. Leaves no progress.

    Raises UsageError for a broker that there is not; NetworkError, BrokerError.
    """
    data = (yield from admin.cluster()).broker_addr_table.get(queue.broker_name)
    address = None if data is None else data.broker_addrs.get(0) or next(iter(data.broker_addrs.values()), None)
    if address is None:
        raise UsageError(f"there is no broker {queue.broker_name}")
    place = admin.wire_queue(queue)
    page = yield from read_page(admin, address, place, offset, count)
    if page is None:  # its first record does not decode
        page = yield from read_page(admin, address, place, offset, 1, alone=True)
    assert page is not None
    return page
