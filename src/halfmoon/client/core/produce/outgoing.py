"""A message as sent, and the protocol of those who observe sends. Plain values."""

from __future__ import annotations

from typing import Protocol

import msgspec

from halfmoon.client.core.names import DLQ_PREFIX, RETRY_PREFIX
from halfmoon.client.settings import ProducerSettings
from halfmoon.effects import Op, on_loop, run
from halfmoon.errors import MessageIllegal
from halfmoon.limits import PROPERTIES_BYTES_MAX, PROPERTIES_SENT_MAX
from halfmoon.model import REPEAT, LocalTransactionState, Message, MessageQueue, SendResult, StoredMessage
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import COMPRESSED, LZ4, ZLIB, ZSTD
from halfmoon.wire.compression import compress
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageV2, SendReplyMessageV2

_MARK = wire_properties.encode({REPEAT: "2"}).decode()


COMPRESS_IN_THREAD_BYTES = 256 * 1024
"""Bodies from this size are compressed in a thread, because it takes longer than the hop."""

_KINDS = {"ZLIB": ZLIB, "LZ4": LZ4, "ZSTD": ZSTD}


class Outgoing(msgspec.Struct, gc=False):
    """A message as sent. ``msg_id`` is the sender's id; a retry sends the same one again."""

    topic: str
    body: bytes
    properties: str
    msg_id: str
    flag: int = 0
    sys_flag: int = 0
    batch: bool = False
    reply: bool = False
    """Whether it is the reply to a request: a broker pushes it to who asked."""
    reconsume_times: int = 0
    reconsume_max: int | None = None
    silent: str = ""
    """The address that did not answer an attempt before; empty: each was answered, or did not leave."""

    @property
    def is_stored_once(self) -> bool:
        """Return whether a broker of ours stores it once though it is sent again, if it is marked: see `repeated`."""
        is_other = self.batch or self.reply or self.reconsume_times or self.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        return not (is_other or wire_properties.may_be_delayed(self.properties))

    def unanswered(self, address: str) -> Outgoing:
        """Return it as it is sent again because an address did not answer."""
        return msgspec.structs.replace(self.repeated(), silent=address)

    def repeated(self) -> Outgoing:
        """Return it as it is sent again to a broker that may have it: one of ours looks, and stores it once; not so in a batch."""
        if self.batch or self.reply or self.properties.startswith(_MARK):
            return self
        return msgspec.structs.replace(self, properties=_MARK + self.properties)


def send_header(outgoing: Outgoing, queue: MessageQueue, group: str, settings: ProducerSettings, at: int) -> SendMessageV2:
    """Return the header of an attempt to send a message to a queue; ``at`` is now (ms since the epoch)."""
    kind = SendBatchMessage if outgoing.batch else SendReplyMessageV2 if outgoing.reply else SendMessageV2
    return kind(
        producer_group=group,
        topic=outgoing.topic,
        default_topic=settings.create_topic_key,
        default_topic_queue_nums=settings.default_topic_queue_count,
        queue_id=queue.queue_id,
        sys_flag=outgoing.sys_flag,
        born_timestamp=at,
        flag=outgoing.flag,
        properties=outgoing.properties,
        reconsume_times=outgoing.reconsume_times,
        unit_mode=False,
        max_reconsume_times=outgoing.reconsume_max,
        batch=outgoing.batch,
        broker_name=queue.broker_name,
    )


class SendObserver(Protocol):
    """Is called for every attempt to send and every second phase; `halfmoon.client.core.produce.tracing` has one."""

    def sent(self, outgoing: Outgoing, queue: MessageQueue, address: str, begin: int, over: int, result: SendResult | None) -> None:
        """Trace an attempt that ended; without a result it failed."""

    def ended(
        self, message: Message | StoredMessage, topic: str, msg_id: str, address: str, state: LocalTransactionState, at: int, *,
        from_check: bool,
    ) -> None:  # fmt: skip
        """Trace a second phase that was sent; ``topic`` is the name on the wire."""


def properties_text(properties: dict[str, str]) -> str:
    """Return properties as a header carries them. Raises MessageIllegal when they are too long to be stored."""
    return properties_bytes(properties, PROPERTIES_BYTES_MAX).decode()


def properties_bytes(properties: dict[str, str], most_bytes: int = PROPERTIES_SENT_MAX) -> bytes:
    """Return properties as they are stored. Raises MessageIllegal when those of a new message leave no room to redeliver it."""
    data = wire_properties.encode(properties)
    if len(data) > most_bytes:
        raise MessageIllegal(f"the message properties are {len(data)} bytes long, MAX: {most_bytes}")
    return data


def compressed(body: bytes, settings: ProducerSettings) -> Op[tuple[bytes, int]]:
    """Return a body compressed, with its flags, or unchanged when compression gains nothing."""
    kind, level = _KINDS[settings.compress_type], settings.compress_level
    if len(body) >= COMPRESS_IN_THREAD_BYTES:
        small = yield from on_loop(run(compress, body, kind, level))  # whose driver has threads for it
    else:
        small = compress(body, kind, level)
    return (small, COMPRESSED | kind) if len(small) < len(body) else (body, 0)
