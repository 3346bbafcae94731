"""Sends: what may be stored, as which record, how it is answered.

The bytes of a turn are read into groups of one queue; a send that is not ordinary becomes a group of one. All groups go through
one append and one way of answering. A queue is open for the reader once a send to it passed the gate, until topics change.

Follows SendMessageProcessor and AbstractSendMessageProcessor (RocketMQ 4.9.8).
Differs: a delayed or transactional message in a batch is refused, which the original stores as an ordinary one, and so is one that
is marked as prepared but is no half message; the queue number is checked before anything is decoded; a reply is written once the
promise of the flush mode holds; a batch that does not parse is refused with 13, not 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from halfmoon.broker.acks import Acks, Stored
from halfmoon.broker.context import Context
from halfmoon.broker.firsts import Firsts
from halfmoon.broker.names import FORBIDDEN_TO_SEND, HALF_TOPIC, OP_TOPIC, RETRY_PREFIX, check_topic
from halfmoon.broker.request import Handlers, Request, refusal_of
from halfmoon.broker.topics import topic_text
from halfmoon.errors import (
    BrokerError,
    MessageIllegal,
    MessageRefused,
    NoPermission,
    ResponseCode,
    ServiceNotAvailable,
    StoreNotWritable,
    SystemBusy,
)
from halfmoon.hot import (
    AT_ONCE,
    BATCH_MAX,
    DURABLE,
    NO_ANSWER,
    Draft,
    Frame,
    Group,
    Messages,
    Reader,
    batch_items,
    stored_properties,
    tag_hash,
)
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.model import REPEAT
from halfmoon.store.store import Appended
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import TopicConfig
from halfmoon.wire.flags import MULTI_TAGS, TRANSACTION_MASK
from halfmoon.wire.headers.send import SendBatchMessage, SendMessage, SendMessageV2
from halfmoon.wire.peer import Peer
from halfmoon.wire.table import Header

MULTI_TAG = "MULTI_TAG"

SendHeaderOf = SendMessage | SendMessageV2

DELAYED = ("DELAY\x01", "TIMER_DELAY_", "TIMER_DELIVER_MS\x01", "TIMER_DEL_UNIQKEY\x01")
"""What stands in properties that ask for a delay, or cancel one."""

UNSYNCED_BYTES_MAX = 128 * 1024 * 1024
"""Bytes that may wait for the device in sync flush before sends are refused with 2, so that a device that hangs does not let
what waits for it fill the memory."""


def is_transactional(text: bytes) -> bool:
    """Whether a send's properties ask for a transaction."""
    return b"TRAN_MSG\x01" in text and (wire_properties.value_of(text, b"TRAN_MSG") or b"").lower() == b"true"


def may_be_delayed(text: str) -> bool:
    """Whether a send's properties can ask for a delay, or cancel one."""
    return any(name in text for name in DELAYED)


