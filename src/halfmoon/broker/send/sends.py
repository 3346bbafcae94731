"""Storing messages and replying to their senders: one append and one way of replying for messages of all kinds.

Refuses what does not fit a record. Who may send what, the gate decides (`halfmoon.broker.send.gate`).

Follows AbstractSendMessageProcessor (RocketMQ 4.9.8).
Differs: a reply is written once the promise of the flush mode holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from halfmoon.broker.context import Context
from halfmoon.broker.request import Request
from halfmoon.broker.send.replies import SendReplies, StoredGroup
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
from halfmoon.hot import AT_ONCE, BATCH_MAX, DURABLE, NO_ANSWER, Draft, Group, Messages, batch_items, stored_properties, tag_hash
from halfmoon.instant import Instant
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.store.store import Appended
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import TopicConfig
from halfmoon.wire.codes import MULTI_TAGS, TRANSACTION_MASK
from halfmoon.wire.headers.send import SendMessage, SendMessageV2
from halfmoon.wire.table import Header

MULTI_TAG = "MULTI_TAG"

SendHeaderOf = SendMessage | SendMessageV2

UNSYNCED_BYTES_MAX = 128 * 1024 * 1024
"""Bytes that may wait for the device in sync flush before sends are refused with 2, so that a device that hangs does not fill the
memory."""


class Sends:
    """Stores messages of all kinds; ``replies`` are those to their senders.

    ``broker_properties`` are what each stored message gets from this broker, ``broker_pairs`` the same as stored. A sender's own
    under these names are replaced. Follows AbstractSendMessageProcessor.buildMsgContext (5.3.3), which stores the region and the
    trace switch with every message, true or false; 4.9.8 does so only where a hook is loaded. Consumers of 5.x report nothing about
    a message without a region, and no consumer about one whose switch is false.
    """

    unsynced_bytes_max = UNSYNCED_BYTES_MAX

    def __init__(self, context: Context) -> None:
        settings, store = context.settings, context.store
        self._settings, self._store, self._stats, self._pending_replies = settings, store, context.stats, context.pending_replies
        self.replies = SendReplies(context.peers, settings, context.host.hex().upper())
        self.broker_properties = {
            "CLUSTER": settings.cluster, "MSG_REGION": settings.region, "TRACE_ON": "true" if settings.trace_on else "false",
        }  # fmt: skip
        self.broker_pairs = wire_properties.encode(self.broker_properties)
        self.message_bytes_max: int = store.settings.message_bytes_max
        self._holds_back, self._promises = store.holds_back, context.pending_replies.promises
        if not self._promises:
            self.acknowledge = self.replies.answer  # type: ignore[method-assign]  # no call in between: each turn makes it

    def ready(self, topic: str, queue_id: int) -> bool:
        """Whether a queue takes messages at once; else a send waits until it is created."""
        return self._store.refusal is not None or self._store.ready(topic, queue_id)

    def stored(
        self, request: Request, queue_id: int, appended: Appended, *, wait: bool, handle: str = "", other: Header | None = None
    ) -> None:
        """Reply to a request whose message is stored, whatever topic it went to.

        ``handle`` recalls it (5.x); ``other`` is the reply header if the request was not a send.
        """
        places, offset = appended.physical_offsets, appended.queue_offset
        messages = Messages.lying_at(places)
        messages.sent(*sender_of(request, wait=wait), len(places))
        header = self.replies.header(queue_id, offset, places, handle) if handle else other
        self.acknowledge([StoredGroup(messages, queue_id, offset, header)])

    def append(self, topic: str, queue_id: int, messages: Messages | Iterable[Draft], now: int) -> Appended:
        """Append messages of one queue and count them. Raises ServiceNotAvailable (14), MessageRefused (13) or SystemBusy (2)."""
        messages = messages if isinstance(messages, Messages) else Messages(messages)
        [appended] = self.append_all([(topic, queue_id, "", messages)], now)
        if isinstance(appended, Exception):
            raise appended
        return appended

    def append_all(self, groups: list[Group], now: int, *, in_order: bool = False) -> list[Appended | Exception]:
        """Append groups of messages, each of one queue; return for each where it is stored, or what `append` would raise.

        ``in_order``: once a group fails, none behind it is stored, see `Store.append_all`.
        """
        store, stats = self._store, self._stats
        if self._holds_back and store.end_offset - store.kept_offset > self.unsynced_bytes_max:
            busy = SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk, or the copy, does not keep up")
            return [busy] * len(groups)
        stored = store.append_all(groups, now, in_order=in_order)
        for index, appended in enumerate(stored):
            topic, _, _, messages = groups[index]
            if isinstance(appended, Appended):
                stats.moved(topic, None, len(messages), appended.end_offset - appended.physical_offsets[0])
                stats.put_times.open += not self._promises  # else the put lasts until it is answered
            else:
                stored[index] = self._not_stored(appended, messages)
        return stored

    def _not_stored(self, exc: Exception, messages: Messages) -> Exception:
        """Return the refusal of messages that the store did not take."""
        if isinstance(exc, StoreNotWritable | OSError):
            refusal: Exception = ServiceNotAvailable(f"service not available now: {exc}")
        elif isinstance(exc, MessageIllegal):
            refusal = MessageRefused(f"the message is illegal: {exc}")
        else:
            return exc
        self._stats.puts_failed += len(messages)
        refusal.__cause__ = exc
        return refusal

    def acknowledge(self, stored: Sequence[StoredGroup]) -> None:
        """Reply at once; to senders that wait, once the log is as durable, and copied, as is promised."""
        if not self._promises or (self._pending_replies.can_reply and not self._pending_replies.lacks_slaves):
            self.replies.answer(stored)
            return
        self.replies.answer(stored, AT_ONCE)
        for group in stored:
            if group.messages.answered(DURABLE):
                self._wait(group)

    def _wait(self, group: StoredGroup) -> None:
        replies, asked, put_times = self.replies, self._pending_replies.now.steady, self._stats.put_times
        lacks_slaves = self._pending_replies.lacks_slaves

        def done(refusal: BrokerError | None, now: Instant) -> None:
            put_times.took(now.steady - asked)
            if refusal is not None:
                replies.refuse(group.messages, refusal, DURABLE)
            elif lacks_slaves:
                replies.answer_with(group, int(ResponseCode.SLAVE_NOT_AVAILABLE), DURABLE)
            else:
                replies.answer([group], DURABLE)

        def on_timeout(lacks_copies: bool) -> None:  # stored, not known to be durable, or copied
            code = ResponseCode.FLUSH_SLAVE_TIMEOUT if lacks_copies else ResponseCode.FLUSH_DISK_TIMEOUT
            replies.answer_with(group, int(code), DURABLE)

        self._pending_replies.with_deadline(done, on_timeout)

    # ------------------------------------------------------------ records

    def draft(self, header: SendHeaderOf, config: TopicConfig, request: Request) -> tuple[Draft, bool]:
        """Return the record of a request's message, and whether its sender waits for the sync. Raises BrokerError."""
        common = self.common(header, config, request)
        text, code, wait = self.prepare((header.properties or "").encode())
        return (bytes(request.command.body), text, header.flag, *common, code), wait

    def common(self, header: SendHeaderOf, config: TopicConfig, request: Request) -> tuple[int, int, bytes, int, int]:
        """Return the fields that the drafts of all messages of a request share: from sys_flag on, without the tag code.

        Raises:
            MessageRefused: the body of the request is too large.
            NoPermission: a flag says that it is part of a transaction: stored like this, no consumer would ever see it.
        """
        self.check_size(len(request.command.body))
        if header.sys_flag & TRANSACTION_MASK:
            raise self.no_transactions()
        sys_flag = header.sys_flag | (MULTI_TAGS if config.topic_filter_type == MULTI_TAG else 0)
        return sys_flag, header.born_timestamp, request.peer.host, header.reconsume_times or 0, 0

    def prepare(self, text: bytes, suffix: bytes | None = None) -> tuple[bytes, int, bool]:
        """Return properties as stored, the tag code and whether the sender waits for the sync.

        ``suffix`` is appended to them, whole pairs; None: ``broker_pairs``.

        Raises:
            NoPermission: a transactional message.
            MessageRefused: properties that are too long.
        """
        suffix = self.broker_pairs if suffix is None else suffix
        prepared = stored_properties(text, suffix)
        if prepared is None:
            prepared = self._prepare_slowly(text, suffix)  # not in the canonical form that the twin takes
        if len(prepared[0]) > PROPERTIES_BYTES_MAX:
            raise MessageRefused(self._too_large())
        return prepared

    def _prepare_slowly(self, text: bytes, suffix: bytes) -> tuple[bytes, int, bool]:
        properties = wire_properties.decode(text)
        if properties.get("TRAN_MSG", "").lower() == "true":
            raise self.no_transactions()
        wait = properties.pop("WAIT", "true").lower() == "true"
        for name in self.broker_properties:
            properties.pop(name, None)
        tag = properties.get("TAGS", "")
        return wire_properties.encode(properties) + suffix, tag_hash(tag.encode()) if tag else 0, wait

    def no_transactions(self) -> NoPermission:
        """Return the refusal of a message that is part of a transaction."""
        return NoPermission(f"the broker[{self._settings.address}] sending transaction message is forbidden")

    def check_size(self, size: int, properties_bytes: int = 0) -> None:
        """Raise MessageRefused (13) for the body or the properties of a request that are too large."""
        if size > self.message_bytes_max or properties_bytes > PROPERTIES_BYTES_MAX:
            raise MessageRefused(self._too_large())

    def _too_large(self) -> str:
        return (
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self.message_bytes_max}B, msg properties length limit 32KB."
        )


def sender_of(request: Request, *, wait: bool) -> tuple[int, int, int, int]:
    """Return the sender of a request as `Messages.sent` takes it; ``wait``: it waits for the sync."""
    command = request.command
    how = NO_ANSWER if command.is_oneway else DURABLE if wait else AT_ONCE
    return request.peer.number, command.opaque, command.serialization, how


def items_of(body: bytes) -> list[tuple[bytes, bytes, int]]:
    """Return the (body, properties, flag) of each message of a batch. Raises MessageRefused (13) for others."""
    try:
        items = batch_items(body)
    except ValueError as exc:
        raise MessageRefused(f"the batch does not parse: {exc}") from exc
    if not 1 <= len(items) <= BATCH_MAX:
        raise MessageRefused(f"a batch holds 1 to {BATCH_MAX} messages, not {len(items)}")
    return items
