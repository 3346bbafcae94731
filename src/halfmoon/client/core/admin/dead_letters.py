"""Dead letters: what consumer groups gave up, read from their ``%DLQ%`` topics. Only reads; works on any broker.

What a dead letter tells is what stands in its record. A reason is there when its last consumer told it to a Halfmoon broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from halfmoon import sql92
from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.find import PULL_COUNT, broker_of, message_by_offset_id, messages_by_unique_key, read_page
from halfmoon.client.core.ask import ask
from halfmoon.client.core.cursor import Offset, cursor, places
from halfmoon.client.core.names import DLQ_PREFIX, RETRY_PREFIX, check_group, unwrap, wrap
from halfmoon.effects import Op
from halfmoon.errors import HalfmoonError, QueryNotFound, TopicNotFound, UsageError, text_of
from halfmoon.model import RECONSUME_REASON, DeadLetter, MessageQueue, StoredMessage, subscription
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply, SearchOffsetByTimestamp

READ_MAX = 100_000
"""Dead letters of one queue that one question reads: some 3,000 pulls. Ask from a later time for those behind."""

BYTES_MAX = 256 * 1024 * 1024
"""Bodies of the dead letters of one answer together, so that many large ones do not fill the memory."""

PAGE_BYTES_MAX = 16 * 1024 * 1024
"""Bodies of one page together. One dead letter is on a page, however large it is."""

STEP_BYTES_MAX = 1024 * 1024
"""Bodies that are read at a time, unless one has more."""

PAGE_LOOKED_MAX = 10_000
"""Dead letters that one page looks at for those that match: under a second."""


class DeadLetterFilter(NamedTuple):
    """Which dead letters match. Times are ms since the epoch, the begin included and the end not."""

    begin_ms: int = 0
    end_ms: int | None = None
    key: str | None = None
    reason: str | None = None
    expression: str = "*"
    expression_type: str = "TAG"

    def test(self) -> Callable[[StoredMessage], bool]:
        """Return a predicate for the messages that match. Raises UsageError for an expression that does not parse."""
        matches = _expression(self.expression, self.expression_type)
        reason = (self.reason or "").casefold()

        def meant(message: StoredMessage) -> bool:
            return (
                self.begin_ms <= message.store_ms
                and (self.end_ms is None or message.store_ms < self.end_ms)
                and (self.key is None or self.key in (*message.keys, message.msg_id))
                and reason in message.properties.get(RECONSUME_REASON, "").casefold()
                and matches(message)
            )

        return meant


def _expression(expression: str, kind: str) -> Callable[[StoredMessage], bool]:
    if kind == "TAG":
        tags = subscription("any", expression).tags
        return lambda message: not tags or message.tag in tags
    if kind != "SQL92":
        raise UsageError(f"the type of an expression is TAG or SQL92, not {kind!r}")
    compiled = sql92.compile(expression)
    return lambda message: compiled.matches(wire_properties.encode(message.properties))


# ---------------------------------------------------------------- asking


def dead_letters(
    admin: AdminCore,
    group: str | None = None,
    *,
    begin_ms: int = 0,
    end_ms: int | None = None,
    key: str | None = None,
    reason: str | None = None,
    expression: str = "*",
    expression_type: str = "TAG",
    count_max: int = 100,
) -> Op[list[DeadLetter]]:
    """Return dead letters of a group, or of all groups, the oldest first.

    Choose them by the time they died (ms since the epoch, the end excluded), a key or an id, a part of the reason, tags or an
    SQL92 expression. Raises UsageError, also when their bodies take more than 256 MiB; the error of any broker, because a list
    without its dead letters would look complete.
    """
    choice = DeadLetterFilter(begin_ms, end_ms, key, reason, expression, expression_type)
    meant = choice.test()
    if group is not None:
        check_group(group)
        topics = [DLQ_PREFIX + wrap(group, admin.settings.namespace)]
    else:
        topics = [wrap(name, admin.settings.namespace) for name in (yield from admin.topics()) if name.startswith(DLQ_PREFIX)]
    letters: list[DeadLetter] = []
    room = BYTES_MAX
    for topic in topics:
        for place, address in (yield from _queues(admin, topic)):
            messages = yield from _read(admin, place, address, choice, meant, count_max, room)
            room -= sum(message.held_bytes for message in messages)
            letters += [_letter(admin, message, address) for message in messages]
    return sorted(letters, key=lambda letter: letter.dead_lettered_ms)[:count_max]


def dead_letter(admin: AdminCore, name: str, group: str | None = None) -> Op[DeadLetter]:
    """Return the dead letter with a broker's id, or the newest one of a group with a sender's id. Raises QueryNotFound.

    With a group, only brokers that have dead letters of it are asked, whatever address a broker's id names.
    """
    topic = DLQ_PREFIX
    try:
        if group is None:
            message = yield from message_by_offset_id(admin, name)
        else:
            check_group(group)
            topic = DLQ_PREFIX + wrap(group, admin.settings.namespace)
            if broker_of(name) in {address for _, address in (yield from _queues(admin, topic))}:
                message = yield from message_by_offset_id(admin, name)
            else:
                found = yield from messages_by_unique_key(admin, DLQ_PREFIX + group, name)
                if not found:
                    raise QueryNotFound(f"group {group} has none of this id")
                message = found[-1]
    except HalfmoonError as exc:
        hint = "; for the sender's id, give its group as well" if group is None else ""
        raise QueryNotFound(f"there is no dead letter {name!r}: {text_of(exc)}{hint}") from exc
    if not message.topic.startswith(topic) or (group is not None and message.topic != topic):
        raise QueryNotFound(f"message {name} of topic {message.topic} is no dead letter")
    for place, address in (yield from _queues(admin, message.topic)):
        if address == message.store_host:
            message.broker_name = place.broker_name
    return _letter(admin, message, message.store_host)


def _letter(admin: AdminCore, message: StoredMessage, address: str) -> DeadLetter:
    namespace = admin.settings.namespace
    group = unwrap(message.topic, namespace).removeprefix(DLQ_PREFIX)
    message.topic = unwrap(message.topic, namespace)
    origin = message.properties.get("RETRY_TOPIC", "")
    if origin and not origin.startswith(RETRY_PREFIX):
        message.properties["RETRY_TOPIC"] = unwrap(origin, namespace)
    for name in ("MIN_OFFSET", "MAX_OFFSET"):
        message.properties.pop(name, None)
    return DeadLetter(group, message, address)


def _queues(admin: AdminCore, topic: str) -> Op[list[tuple[MessageQueue, str]]]:
    """Return every queue of a topic with the address of its master; none for a topic that there is not."""
    try:
        route = yield from admin.topic_route(topic)
    except TopicNotFound:
        return []
    addresses = {broker.broker_name: broker.broker_addrs.get(0) for broker in route.broker_datas}
    queues = []
    for data in route.queue_datas:
        address = addresses.get(data.broker_name)
        if address is not None:
            count = max(data.read_queue_nums, data.write_queue_nums)
            queues += [(MessageQueue(topic, data.broker_name, number), address) for number in range(count)]
    return sorted(queues)


def _read(
    admin: AdminCore, queue: MessageQueue, address: str, choice: DeadLetterFilter, meant: Callable[[StoredMessage], bool],
    count_max: int, bytes_max: int,
) -> Op[list[StoredMessage]]:  # fmt: skip
    timeout_ms = admin.settings.request_timeout_ms
    request: GetMinOffset | SearchOffsetByTimestamp = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
    if choice.begin_ms > 0:  # the millisecond before: of several stored in the same one, Apache's 4.x answers any
        request = SearchOffsetByTimestamp(topic=queue.topic, queue_id=queue.queue_id, timestamp=choice.begin_ms - 1)
    begin = at = max(0, (yield from ask(address, request, b"", timeout_ms)).header(OffsetReply).offset)
    letters: list[StoredMessage] = []
    while len(letters) < count_max and at < begin + READ_MAX:
        page = yield from read_page(admin, address, queue, at, PULL_COUNT, alone=True)
        if page is None or page.next_offset == at:
            break
        matching = [message for message in page.messages if meant(message)]
        bytes_max -= sum(message.held_bytes for message in matching)
        if bytes_max < 0:
            raise UsageError(f"these dead letters take more than {BYTES_MAX // 2**20} MiB: ask for fewer, for example by time")
        letters += matching
        if choice.end_ms is not None and page.messages and page.messages[-1].store_ms >= choice.end_ms:
            break
        at = page.next_offset
    return letters[:count_max]


# ---------------------------------------------------------------- page by page


class DeadLetterPage(msgspec.Struct):
    """Some dead letters. ``next`` is where the next page begins, None at the end; ``short`` says why there are fewer than asked."""

    letters: list[DeadLetter]
    next: str | None = None
    short: str = ""


class _Reader(msgspec.Struct):
    """Reads one queue between two offsets, up or down from ``at``. ``found`` are matching messages that no page has yet."""

    queue: MessageQueue
    address: str
    low: int
    high: int
    at: int
    down: bool
    count: int = PULL_COUNT
    found: deque[StoredMessage] = msgspec.field(default_factory=deque)

    @property
    def name(self) -> str:
        return f"{self.queue.queue_id}@{self.queue.broker_name}"

    @property
    def place(self) -> int:
        """Where another page goes on: behind the message that it begins with when it reads down."""
        return self.found[0].queue_offset + self.down if self.found else self.at

    @property
    def at_end(self) -> bool:
        return not self.found and (self.at <= self.low if self.down else self.at >= self.high)

    def read(self, admin: AdminCore, meant: Callable[[StoredMessage], bool]) -> Op[int]:
        """Read some messages, and return how many it was. Where those of a step down are large, a shorter step is taken."""
        while True:
            begin = max(self.low, self.at - self.count) if self.down else self.at
            end = self.at if self.down else min(self.high, self.at + self.count)
            messages, here = yield from self._span(admin, begin, end)
            if here >= end or not self.down:
                break
            self.count = here - begin
        self.found.extend(filter(meant, reversed(messages) if self.down else messages))
        self.at = begin if self.down else here
        if self.down and not messages and begin > self.low:  # offsets that a power loss used up, perhaps very many
            request = GetMaxOffset(topic=self.queue.topic, queue_id=self.queue.queue_id, before=begin)
            reply = yield from ask(self.address, request, b"", admin.settings.request_timeout_ms)
            self.at = max(self.low, min(begin, reply.header(OffsetReply).offset))
        self.count = min(PULL_COUNT, 2 * self.count)
        return max(1, len(messages))

    def _span(self, admin: AdminCore, begin: int, end: int) -> Op[tuple[list[StoredMessage], int]]:
        """Read messages from one offset to another, or until they are large; return them, and how far it is."""
        here, held_bytes, messages = begin, 0, list[StoredMessage]()
        while here < end and held_bytes <= STEP_BYTES_MAX:
            page = yield from read_page(admin, self.address, self.queue, here, end - here)
            if page is None:  # its first record does not decode
                page = yield from read_page(admin, self.address, self.queue, here, 1, alone=True)
                assert page is not None
            # behind offsets without a message, a read goes on with what is behind the end
            messages += [message for message in page.messages if not self.down or message.queue_offset < end]
            held_bytes += sum(message.held_bytes for message in page.messages)
            here = page.next_offset if page.next_offset > here else end
        return messages, here


def dead_letter_page(
    admin: AdminCore,
    group: str,
    *,
    after: str = "",
    newest_first: bool = True,
    begin_ms: int = 0,
    end_ms: int | None = None,
    key: str | None = None,
    reason: str | None = None,
    expression: str = "*",
    count_max: int = 100,
    bytes_max: int = PAGE_BYTES_MAX,
) -> Op[DeadLetterPage]:
    """Return dead letters of a group by the time they died, chosen as `dead_letters` does; ``after`` is `next` of a page before.

    A page is shorter where its bodies reach ``bytes_max``, or where it looked at `PAGE_LOOKED_MAX` dead letters. Those that died
    since the first page are left out when the newest come first. Raises UsageError; the error of any broker.
    """
    choice = DeadLetterFilter(begin_ms, end_ms, key, reason, expression)
    meant = choice.test()
    readers = yield from _readers(admin, group, choice, after, down=newest_first)
    page, looked = DeadLetterPage([]), 0
    while len(page.letters) < count_max and (left := [reader for reader in readers if not reader.at_end]):
        empty = next((reader for reader in left if not reader.found), None)
        if empty is not None and looked >= PAGE_LOOKED_MAX:
            page.short = f"{looked:,} dead letters were looked at; the next page looks at others"
            break
        if empty is not None:
            looked += yield from empty.read(admin, meant)
            continue
        reader = (max if newest_first else min)(left, key=lambda reader: (reader.found[0].store_ms, reader.queue))
        bytes_max -= reader.found[0].held_bytes
        if bytes_max < 0 and page.letters:
            page.short = "these dead letters are large; others are on the next page"
            break
        page.letters.append(_letter(admin, reader.found.popleft(), reader.address))
    if not all(reader.at_end for reader in readers):
        page.next = cursor({reader.name: [reader.place] for reader in readers})
    return page


def _readers(admin: AdminCore, group: str, choice: DeadLetterFilter, after: str, *, down: bool) -> Op[list[_Reader]]:
    check_group(group)
    known = places(after, tuple[Offset]) if after else None
    readers = []
    for queue, address in (yield from _queues(admin, DLQ_PREFIX + wrap(group, admin.settings.namespace))):
        low, high = yield from _ends(admin, queue, address, choice)
        reader = _Reader(queue, address, low, high, high if down else low, down)
        if known is not None:  # a queue that is not in it is newer than the page
            reader.at = min(max(low, known.get(reader.name, (low,))[0]), high)
        readers.append(reader)
    return readers


def _ends(admin: AdminCore, queue: MessageQueue, address: str, choice: DeadLetterFilter) -> Op[tuple[int, int]]:
    """Return the offsets of a queue between which all that died in a span of time lies, the last excluded."""
    name, number = queue.topic, queue.queue_id
    low: GetMinOffset | SearchOffsetByTimestamp = GetMinOffset(topic=name, queue_id=number)
    if choice.begin_ms > 0:
        low = SearchOffsetByTimestamp(topic=name, queue_id=number, timestamp=choice.begin_ms - 1)
    requests = [low, GetMaxOffset(topic=name, queue_id=number)]
    if choice.end_ms is not None:  # a broker answers the last one before it, or one behind
        requests.append(SearchOffsetByTimestamp(topic=name, queue_id=number, timestamp=choice.end_ms))
    offsets = []
    for request in requests:
        reply = yield from ask(address, request, b"", admin.settings.request_timeout_ms)
        offsets.append(max(0, reply.header(OffsetReply).offset))
    high = offsets[1] if choice.end_ms is None else min(offsets[1], offsets[2] + 1)
    return min(offsets[0], high), high
