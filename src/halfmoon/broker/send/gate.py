"""The gate: what producers may store, and where it goes.

A send passes the steps one by one, and joins the group of its queue; the groups of a turn are stored and answered together
(`halfmoon.broker.send.sends`). A queue is open once a send to it passed, until topics change: further sends pass without the steps
about topic and queue, and the compiled reader forms groups of ordinary ones straight from the bytes.

Follows SendMessageProcessor and AbstractSendMessageProcessor (RocketMQ 4.9.8).
Differs: a delayed or transactional message in a batch is refused, which the original stores as an ordinary one; so is a message
that is marked as prepared but is no half message. The queue number is checked before anything is decoded; a batch that does not
parse is refused with 13, not 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from halfmoon.broker.consumers.redelivery import Redelivery
from halfmoon.broker.context import Context
from halfmoon.broker.delay.delay import Delays
from halfmoon.broker.names import FORBIDDEN_TO_SEND, HALF_TOPIC, OP_TOPIC, RETRY_PREFIX, check_topic
from halfmoon.broker.request import Handlers, Request, refusal_of
from halfmoon.broker.send.duplicates import Duplicates
from halfmoon.broker.send.replies import StoredGroup
from halfmoon.broker.send.sends import MULTI_TAG, SendHeaderOf, Sends, items_of, sender_of
from halfmoon.broker.service import Service
from halfmoon.broker.topics import topic_text
from halfmoon.broker.transactions.half import HalfMessages
from halfmoon.errors import AccessRefused, BrokerError, MessageRefused, NoPermission
from halfmoon.hot import Draft, Frame, Group, Messages, Reader, Verifier
from halfmoon.model import REPEAT
from halfmoon.store.store import Appended
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import TopicConfig
from halfmoon.wire.headers.send import SendBatchMessage, SendMessage, SendMessageV2
from halfmoon.wire.peer import Peer
from halfmoon.wire.properties import may_be_delayed
from halfmoon.wire.table import request_type

LONG_NAMES = request_type(SendMessage).code
SEND = request_type(SendMessageV2).code
"""Request code of the send whose header has long field names (10)."""

OPEN_MAX = 65_536
"""Open queues that are remembered; beyond them all are forgotten, and open again with their next send."""

log = logging.getLogger("halfmoon.broker")


class Sending:
    """One send at the gate: the request, and what the steps until now made of it."""

    __slots__ = ("config", "drafts", "header", "queue_id", "request", "wait")
    config: TopicConfig
    drafts: list[Draft]
    wait: bool

    def __init__(self, request: Request, header: SendHeaderOf) -> None:
        self.request, self.header, self.queue_id = request, header, header.queue_id

    @property
    def properties(self) -> str:
        """The properties in its header: those of the message, or of all messages of a batch."""
        return self.header.properties or ""


Sender = tuple[int, int, int, int, int]
"""Sender of some messages and the way to answer it: the arguments of `Messages.sent`."""

Step = Callable[[Sending], bool | None]
"""Refuses a send by raising BrokerError, or changes it; True: the gate is done with it, for it went another way or waits."""


class Gate(Service):
    """The service that answers 10, 310 and 320."""

    def __init__(
        self, context: Context, sends: Sends, half_messages: HalfMessages, duplicates: Duplicates, delays: Delays,
        redelivery: Redelivery,
    ) -> None:  # fmt: skip
        self._settings, self._topics, self._random = context.settings, context.topics, context.random
        self._queue_waiters, self._sends, self._half_messages = context.queue_waiters, sends, half_messages
        self._access, self._check_producer = context.access, context.check_producer
        self._duplicates, self._delays, self._redelivery = duplicates, delays, redelivery
        self.reader = Reader(sends.broker_pairs, sends.message_bytes_max)
        self._groups: dict[tuple[str, int, str], tuple[list[Draft], list[Sender]]] = {}
        """Sends that passed in this turn, by topic, queue and producer group."""
        self._open: dict[tuple[str, int], TopicConfig] = {}
        """The topic of each open queue."""
        self._open_halves: dict[tuple[str, int], bytes] = {}
        """The pairs that half messages get which belong there."""
        self._epoch = -1
        self._open_steps: tuple[Step, ...] = (
            self._time, self._repeated, self._retry, self._transaction, self._delay, self._records,
        )  # fmt: skip
        self._steps = (
            self._time, self._topic, self._permission, self._queue, *self._open_steps[1:], self._queue_created,
        )  # fmt: skip

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            SendMessage: self.send,
            SendMessageV2: self.send,
            SendBatchMessage: self.send,
        }

    # ------------------------------------------------------------ a turn

    def read(self, peer: Peer, data: bytes, verifier: Verifier | None = None) -> tuple[list[Frame], int, int, str | None]:
        """Read what a connection brought, see `halfmoon.hot.Reader.read`; its ordinary sends wait for `turn`."""
        if self._epoch != self._topics.epoch:
            self._close()
        return self.reader.read(peer.number, peer.host, data, verifier)

    def _close(self) -> None:
        """Close all queues, as topics changed."""
        self._epoch = self._topics.epoch
        self._open.clear()
        self._open_halves.clear()
        self.reader.close()

    def turn(self, now: int) -> None:
        """Store what was read in this turn, with one write to the log, and reply."""
        groups = self.reader.take()
        taken, self._groups = self._groups, {}
        for (topic, queue_id, producer_group), (drafts, senders) in taken.items():
            messages = Messages(drafts)
            for sender in senders:
                messages.sent(*sender)
            groups.append((topic, queue_id, producer_group, messages))
        if groups:
            self.store_groups(groups, now)

    def store_groups(self, groups: list[Group], now: int) -> None:
        """Store groups, half messages under their own topic, and reply to their senders."""
        if now < self._settings.start_accept_ms:  # what the reader took has not passed `_time`
            self._refuse_early(groups)
            return
        if self._access is not None:
            groups = self._permitted(groups)
        if half_messages := [group for group in groups if group[2]]:
            count = sum([len(messages) for _, _, _, messages in half_messages])
            if count > self._half_messages.index.room:
                groups = self._with_room(groups, half_messages, count)
            placed = [(HALF_TOPIC, 0, "", group[3]) if group[2] else group for group in groups]
        else:
            placed = groups
        stored: list[tuple[Group, StoredGroup]] = []
        try:
            outcomes = self._sends.append_all(placed, now)
        except Exception as exc:  # our own mistake: all senders are answered
            outcomes = [exc] * len(placed)
        for group, appended in zip(groups, outcomes):
            if isinstance(appended, Appended):
                try:
                    if group[2]:
                        self._half_messages.stored(group, appended, now)
                    stored.append((group, StoredGroup(group[3], group[1], appended.queue_offset)))
                except Exception as exc:  # other groups are not affected
                    self._refuse_group(group, exc)
            else:
                self._not_stored(group, appended, now)
        try:
            self._sends.acknowledge([group for _, group in stored])
        except Exception:  # our own mistake, with one of them
            log.exception("the replies to %d groups of sends failed: each group is answered by itself", len(stored))
            self._acknowledge_apart(stored, now)

    def _permitted(self, groups: list[Group]) -> list[Group]:
        """Return the groups without the half messages of accounts that may not produce in their producer groups: refuse these."""
        kept = []
        for group in groups:
            topic, queue_id, producer_group, messages = group
            try:
                for peer in {sender[0] for sender in messages.senders} if producer_group else ():
                    self._check_producer(peer, producer_group, SEND)
                kept.append(group)
            except AccessRefused as exc:
                if len(messages.senders) > 1:
                    kept += self._permitted([(topic, queue_id, producer_group, message) for message in messages.apart()])
                else:
                    self._refuse_group(group, exc)
        return kept

    def _not_stored(self, group: Group, exc: Exception, now: int) -> None:
        """Refuse a group that could not be stored. An illegal message takes all of its group with it: store them one by one."""
        topic, queue_id, producer_group, messages = group
        if isinstance(exc, MessageRefused) and len(messages.senders) > 1:
            for message in messages.apart():
                self.store_groups([(topic, queue_id, producer_group, message)], now)
        else:
            self._refuse_group(group, exc)

    def _acknowledge_apart(self, stored: list[tuple[Group, StoredGroup]], now: int) -> None:
        """Reply to each group by itself, so that a mistake with one does not affect the others."""
        for group, stored_group in stored:
            try:
                self._sends.acknowledge([stored_group])
            except Exception as exc:
                self._refuse_group(group, exc)

    def _with_room(self, groups: list[Group], half_messages: list[Group], count: int) -> list[Group]:
        """Return the groups that there is room for: half messages need some in the index, too, and are refused without it."""
        try:
            self._half_messages.make_room(count)
        except Exception as exc:  # the other groups are not affected
            for group in half_messages:
                self._refuse_group(group, exc)
            return [group for group in groups if not group[2]]
        return groups

    def _refuse_group(self, group: Group, exc: Exception) -> None:
        topic, queue_id, _, messages = group
        self._sends.replies.refuse(messages, refusal_of(exc, f"{len(messages)} sends to queue {queue_id} of {topic}"))

    # ------------------------------------------------------------ one send

    def send(self, request: Request) -> None:
        """Store the message or batch of one request, or refuse it; it may have to wait for its queue or for the device."""
        self.take(request)
        self.turn(request.now.date)

    def take(self, request: Request) -> None:
        """Have the next `turn` store the message or batch of one request, or refuse it; it may have to wait for its queue."""
        try:
            long_names = request.command.code == LONG_NAMES
            sending = Sending(request, request.header(SendMessage) if long_names else request.header(SendMessageV2))
            is_repeat = REPEAT in sending.properties
            if is_repeat:
                self.turn(request.now.date)  # the first attempt may be in it
            if self._epoch != self._topics.epoch:
                self._close()
            config = self._open.get((sending.header.topic, sending.queue_id))
            if config is not None:
                sending.config = config
            for step in self._steps if config is None else self._open_steps:
                if step(sending):
                    break
            else:
                self._put(sending)
            if is_repeat:
                self.turn(request.now.date)
        except BrokerError as exc:
            self._sends.replies.refuse_one(request, exc)

    def check(self, request: Request, header: SendHeaderOf) -> None:
        """Refuse a message that would not be stored, for its topic, queue or size, before anything else is done with it.

        Raises BrokerError.
        """
        sending = Sending(request, header)
        for step in (self._time, self._topic, self._permission, self._queue):
            step(sending)
        self._sends.check_size(len(request.command.body), len(sending.properties.encode()))

    def check_open(self, now: int) -> None:
        """Raise BrokerError before the time from which the broker takes sends of any kind."""
        if now < self._settings.start_accept_ms:
            raise self._closed()

    def _refuse_early(self, groups: list[Group]) -> None:
        for group in groups:
            self._sends.replies.refuse(group[3], self._closed())

    def _closed(self) -> BrokerError:
        return BrokerError(f"broker unable to service, until {self._settings.start_accept_ms}")

    def _time(self, sending: Sending) -> None:
        self.check_open(sending.request.now.date)

    def _topic(self, sending: Sending) -> None:
        header = sending.header
        check_topic(header.topic)
        if header.topic in FORBIDDEN_TO_SEND:
            raise NoPermission(f"Sending message to topic[{header.topic}] is forbidden.")
        sending.config = self._topics.for_send(
            header.topic, header.default_topic, header.default_topic_queue_nums, bool(header.unit_mode), sending.request.now.date
        )

    def _permission(self, sending: Sending) -> None:
        # Only ordered topics, as in msgCheck: other topics are merely announced without this broker's permission.
        if not self._settings.permission & 2 and sending.config.order:
            raise NoPermission(f"the broker[{self._settings.address}] sending message is forbidden")

    def _queue(self, sending: Sending) -> None:
        """Check that the queue is one of the topic's; below 0, choose one."""
        config, queue_id = sending.config, sending.header.queue_id
        # The larger of both, as msgCheck has it.
        if queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise BrokerError(
                f"request queueId[{queue_id}] is illegal, {topic_text(config)} Producer: {sending.request.peer.remote}"
            )
        if queue_id < 0:
            if config.write_queue_nums < 1:
                raise BrokerError(f"topic[{config.topic_name}] has no queue to write")
            sending.queue_id = self._random.randrange(config.write_queue_nums)

    def _repeated(self, sending: Sending) -> bool:
        """Answer a send that is marked as repeated like the first attempt, if that was stored."""
        if REPEAT not in sending.properties or sending.header.batch:
            return False
        header = self._duplicates.deduplicate(sending.request, sending.header, self.send)
        if header is None:
            return True
        sending.header = header
        return False

    def _retry(self, sending: Sending) -> None:
        """Redirect a consumer's message to the dead letters if it was retried often enough."""
        header = sending.header
        if header.topic.startswith(RETRY_PREFIX) and not header.batch:
            sending.header = header = self._redelivery.published(sending.request, header)
            if header.topic != sending.config.topic_name:
                sending.config, sending.queue_id = self._topics.existing(header.topic), header.queue_id

    def _transaction(self, sending: Sending) -> bool:
        """Redirect a half message to the topic of half messages."""
        header, request, queue_id = sending.header, sending.request, sending.queue_id
        if header.batch or not is_transactional(sending.properties.encode()):
            return False
        if self._settings.reject_transactions:
            raise self._sends.no_transactions()
        self._sends.check_size(len(request.command.body))
        place = header.topic, queue_id
        suffix = self._open_halves.get(place)
        if suffix is None:
            if not all(self._queue_ready(request, *needed) for needed in (place, (HALF_TOPIC, 0), (OP_TOPIC, 0))):
                return True
            suffix = self._half_messages.suffix(*place)
        draft, sending.wait, group = self._half_messages.draft(request, header, suffix)
        sending.drafts = [draft]
        self.reader.open_halves(*place, suffix)  # it may have closed some, too
        self._opened(place, sending.config)
        self._open_halves[place] = suffix
        self._join(sending, group)
        return True

    def _delay(self, sending: Sending) -> bool:
        """Park a message with a delay."""
        if not may_be_delayed(sending.properties):
            return False
        if sending.header.batch:
            raise MessageRefused("the message is illegal: a batch cannot be delayed")
        return self._delays.send(sending.request, sending.header, sending.config, sending.queue_id, self._queue_ready)

    def _records(self, sending: Sending) -> None:
        """Sizes, flags and properties must fit a record."""
        header, config, request = sending.header, sending.config, sending.request
        if header.batch:
            common = self._sends.common(header, config, request)
            text = sending.properties.encode()
            suffix, sending.wait = self._batch_suffix(text)
            self.reader.open_batch(text, suffix, wait=sending.wait)
            sending.drafts = self._batch(bytes(request.command.body), suffix, common)
        else:
            draft, sending.wait = self._sends.draft(header, config, request)
            sending.drafts = [draft]

    def _queue_created(self, sending: Sending) -> bool:
        """Let a send to a queue that does not exist yet wait until it is created."""
        return not self._queue_ready(sending.request, sending.header.topic, sending.queue_id)

    def _queue_ready(self, request: Request, topic: str, queue_id: int) -> bool:
        """Whether a queue exists; else the request is handled again once it does. Raises SystemBusy (2) when too many wait."""
        if self._sends.ready(topic, queue_id):
            return True
        self._queue_waiters.wait(request, topic, queue_id, self.send, self._sends.replies.refuse_one)
        return False

    def _put(self, sending: Sending) -> None:
        """Put a send that passed into the group of its queue."""
        topic = sending.header.topic
        # The reader neither sets the flag of many tags nor looks at how often a message was retried.
        if sending.config.topic_filter_type != MULTI_TAG and not topic.startswith(RETRY_PREFIX):
            self.reader.open(topic, sending.queue_id)
            self._opened((topic, sending.queue_id), sending.config)
        self._join(sending, "")

    def _opened(self, place: tuple[str, int], config: TopicConfig) -> None:
        """Remember that a queue is open."""
        if len(self._open) >= OPEN_MAX and place not in self._open:
            self._open.clear()
            self._open_halves.clear()
        self._open[place] = config

    def _join(self, sending: Sending, group: str) -> None:
        drafts, senders = self._groups.setdefault((sending.header.topic, sending.queue_id, group), ([], []))
        drafts += sending.drafts
        senders.append((*sender_of(sending.request, wait=sending.wait), len(sending.drafts)))

    # ------------------------------------------------------------ batches

    def _batch(self, body: bytes, suffix: bytes, common: tuple[int, int, bytes, int, int]) -> list[Draft]:
        drafts: list[Draft] = []
        for item_body, item_properties, flag in items_of(body):
            if may_be_delayed(item_properties.decode("utf-8", "replace")) and not _is_no_delay(item_properties):
                raise MessageRefused("the message is illegal: a message of a batch cannot be delayed")
            text, code, _ = self._sends.prepare(item_properties, suffix)
            drafts.append((item_body, text, flag, *common, code))
        return drafts

    def _batch_suffix(self, text: bytes) -> tuple[bytes, bool]:
        """Return what is appended to the properties of each message of a batch, and whether the sender waits for the sync.

        These are the batch's own properties, WAIT included, and the broker's. Follows CommitLog.MessageExtEncoder (4.9.8).
        Differs: a unique key of the whole batch (5.x) does not replace those of its messages.
        """
        properties = wire_properties.decode(text)
        wait = properties.get("WAIT", "true").lower() == "true"
        properties.pop("UNIQ_KEY", None)
        return wire_properties.encode({**properties, **self._sends.broker_properties}), wait


def is_transactional(text: bytes) -> bool:
    """Whether a send's properties ask for a transaction."""
    return b"TRAN_MSG\x01" in text and (wire_properties.value_of(text, b"TRAN_MSG") or b"").lower() == b"true"


def _is_no_delay(text: bytes) -> bool:
    """Whether properties ask for no delay after all: a level of 0 or below, as the original reads them."""
    properties = wire_properties.decode(text)
    level = properties.get("DELAY", "0")
    none = level == "0" or (level[0] == "-" and level[1:].isdecimal())
    return none and not any(name.startswith("TIMER_DEL") for name in properties)