class Sends:
    """The service that stores what producers send."""

    def __init__(self, context: Context) -> None:
        settings, store = context.settings, context.store
        self._settings, self._store, self._topics, self._stats = settings, store, context.topics, context.stats
        self._durable, self._random = context.durable, context.random
        self._acks = Acks(context.peers, settings.region, context.host.hex().upper())
        self._firsts = Firsts(store, self.send, self.refuse_one)
        self.on_half: Callable[[Request, SendMessage | SendMessageV2, int], None] = self._no_half
        """Where half messages go."""
        self.on_retry: Callable[[Request, SendHeaderOf], SendHeaderOf] = lambda request, header: header
        """Says where a message goes that a client sends to a retry topic."""
        self.on_repeat: Callable[[Request, SendHeaderOf], SendHeaderOf | None] = lambda request, header: header
        """Says how a send is stored that says that it is a repeat; None: it is answered already, or waits."""
        self.on_delayed: Callable[[Request, SendHeaderOf, TopicConfig, int], bool] = lambda request, header, config, queue_id: False
        """Parks messages that are to be delivered later; returns False for one that is not."""
        self.cluster_pair = wire_properties.encode({"CLUSTER": settings.cluster})
        self.message_bytes_max: int = store.settings.message_bytes_max
        self.make_room_for_halves: Callable[[int], None]
        """Takes the space that so many half messages need beside the log. Raises BrokerError when there is none."""
        self.on_halves_stored: Callable[[Group, Appended, int], None]
        """Is told of half messages that the log has, before they are answered."""
        self._sync_flush = store.sync_flush
        self.reader = Reader(self.cluster_pair, self.message_bytes_max)
        self._epoch = -1

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
                self._acks.refuse(group[3], exc)
            return
        if halves := [group for group in groups if group[2]]:
            groups = self._with_room(groups, halves)
        placed = [(HALF_TOPIC, 0, "", group[3]) if group[2] else group for group in groups] if halves else groups
        for group, appended in zip(groups, self.append_all(placed, now)):
            topic, queue_id, producer_group, messages = group
            if isinstance(appended, Appended):
                try:
                    if producer_group:
                        self.on_halves_stored(group, appended, now)
                    self.acknowledge(Stored(messages, queue_id, appended.queue_offset), now)
                except Exception as exc:  # other groups do not feel it
                    self._refuse_group(group, exc)
            elif isinstance(appended, MessageRefused) and len(messages.senders) > 1:
                for one in messages.apart():
                    self.store_groups([(topic, queue_id, producer_group, one)], now)
            else:
                self._refuse_group(group, appended)

    def _with_room(self, groups: list[Group], halves: list[Group]) -> list[Group]:
        """Return the groups that there is room for: half messages need some beside the log, and are refused where there is none."""
        try:
            self.make_room_for_halves(sum(len(messages) for _, _, _, messages in halves))
        except Exception as exc:  # those of other groups do not feel it
            for group in halves:
                self._refuse_group(group, exc)
            return [group for group in groups if not group[2]]
        return groups

    def _refuse_group(self, group: Group, exc: Exception) -> None:
        topic, queue_id, _, messages = group
        self._acks.refuse(messages, refusal_of(exc, f"{len(messages)} sends to queue {queue_id} of {topic}"))

    # ------------------------------------------------------------ one send

    def send(self, request: Request) -> None:
        """Store the message or batch of one request (10, 310, 320), or refuse it; its answer leaves through `Acks`."""
        try:
            self._send(request)
        except BrokerError as exc:
            self.refuse_one(request, exc)

    def _no_half(self, request: Request, header: SendMessage | SendMessageV2, queue_id: int) -> None:
        raise NoPermission(self._no_transactions())

    def refuse_one(self, request: Request, refusal: BrokerError) -> None:
        """Answer one request with a refusal, unless it wants no answer."""
        self._acks.refuse_one(request, refusal)

    def _send(self, request: Request) -> None:
        code = request.command.code
        header = request.header(SendMessage) if code == 10 else request.header(SendMessageV2)
        self.check_open(request.now)
        check_topic(header.topic)
        if header.topic in FORBIDDEN_TO_SEND:
            raise NoPermission(f"Sending message to topic[{header.topic}] is forbidden.")
        config = self._topics.for_send(
            header.topic, header.default_topic, header.default_topic_queue_nums, bool(header.unit_mode), request.now
        )
        self._check_writable(config)
        queue_id = self._queue(config, header.queue_id, request)
        if REPEAT in (header.properties or "") and not header.batch:
            repeat = self.on_repeat(request, header)
            if repeat is None:
                return
            header = repeat
        if header.topic.startswith(RETRY_PREFIX) and not header.batch:
            header = self.on_retry(request, header)
            if header.topic != config.topic_name:
                config, queue_id = self._topics.existing(header.topic), header.queue_id
        if not header.batch and is_transactional((header.properties or "").encode()):
            self._half(request, header, queue_id)
            return
        if may_be_delayed(header.properties or ""):
            if header.batch:
                raise MessageRefused("the message is illegal: a batch cannot be delayed")
            if self.on_delayed(request, header, config, queue_id):
                return
        drafts, wait = self.drafts(header, config, request)
        if not self.ready(header.topic, queue_id):
            self._firsts.wait(request, header.topic, queue_id)
            return
        if config.topic_filter_type != MULTI_TAG and not header.topic.startswith(RETRY_PREFIX):
            self.reader.open(header.topic, queue_id)
        messages = Messages(drafts)
        messages.sent(*sender_of(request, wait=wait), len(drafts))
        self.store(header.topic, queue_id, messages, request.now)

    def check_open(self, now: int) -> None:
        """Raise BrokerError before the time from which sends are taken, of whatever kind, in a group or alone."""
        if now < self._settings.start_accept_ms:
            raise BrokerError(f"broker unable to service, until {self._settings.start_accept_ms}")

    def _half(self, request: Request, header: SendMessage | SendMessageV2, queue_id: int) -> None:
        if self._settings.reject_transactions:
            raise NoPermission(self._no_transactions())
        self.check_size(len(request.command.body))
        for topic, place in ((header.topic, queue_id), (HALF_TOPIC, 0), (OP_TOPIC, 0)):
            if not self.ready(topic, place):
                self._firsts.wait(request, topic, place)
                return
        self.on_half(request, header, queue_id)

    def wait(self, request: Request, topic: str, queue_id: int) -> None:
        """Handle a send anew once a queue is made. Raises SystemBusy (2) when too many wait."""
        self._firsts.wait(request, topic, queue_id)

    def ready(self, topic: str, queue_id: int) -> bool:
        """Whether a queue takes messages at once; a send to another waits until it is made."""
        return self._store.refusal is not None or self._store.ready(topic, queue_id)

    def store(self, topic: str, queue_id: int, messages: Messages, now: int) -> None:
        """Append messages of one queue and have their senders answered. Raises what `append` does."""
        appended = self.append(topic, queue_id, messages, now)
        self.acknowledge(Stored(messages, queue_id, appended.queue_offset), now)

    def stored(
        self, request: Request, queue_id: int, appended: Appended, *, wait: bool, handle: str = "", other: Header | None = None
    ) -> None:
        """Have a request answered whose message is stored, whatever topic it went to.

        ``handle`` recalls it (5.x); ``other`` is the header of the answer to what was no send.
        """
        places, offset = appended.physical_offsets, appended.queue_offset
        messages = Messages.lying_at(places)
        messages.sent(*sender_of(request, wait=wait), len(places))
        header = self._acks.told(queue_id, offset, places, handle) if handle else other
        self.acknowledge(Stored(messages, queue_id, offset, header), request.now)

    def append(self, topic: str, queue_id: int, messages: Messages | Iterable[Draft], now: int) -> Appended:
        """Append messages of one queue and count them. Raises ServiceNotAvailable (14), MessageRefused (13) or SystemBusy (2)."""
        messages = messages if isinstance(messages, Messages) else Messages(messages)
        [appended] = self.append_all([(topic, queue_id, "", messages)], now)
        if isinstance(appended, Exception):
            raise appended
        return appended

    def append_all(self, groups: list[Group], now: int, *, in_order: bool = False) -> list[Appended | Exception]:
        """Append groups of messages, each of one queue; return for each where it lies, or what `append` would raise. ``in_order``:
        none is stored behind one that is not, see `Store.append_all`.
        """
        store, stats = self._store, self._stats
        if self._sync_flush and store.end_offset - store.durable_offset > UNSYNCED_BYTES_MAX:
            busy = SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up")
            return [busy] * len(groups)
        stored = store.append_all(groups, now, in_order=in_order)
        for index, appended in enumerate(stored):
            topic, _, _, messages = groups[index]
            if isinstance(appended, Appended):
                stats.put(topic, len(messages), appended.end_offset - appended.physical_offsets[0])
            else:
                stored[index] = self._not_stored(appended, messages)
        return stored

    def _not_stored(self, exc: Exception, messages: Messages) -> Exception:
        """Return how messages are refused that the store did not take."""
        if isinstance(exc, StoreNotWritable | OSError):
            refusal: Exception = ServiceNotAvailable(f"service not available now: {exc}")
        elif isinstance(exc, MessageIllegal):
            refusal = MessageRefused(f"the message is illegal: {exc}")
        else:
            return exc
        self._stats.puts_failed += len(messages)
        refusal.__cause__ = exc
        return refusal

    def acknowledge(self, stored: Stored, now: int) -> None:
        """Answer at once, or when the log is durable: with sync flush and senders who wait for it."""
        acks, messages = self._acks, stored.messages
        if not self._sync_flush or self._durable.is_promised:
            acks.answer(stored)
            return
        if messages.answered(AT_ONCE):
            acks.answer(stored, AT_ONCE)
        if not messages.answered(DURABLE):
            return

        def then(refusal: BrokerError | None, now: int) -> None:
            if refusal is None:
                acks.answer(stored, DURABLE)
            else:
                acks.refuse(messages, refusal, DURABLE)

        def late() -> None:  # stored, not known to be durable
            acks.answer_with(stored, int(ResponseCode.FLUSH_DISK_TIMEOUT), DURABLE)

        self._durable.until(now + self._settings.sync_timeout_ms, then, late)

    def _check_writable(self, config: TopicConfig) -> None:
        if not self._settings.permission & 2 and config.order:
            raise NoPermission(f"the broker[{self._settings.address}] sending message is forbidden")

    def _queue(self, config: TopicConfig, queue_id: int, request: Request) -> int:
        count = max(config.write_queue_nums, config.read_queue_nums)
        if queue_id >= count:
            raise BrokerError(f"request queueId[{queue_id}] is illegal, {topic_text(config)} Producer: {request.peer.remote}")
        if queue_id < 0:
            if config.write_queue_nums < 1:
                raise BrokerError(f"topic[{config.topic_name}] has no queue to write")
            return self._random.randrange(config.write_queue_nums)
        return queue_id

    # ------------------------------------------------------------ records

    def drafts(self, header: SendHeaderOf, config: TopicConfig, request: Request) -> tuple[list[Draft], bool]:
        """Return the messages of a request as they are stored, and whether its sender waits for the sync. Raises BrokerError."""
        host = request.peer.host
        sys_flag = header.sys_flag | (MULTI_TAGS if config.topic_filter_type == MULTI_TAG else 0)
        body = bytes(request.command.body)
        self.check_size(len(body))
        if sys_flag & TRANSACTION_MASK:  # stored as it is, no consumer would ever see it
            raise NoPermission(self._no_transactions())
        born, reconsume = header.born_timestamp, header.reconsume_times or 0
        if not header.batch:
            text, code, wait = self.prepare((header.properties or "").encode())
            return [(body, text, header.flag, sys_flag, born, host, reconsume, 0, code)], wait
        text = (header.properties or "").encode()
        suffix, wait = self._batch_suffix(text)
        self.reader.open_batch(text, suffix, wait=wait)
        return self._batch(body, suffix, (sys_flag, born, host, reconsume, 0)), wait

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
            text, code, _ = self.prepare(item_properties, suffix)
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

    def prepare(self, text: bytes, suffix: bytes | None = None) -> tuple[bytes, int, bool]:
        """Return properties as stored, the tag code and whether the sender waits for the sync.

        ``suffix`` are whole pairs to put behind them; None: the cluster's.

        Raises:
            NoPermission: a transactional message.
            MessageRefused: properties that are too long.
        """
        suffix = self.cluster_pair if suffix is None else suffix
        prepared = stored_properties(text, suffix)
        if prepared is None:
            prepared = self._prepare_plainly(text, suffix)
        if len(prepared[0]) > PROPERTIES_BYTES_MAX:
            raise MessageRefused(self._too_large())
        return prepared

    def _prepare_plainly(self, text: bytes, suffix: bytes) -> tuple[bytes, int, bool]:
        found = wire_properties.decode(text)
        if found.get("TRAN_MSG", "").lower() == "true":
            raise NoPermission(self._no_transactions())
        wait = found.pop("WAIT", "true").lower() == "true"
        found.pop("CLUSTER", None)
        tag = found.get("TAGS", "")
        return wire_properties.encode(found) + suffix, tag_hash(tag.encode()) if tag else 0, wait

    def _no_transactions(self) -> str:
        return f"the broker[{self._settings.address}] sending transaction message is forbidden"

    def check_size(self, size: int) -> None:
        """Raise MessageRefused (13) for the body of a request that is too large."""
        if size > self.message_bytes_max:
            raise MessageRefused(self._too_large())

    def _too_large(self) -> str:
        return (
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self.message_bytes_max}B, msg properties length limit 32KB."
        )


def sender_of(request: Request, *, wait: bool) -> tuple[int, int, int, int]:
    """Return who sent a request, as `Messages.sent` wants it; ``wait``: they wait for the sync."""
    command = request.command
    how = NO_ANSWER if command.is_oneway else DURABLE if wait else AT_ONCE
    return request.peer.number, command.opaque, command.serialization, how


def _is_no_delay(text: bytes) -> bool:
    """Whether properties ask for no delay after all: a level from 0 down, as the original reads them."""
    found = wire_properties.decode(text)
    level = found.get("DELAY", "0")
    none = level == "0" or (level[0] == "-" and level[1:].isdecimal())
    return none and not any(name.startswith("TIMER_DEL") for name in found)
