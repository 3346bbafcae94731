"""One pull of one queue: the request, the reply with its messages checked and unpacked, and the two ends of a queue."""

from __future__ import annotations

import logging

from halfmoon.client.core.ask import ask
from halfmoon.client.core.route_table import RouteTable
from halfmoon.effects import Call, Op
from halfmoon.errors import BadMessage, NetworkError, UsageError, broker_error
from halfmoon.hot import HEAD
from halfmoon.model import MessageQueue, PullResult, PullStatus, StoredMessage, Subscription
from halfmoon.shown.names import queue_name
from halfmoon.wire.codes import COMPRESSED, PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION
from halfmoon.wire.command import Command
from halfmoon.wire.compression import decompress
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply, SearchOffsetByTimestamp
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.record import decode_record, decode_run

READER_GROUP = "TOOLS_CONSUMER"
"""The group that reads and leaves no progress; every broker has it. Follows MixAll.TOOLS_CONSUMER_GROUP."""

log = logging.getLogger("halfmoon.client")

_STATUS = {status.value: status for status in PullStatus}


def pull(routes: RouteTable, request: PullMessage, wanted: Subscription, *, broker_id: int = 0, timeout_ms: int) -> Op[PullResult]:
    """Ask for messages of a queue at its broker, or at the broker of that id; return them without those that the tags leave out.

    ``commit_offset`` of the request is stored by a master when ``sys_flag`` says so; from a slave that bit is left out.
    ``topic_birth_ms`` says which topic the offsets speak of (-1: not known), and asks to be told.
    Raises NetworkError, BrokerError (TopicRecreated when it is another topic), PeerError.
    """
    queue = MessageQueue(request.topic, request.broker_name or "", request.queue_id)
    reader = routes.reader(queue.broker_name, broker_id)
    if reader is None:
        raise NetworkError(f"The broker[{queue.broker_name}] not exist")
    address, chosen_id = reader
    if chosen_id != 0:
        request.sys_flag &= ~PULL_COMMIT_OFFSET
    reply: Command = yield Call(address, request, b"", timeout_ms)
    result = pull_result(reply, queue, wanted, request.queue_offset, address)
    if result is None:  # its first record does not decode, nor says where the next one is: have it come alone
        request.max_msg_nums = 1
        reply = yield Call(address, request, b"", timeout_ms)
        result = pull_result(reply, queue, wanted, request.queue_offset, address, alone=True)
        assert result is not None
    return result


def read_request(queue: MessageQueue, offset: int, count: int, *, broker_name: str | None = None) -> PullMessage:
    """Return the pull of somebody who only reads: everything from an offset on, and the broker does not hold it."""
    return PullMessage(
        consumer_group=READER_GROUP, topic=queue.topic, queue_id=queue.queue_id, queue_offset=offset, max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, sub_version=0, subscription="*",
        expression_type="TAG", broker_name=broker_name,
    )  # fmt: skip


def pull_result(
    reply: Command, queue: MessageQueue, wanted: Subscription, offset: int, address: str = "", *, alone: bool = False
) -> PullResult | None:
    """Return what a reply to a pull at an offset says, messages unpacked and filtered by the exact tag. Raises BrokerError.

    A record that does not decode is left out with a warning, and the next pull begins behind it. Where its size is wrong too,
    what stands before it is returned and it begins the next pull; None when it is the first. ``alone`` says that only one record
    was asked for.

    Differs: the original forgets what stands behind such a record.
    """
    status = _STATUS.get(reply.code)
    if status is None:
        raise broker_error(reply.code, reply.remark, address)
    header = reply.header(PullMessageReply)
    delta, next_offset = header.offset_delta or 0, header.next_begin_offset
    body = bytes(reply.body) if status is PullStatus.FOUND else b""
    decoded, unread, complete = read_records(body, offset - delta, next_offset - delta)
    if not complete:
        if decoded:
            next_offset = max(decoded[-1].queue_offset + delta, offset) + 1
        elif not alone:
            return None
        else:
            unread.append((offset - delta, "nothing of it makes sense"))
    if unread:
        next_offset = max(next_offset, offset + 1)
    for queue_offset, reason in unread:
        at = queue_offset + delta
        log.warning("record skipped, it does not decode: queue=%s offset=%d reason=%s", queue_name(queue), at, reason)
    messages = decoded if takes_all(wanted) else [message for message in decoded if message.tag in wanted.tags]
    _place(messages, queue, header, delta)
    skipped = tuple(queue_offset + delta for queue_offset, _ in unread)
    broker_id, birth_ms = header.suggest_which_broker_id, header.topic_birth_ms
    return PullResult(status, next_offset, header.min_offset, header.max_offset, messages, broker_id, skipped, birth_ms)


