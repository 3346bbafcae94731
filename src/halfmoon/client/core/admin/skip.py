"""Skipping one message that a group cannot consume, so that its queue goes on behind it.

The copy to the dead letters is made first: a process that dies between the two steps leaves the message in its queue, and a second
try makes a second copy. No message is lost.
"""

from __future__ import annotations

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.find import read_page
from halfmoon.client.core.admin.health.group import MEMBERS_MAX
from halfmoon.client.core.admin.reset import Reset, carry_out, moves_of, planned
from halfmoon.client.core.ask import ask
from halfmoon.client.core.names import check_group
from halfmoon.effects import Op, gather
from halfmoon.errors import ConsumerNotOnline, HalfmoonError, IllegalOperation, NoRoute, OffsetIllegal, UsageError
from halfmoon.model import SKIPPED, MessageQueue
from halfmoon.results import OffsetMove
from halfmoon.wire.headers.send import ConsumerSendMsgBack

TO_DEAD_LETTERS = -1
"""Delay level of a returned message that goes to the dead letters at once. Follows SendMessageProcessor (RocketMQ 4.9.8)."""


def skip_message(
    admin: AdminCore, group: str, queue: MessageQueue, offset: int, *, to_dead_letters: bool = False
) -> Op[OffsetMove]:
    """Move a group behind the message at the head of a queue, its online members included; return the move.

    The head is where the group's progress is, or the first message that the queue's member has not consumed, where a filter left
    out what lies between, or there is no progress yet.

    With ``to_dead_letters`` the message is first copied to the group's dead letters. A member that is consuming the message right
    now is not interrupted, and its result does not count. A Halfmoon broker compares the progress again as it moves the group.

    Raises OffsetIllegal if the head is not at ``offset``, UsageError where the broker cannot move a single queue of a
    group that is online, TopicNotFound, GroupNotFound, BrokerError, NetworkError.
    """
    check_group(group)
    reset = yield from _checked(admin, group, queue, offset)
    if to_dead_letters:
        yield from _copy(admin, group, queue, offset)
        reset = yield from _checked(admin, group, queue, offset)
    [move] = moves_of(admin, reset)
    try:
        yield from carry_out(admin, reset, unmoved=True)
    except IllegalOperation as exc:
        raise OffsetIllegal(f"the group moved on in {_place(queue)} meanwhile: nothing was moved ({exc.remark})") from exc
    return move


def _place(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"


def _checked(admin: AdminCore, group: str, queue: MessageQueue, offset: int) -> Op[Reset]:
    """Plan the move; refuse a queue whose head is not the message that is to be skipped."""
    reset = yield from planned(admin, group, queue.topic, {queue: offset + 1})
    [move] = moves_of(admin, reset)
    if move.now == offset:
        return reset
    if move.members and (move.now or 0) <= offset and (yield from _held_from(admin, group, move.queue)) == offset:
        return reset
    where = _place(queue)
    now = "has no progress" if move.now is None else f"is at offset {move.now:,}"
    raise OffsetIllegal(f"the group {now} in {where}, not at {offset:,}: nothing was moved; see `halfmoon group show`")


def _held_from(admin: AdminCore, group: str, queue: MessageQueue) -> Op[int | None]:
    """Return the offset of the first message of a queue that its member has not consumed; None: no member says."""
    try:
        members = (yield from admin.consumer_connections(group)).connection_set[:MEMBERS_MAX]
    except ConsumerNotOnline:
        return None
    for info in (yield from gather([admin.consumer_running_info(group, member.client_id) for member in members])):
        if isinstance(info, Exception) and not isinstance(info, HalfmoonError):
            raise info
        held = None if isinstance(info, Exception) else info.mq_table.get(admin.wire_queue(queue))
        if held is not None and held.cached_msg_count:
            # Apache's ordered consumers count the messages that their listener has apart.
            first = [held.transaction_msg_min_offset] if held.transaction_msg_count else []
            waits = held.cached_msg_count > held.transaction_msg_count
            return min([*first, held.cached_msg_min_offset] if waits else first)
    return None


def _copy(admin: AdminCore, group: str, queue: MessageQueue, offset: int) -> Op[None]:
    """Have the broker store a message among the dead letters of a group (36), as a consumer that gives it up does."""
    wire_queue = admin.wire_queue(queue)
    addresses = (yield from admin.cluster()).broker_addr_table.get(queue.broker_name)
    address = addresses.broker_addrs.get(0) if addresses is not None else None
    if address is None:
        raise NoRoute(queue.topic)
    if (config := (yield from admin.group_configs(address)).get(group)) is not None and config.retry_queue_nums <= 0:
        raise UsageError(
            f"group {group} stores no messages that are given back (retryQueueNums is 0): skip it without the dead letters"
        )
    page = yield from read_page(admin, address, wire_queue, offset, 1, alone=True)
    message = next(iter(page.messages if page is not None else ()), None)
    if message is None or message.queue_offset != offset:
        raise OffsetIllegal(f"the message at offset {offset:,} of {_place(queue)} cannot be read: skip it without the dead letters")
    request = ConsumerSendMsgBack(
        offset=message.physical_offset, group=admin.wire(group), delay_level=TO_DEAD_LETTERS,
        origin_msg_id=message.offset_msg_id, origin_topic=wire_queue.topic, unit_mode=False, broker_name=queue.broker_name,
        reason=SKIPPED,
    )  # fmt: skip
    yield from ask(address, request, b"", admin.settings.request_timeout_ms)
