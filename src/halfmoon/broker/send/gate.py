"""The gate: what may be stored of what producers send, step by step, and where it goes.

The bytes of a turn are read into groups of one queue; a send that is not ordinary passes the steps and becomes a group of one. A
queue is open for the reader once a send to it passed, until topics change. All groups are stored and answered alike
(`halfmoon.broker.send.sends`).

Follows SendMessageProcessor and AbstractSendMessageProcessor (RocketMQ 4.9.8).
Differs: a delayed or transactional message in a batch is refused, which the original stores as an ordinary one, and so is one that
is marked as prepared but is no half message; the queue number is checked before anything is decoded; a batch that does not parse is
refused with 13, not 1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from halfmoon.broker.consumers.redelivery import Redelivery
from halfmoon.broker.context import Context
from halfmoon.broker.delay.delay import Delays
from halfmoon.broker.names import FORBIDDEN_TO_SEND, HALF_TOPIC, OP_TOPIC, RETRY_PREFIX, check_topic
from halfmoon.broker.request import Handlers, Request, refusal_of
from halfmoon.broker.send.duplicates import Repeats
from halfmoon.broker.send.replies import Stored
from halfmoon.broker.send.sends import MULTI_TAG, SendHeaderOf, Sends, may_be_delayed, sender_of
from halfmoon.broker.topics import topic_text
from halfmoon.broker.transactions.half import Halves
from halfmoon.errors import BrokerError, MessageRefused, NoPermission
from halfmoon.hot import BATCH_MAX, Draft, Frame, Group, Messages, Reader, batch_items
from halfmoon.model import REPEAT
from halfmoon.store.store import Appended
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import TopicConfig
from halfmoon.wire.headers.send import SendBatchMessage, SendMessage, SendMessageV2
from halfmoon.wire.peer import Peer
from halfmoon.wire.table import request_type

PLAIN = request_type(SendMessage).code

log = logging.getLogger("halfmoon.broker")


class Sending:
    """One send at the gate, as the steps before have left it."""

    __slots__ = ("config", "drafts", "header", "queue_id", "request", "wait")
    config: TopicConfig
    drafts: list[Draft]
    wait: bool

    def __init__(self, request: Request, header: SendHeaderOf) -> None:
        self.request, self.header, self.queue_id = request, header, header.queue_id

    @property
    def properties(self) -> str:
        """What its header says of the message, or of all messages of a batch."""
        return self.header.properties or ""


Step = Callable[[Sending], bool | None]
"""Refuses a send by raising BrokerError, or changes it; True: it went another way, or waits, and the gate is done with it."""


class Gate:
    """The service that answers 10, 310 and 320."""

    def __init__(
        self, context: Context, sends: Sends, halves: Halves, repeats: Repeats, delays: Delays, redelivery: Redelivery
    ) -> None:
        self._settings, self._topics, self._random = context.settings, context.topics, context.random
        self._sends, self._halves, self._repeats, self._delays, self._redelivery = sends, halves, repeats, delays, redelivery
        self._firsts = context.firsts
        self.reader = Reader(sends.cluster_pair, sends.message_bytes_max)
        self._epoch = -1
        self._steps: tuple[Step, ...] = (
            self._time, self._topic, self._permission, self._queue, self._repeat, self._retry, self._transaction, self._delay,
            self._records, self._made,
        )  # fmt: skip

    def handlers(self) -> Handlers:
        """Return what answers which request."""
        return {
            SendMessage: self.send,
            SendMessageV2: self.send,
            SendBatchMessage: self.send,
        }

    # ------------------------------------------------------------ a turn

    def read(self, peer: Peer, data: bytes) -> tuple[list[Frame], int, int, str | None]:
        """Read what a connection brought, see `halfmoon.hot.Reader.read`; its ordinary sends wait for `turn`."""
        if self._epoch != self._topics.epoch:
            self._epoch = self._topics.epoch
            self.reader.close()
        return self.reader.read(peer.number, peer.host, data)

    def turn(self, now: int) -> None:
        """Store what was read in this turn, with one write to the log, and have it answered."""
        if groups := self.reader.take():
            self.store_groups(groups, now)

    def store_groups(self, groups: list[Group], now: int) -> None:
        """Store groups, half messages under their own topic, and have them answered.

        When one cannot be stored, none of its requests was: find out which.
        """
        try:
            self.check_open(now)
        except BrokerError as exc:
            for group in groups:
                self._sends.acks.refuse(group[3], exc)
            return
        halves = [group for group in groups if group[2]]
        if halves and sum([len(messages) for _, _, _, messages in halves]) > self._halves.index.room:
            groups = self._with_room(groups, halves)
        placed = [(HALF_TOPIC, 0, "", group[3]) if group[2] else group for group in groups] if halves else groups
        stored: list[tuple[Group, Stored]] = []
        for group, appended in zip(groups, self._sends.append_all(placed, now)):
            topic, queue_id, producer_group, messages = group
            if isinstance(appended, Appended):
                try:
                    if producer_group:
                        self._halves.stored(group, appended, now)
                    stored.append((group, Stored(messages, queue_id, appended.queue_offset)))
                except Exception as exc:  # other groups do not feel it
                    self._refuse_group(group, exc)
            elif isinstance(appended, MessageRefused) and len(messages.senders) > 1:
                for one in messages.apart():
                    self.store_groups([(topic, queue_id, producer_group, one)], now)
            else:
                self._refuse_group(group, appended)
        try:
            self._sends.acknowledge([one for _, one in stored], now)
        except Exception:  # our own mistake, with one of them
            log.exception("the answers to %d groups of sends failed: each is answered by itself", len(stored))
            self._acknowledge_apart(stored, now)

    def _acknowledge_apart(self, stored: list[tuple[Group, Stored]], now: int) -> None:
        """Have each group answered by itself, so that the others do not feel what is wrong with one."""
        for group, one in stored:
            try:
                self._sends.acknowledge([one], now)
            except Exception as exc:
                self._refuse_group(group, exc)

    def _with_room(self, groups: list[Group], halves: list[Group]) -> list[Group]:
        """Return the groups that there is room for: half messages need some beside the log, and are refused where there is none."""
        try:
            self._halves.make_room(sum(len(messages) for _, _, _, messages in halves))
        except Exception as exc:  # those of other groups do not feel it
            for group in halves:
                self._refuse_group(group, exc)
            return [group for group in groups if not group[2]]
        return groups

    def _refuse_group(self, group: Group, exc: Exception) -> None:
        topic, queue_id, _, messages = group
        self._sends.acks.refuse(messages, refusal_of(exc, f"{len(messages)} sends to queue {queue_id} of {topic}"))

    # ------------------------------------------------------------ one send

    def send(self, request: Request) -> None:
        """Store the message or batch of one request, or refuse it; it may have to wait for its queue or for the device."""
        try:
            plain = request.command.code == PLAIN
            sending = Sending(request, request.header(SendMessage) if plain else request.header(SendMessageV2))
            if not any(step(sending) for step in self._steps):
                self._store(sending)
        except BrokerError as exc:
            self._sends.acks.refuse_one(request, exc)

    def check_open(self, now: int) -> None:
        """Raise BrokerError before the time from which sends are taken, of whatever kind, in a group or alone."""
        if now < self._settings.start_accept_ms:
            raise BrokerError(f"broker unable to service, until {self._settings.start_accept_ms}")

    def _time(self, sending: Sending) -> None:
        self.check_open(sending.request.now)

    def _topic(self, sending: Sending) -> None:
        header = sending.header
        check_topic(header.topic)
        if header.topic in FORBIDDEN_TO_SEND:
            raise NoPermission(f"Sending message to topic[{header.topic}] is forbidden.")
        sending.config = self._topics.for_send(
            header.topic, header.default_topic, header.default_topic_queue_nums, bool(header.unit_mode), sending.request.now
        )

    def _permission(self, sending: Sending) -> None:
        if not self._settings.permission & 2 and sending.config.order:
            raise NoPermission(f"the broker[{self._settings.address}] sending message is forbidden")

    def _queue(self, sending: Sending) -> None:
        """The number must be one of the topic's; below 0 the broker chooses."""
        config, queue_id = sending.config, sending.header.queue_id
        if queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            raise BrokerError(
                f"request queueId[{queue_id}] is illegal, {topic_text(config)} Producer: {sending.request.peer.remote}"
            )
        if queue_id < 0:
            if config.write_queue_nums < 1:
                raise BrokerError(f"topic[{config.topic_name}] has no queue to write")
            sending.queue_id = self._random.randrange(config.write_queue_nums)

    def _repeat(self, sending: Sending) -> bool:
        """A send that says that it is a repeat is answered as the first was, if that was stored."""
        if REPEAT not in sending.properties or sending.header.batch:
            return False
        header = self._repeats.take(sending.request, sending.header, self.send)
        if header is None:
            return True
        sending.header = header
        return False

    def _retry(self, sending: Sending) -> None:
        """What a consumer publishes to its retry topic may have come often enough, and goes to the dead letters."""
        header = sending.header
        if header.topic.startswith(RETRY_PREFIX) and not header.batch:
            sending.header = found = self._redelivery.published(sending.request, header)
            if found.topic != sending.config.topic_name:
                sending.config, sending.queue_id = self._topics.existing(found.topic), found.queue_id

    def _transaction(self, sending: Sending) -> bool:
        """A half message is stored under a topic of its own."""
        header, request, queue_id = sending.header, sending.request, sending.queue_id
        if header.batch or not is_transactional(sending.properties.encode()):
            return False
        if self._settings.reject_transactions:
            raise self._sends.no_transactions()
        self._sends.check_size(len(request.command.body))
        if all(self._there(request, *place) for place in ((header.topic, queue_id), (HALF_TOPIC, 0), (OP_TOPIC, 0))):
            suffix = self._halves.suffix(header.topic, queue_id)
            half = self._halves.group(request, header, queue_id, suffix)
            self.reader.open_halves(header.topic, queue_id, suffix)
            self.store_groups([half], request.now)
        return True

    def _delay(self, sending: Sending) -> bool:
        """What asks to come later is parked."""
        if not may_be_delayed(sending.properties):
            return False
        if sending.header.batch:
            raise MessageRefused("the message is illegal: a batch cannot be delayed")
        return self._delays.send(sending.request, sending.header, sending.config, sending.queue_id, self._there)

    def _records(self, sending: Sending) -> None:
        """Sizes, flags and properties must be such as a record can have."""
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

    def _made(self, sending: Sending) -> bool:
        """A queue that is not there yet is made first."""
        return not self._there(sending.request, sending.header.topic, sending.queue_id)

    def _there(self, request: Request, topic: str, queue_id: int) -> bool:
        """Whether a queue is there; else the request is handled anew once it is. Raises SystemBusy (2) when too many wait."""
        if self._sends.ready(topic, queue_id):
            return True
        self._firsts.wait(request, topic, queue_id, self.send, self._sends.acks.refuse_one)
        return False

    def _store(self, sending: Sending) -> None:
        topic, queue_id, drafts = sending.header.topic, sending.queue_id, sending.drafts
        if sending.config.topic_filter_type != MULTI_TAG and not topic.startswith(RETRY_PREFIX):
            self.reader.open(topic, queue_id)
        messages = Messages(drafts)
        messages.sent(*sender_of(sending.request, wait=sending.wait), len(drafts))
        appended = self._sends.append(topic, queue_id, messages, sending.request.now)
        self._sends.acknowledge([Stored(messages, queue_id, appended.queue_offset)], sending.request.now)

    # ------------------------------------------------------------ batches

    def _batch(self, body: bytes, suffix: bytes, common: tuple[int, int, bytes, int, int]) -> list[Draft]:
        try:
            items = batch_items(body)
        except ValueError as exc:
            raise MessageRefused(f"the batch does not parse: {exc}") from exc
        if not 1 <= len(items) <= BATCH_MAX:
            raise MessageRefused(f"a batch holds 1 to {BATCH_MAX} messages, not {len(items)}")
        drafts: list[Draft] = []
        for item_body, item_properties, flag in items:
            if may_be_delayed(item_properties.decode("utf-8", "replace")) and not _is_no_delay(item_properties):
                raise MessageRefused("the message is illegal: a message of a batch cannot be delayed")
            text, code, _ = self._sends.prepare(item_properties, suffix)
            drafts.append((item_body, text, flag, *common, code))
        return drafts

    def _batch_suffix(self, text: bytes) -> tuple[bytes, bool]:
        """Return what each message of a batch gets behind its own properties, and whether the sender waits for the sync.

        These are the batch's own properties, WAIT included, and the cluster. Follows CommitLog.MessageExtEncoder (4.9.8).
        Differs: a unique key of the whole batch (5.x) is not given to every message in place of its own.
        """
        found = wire_properties.decode(text)
        wait = found.get("WAIT", "true").lower() == "true"
        found.pop("UNIQ_KEY", None)
        return wire_properties.encode({**found, "CLUSTER": self._settings.cluster}), wait


def is_transactional(text: bytes) -> bool:
    """Whether a send's properties ask for a transaction."""
    return b"TRAN_MSG\x01" in text and (wire_properties.value_of(text, b"TRAN_MSG") or b"").lower() == b"true"


def _is_no_delay(text: bytes) -> bool:
    """Whether properties ask for no delay after all: a level from 0 down, as the original reads them."""
    found = wire_properties.decode(text)
    level = found.get("DELAY", "0")
    none = level == "0" or (level[0] == "-" and level[1:].isdecimal())
    return none and not any(name.startswith("TIMER_DEL") for name in found)