def _place(messages: list[StoredMessage], queue: MessageQueue, header: PullMessageReply, delta: int) -> None:
    """Complete messages with what their records do not hold: their broker, the ends of their queue, and their offset in it.

    The offset differs by ``delta`` from the record's where a queue is a part of a logical one (static topics of 5.x).
    """
    ends = {"MIN_OFFSET": str(header.min_offset), "MAX_OFFSET": str(header.max_offset)}
    for message in messages:
        message.note(ends)
        message.broker_name = queue.broker_name
        message.queue_offset += delta
        unpacked(message)


def read_records(body: bytes, offset: int, end: int) -> tuple[list[StoredMessage], list[tuple[int, str]], bool]:
    """Return the messages of a pull's body, the records that do not decode, and whether all of the body was read.

    Of such a record, its queue offset and its fault. ``offset`` and ``end`` bound the queue offsets that are possible.

    The size of such a record leads to the next one; unless a record or the end is there, it is not believed. Nor is its queue
    offset when it cannot be.
    """
    messages, at, fault = decode_run(body)
    unread: list[tuple[int, str]] = []
    while fault is not None:
        if messages:
            offset = max(offset, messages[-1].queue_offset + 1)
        after = at + int.from_bytes(body[at : at + 4], "big", signed=True)
        if after < at + HEAD.size or not _is_border(body, after):
            return messages, unread, False
        stated = int.from_bytes(body[at + 20 : at + 28], "big", signed=True)
        unread.append((stated if offset <= stated < end else offset, str(fault)))
        offset = unread[-1][0] + 1
        more, at, fault = decode_run(body, after)
        messages += more
    return messages, unread, True


def _is_border(body: bytes, at: int) -> bool:
    """Whether records end or one begins here."""
    if at >= len(body):
        return at == len(body)
    try:
        decode_record(body, at)
    except BadMessage:
        return False
    return True


def takes_all(subscription: Subscription) -> bool:
    """Whether all that the broker sends is wanted. Of tags it compares hashes only, which may collide."""
    return not subscription.tags or subscription.expression_type != "TAG"


def unpacked(message: StoredMessage) -> StoredMessage:
    """Return the message with its body as the sender gave it, unpacked at its first use.

    One that does not unpack is left as it is, with a warning.
    """
    if message.sys_flag & COMPRESSED:
        message.unpack_later(_unpack)
    return message


def _unpack(message: StoredMessage, body: bytes, sys_flag: int) -> tuple[bytes, int]:
    try:
        return decompress(body, sys_flag), sys_flag & ~COMPRESSED
    except (BadMessage, UsageError) as exc:
        log.warning("body left compressed: msg_id=%s topic=%s reason=%s", message.msg_id, message.topic, exc)
        return body, sys_flag


# ---------------------------------------------------------------- ends of a queue


def _offset(routes: RouteTable, queue: MessageQueue, request: GetMaxOffset | GetMinOffset | SearchOffsetByTimestamp) -> Op[int]:
    address = yield from routes.master_or_ask(queue)
    if address is None:
        reader = routes.reader(queue.broker_name)
        if reader is None:
            raise NetworkError(f"The broker[{queue.broker_name}] not exist")
        address = reader[0]
    reply = yield from ask(address, request)
    return reply.header(OffsetReply).offset


def max_offset(routes: RouteTable, queue: MessageQueue) -> Op[int]:
    """Return the offset that the next message of the queue will get."""
    return (yield from _offset(routes, queue, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)))


def end_before(routes: RouteTable, queue: MessageQueue, offset: int) -> Op[int]:
    """Return the offset behind the last message before an offset, or the queue's first.

    A Halfmoon broker steps over the offsets that a power loss has used up; others, which use them again, answer their end.
    """
    return min(offset, (yield from _offset(routes, queue, GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id, before=offset))))


def min_offset(routes: RouteTable, queue: MessageQueue) -> Op[int]:
    """Return the offset of the oldest message of the queue."""
    return (yield from _offset(routes, queue, GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)))


def offset_at(routes: RouteTable, queue: MessageQueue, timestamp_ms: int) -> Op[int]:
    """Return the offset of the message stored at or near a time; brokers of 4.x and 5.x round differently."""
    request = SearchOffsetByTimestamp(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
    return (yield from _offset(routes, queue, request))
