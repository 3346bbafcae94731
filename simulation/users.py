"""Replayable users of a simulated cluster: they send, pull, consume and commit, and write what they learn into a `Ledger`.

Each user is an operation (a generator over `halfmoon.effects`) with its own source of chance, so that a history can be repeated
and a user's code could run against a real broker as well. They speak the wire directly, without our client: what they prove, they
prove of the broker. They go on until ``plan.closing`` is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from halfmoon.effects import Call, Now, Op, Tell, sleep
from halfmoon.errors import BadMessage, NetworkError, ResponseCode
from halfmoon.model import KEYS, TAGS, UNIQ_KEY, StoredMessage
from halfmoon.testing.requests import QUEUES, messages_of, pull_request, send_header, send_request
from halfmoon.wire import properties
from halfmoon.wire.command import Command
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.send import SendBatchMessage, SendMessage, SendMessageReply, SendMessageV2
from halfmoon.wire.record import BatchItem, encode_batch
from simulation.ledger import Acked, Commit, Ledger, Place, Seen, Waited

TAGS_USED = ("paid", "sent", "lost")


@dataclass
class WorkloadPlan:
    """Plan that users of a history share: addresses of brokers, the ledger, and whether to come to an end."""

    brokers: dict[str, str]
    ledger: Ledger
    clock: Callable[[], int]
    closing: bool = False
    on_seen: Callable[[Seen], None] = lambda seen: None


def producer(
    plan: WorkloadPlan, name: str, topic: str, random: Random, *, pause_ms: tuple[int, int] = (0, 30), batches: float = 0.15
) -> Op[int]:
    """Send messages one after another, each again until it is acknowledged, eight times at most; return how many were acknowledged.

    A message keeps its broker and queue in every attempt, so that order can be judged.
    """
    number = acknowledged = 0
    while not plan.closing:
        place = Place(random.choice(sorted(plan.brokers)), topic, random.randrange(QUEUES))
        count = random.randint(2, 6) if random.random() < batches else 1
        bodies = [_body(name, number + i, random) for i in range(count)]
        for body in bodies:
            plan.ledger.attempted.setdefault(body, set()).add(place)
        if count == 1 and random.random() < 0.05:
            yield from _send_oneway(plan, place, bodies[0], random)
        else:
            acknowledged += yield from _send_until_acked(plan, name, number, place, bodies, random)
        number += count
        yield from sleep(random.randint(*pause_ms))
    return acknowledged


def _send_until_acked(plan: WorkloadPlan, name: str, number: int, place: Place, bodies: list[bytes], random: Random) -> Op[int]:
    header, body = _framed(place, name, number, bodies, (yield Now()), random)
    for _ in range(8):
        try:
            reply = yield Call(plan.brokers[place.broker], header, body, 3000)
        except NetworkError:
            yield from sleep(random.randint(5, 400))
        else:
            if reply.code == 0:
                return _acknowledged(plan, name, number, place, bodies, reply.header(SendMessageReply))
            if reply.code not in _RETRY:
                plan.ledger.unexpected.append(f"a send to {place} was answered {reply.code}: {reply.remark}")
                return 0
            yield from sleep(random.randint(20, 600))
        if plan.closing:
            break
    return 0


_RETRY = {1, 2, int(ResponseCode.FLUSH_DISK_TIMEOUT), int(ResponseCode.SERVICE_NOT_AVAILABLE)}


def _acknowledged(plan: WorkloadPlan, name: str, number: int, place: Place, bodies: list[bytes], reply: SendMessageReply) -> int:
    ids = reply.msg_id.split(",")
    if len(ids) != len(bodies) or reply.queue_id != place.queue_id:
        plan.ledger.unexpected.append(f"{len(bodies)} messages to {place} were answered {reply}")
        return 0
    for i, body in enumerate(bodies):
        plan.ledger.acked.append(Acked(plan.clock(), place, reply.queue_offset + i, ids[i], name, number + i, body))
    return len(bodies)


def _send_oneway(plan: WorkloadPlan, place: Place, body: bytes, random: Random) -> Op[None]:
    header, _ = _framed(place, "oneway", 0, [body], (yield Now()), random)
    try:
        yield Tell(plan.brokers[place.broker], header, body)
    except NetworkError:
        yield from sleep(random.randint(5, 100))


def _framed(
    place: Place, name: str, number: int, bodies: list[bytes], now: int, random: Random
) -> tuple[SendMessage | SendMessageV2, bytes]:
    topic, queue_id, tag = place.topic, place.queue_id, random.choice((*TAGS_USED, None))
    if len(bodies) == 1:
        unique = f"{name}-{number}"
        return send_request(topic, queue_id, tag, f"k{number % 7}", unique, now, long=random.random() < 0.3), bodies[0]
    shared = {TAGS: tag} if tag else {}
    parts = [
        BatchItem(body, properties.encode({UNIQ_KEY: f"{name}-{number + i}", KEYS: f"k{i}"} | shared))
        for i, body in enumerate(bodies)
    ]
    return send_header(SendBatchMessage, topic, queue_id, now, {"WAIT": "true"}, batch=True), encode_batch(parts)


def _body(name: str, number: int, random: Random) -> bytes:
    size = random.choice((0, 5, 60, 300, 2000))
    return f"{name}/{number}/".encode() + random.randbytes(size).hex().encode()


def puller(plan: WorkloadPlan, place: Place, random: Random, *, tag: str | None = None) -> Op[int]:
    """Read a queue from its beginning to its end, over and over, holding the last pull; return how many messages came."""
    offset = count = 0
    while not plan.closing:
        count_max, wait_ms, begun_ms = random.choice((1, 3, 32)), random.choice((0, 500, 3000)), plan.clock()
        request = pull_request(
            "pullers", place.topic, place.queue_id, offset, count=count_max, wait_ms=wait_ms, expression=tag or "*"
        )  # fmt: skip
        try:
            reply = yield Call(plan.brokers[place.broker], request, b"", 6000)
        except NetworkError:
            yield from sleep(random.randint(5, 500))
            continue
        _waited(plan, place, reply, wait_ms, begun_ms)
        moved = _take(plan, place, reply, tag)
        if moved is None:
            yield from sleep(random.randint(20, 300))
            continue
        count += moved[1]
        offset = random.randint(0, moved[0]) if random.random() < 0.01 else moved[0]
        yield from sleep(random.randint(1, 80))
    return count


def consumer(plan: WorkloadPlan, group: str, place: Place, random: Random) -> Op[int]:
    """Consume a queue from the group's stored offset and commit what was consumed; return the last offset confirmed."""
    confirmed = -1
    address = plan.brokers[place.broker]
    while not plan.closing:
        try:
            asked = yield Call(
                address, QueryConsumerOffset(consumer_group=group, topic=place.topic, queue_id=place.queue_id), b"", 3000
            )
            if asked.code not in (0, 22):
                yield from sleep(random.randint(20, 300))
                continue
            offset = asked.header(OffsetReply).offset if asked.code == 0 else 0
            plan.ledger.positions.append(Commit(plan.clock(), group, place, offset))
            for _ in range(random.randint(1, 6)):
                begun_ms = plan.clock()
                reply = yield Call(address, pull_request(group, place.topic, place.queue_id, offset, wait_ms=800), b"", 6000)
                _waited(plan, place, reply, 800, begun_ms)
                moved = _take(plan, place, reply, None)
                if moved is None or not moved[1]:
                    break
                offset = moved[0]
                commit = UpdateConsumerOffset(
                    consumer_group=group, topic=place.topic, queue_id=place.queue_id, commit_offset=offset
                )  # fmt: skip
                done = yield Call(address, commit, b"", 3000)
                if done.code == 0:
                    confirmed = max(confirmed, offset)
                    plan.ledger.commits.append(Commit(plan.clock(), group, place, offset))
        except NetworkError:
            pass
        yield from sleep(random.randint(5, 200))
    return confirmed


def _waited(plan: WorkloadPlan, place: Place, reply: Command, wait_ms: int, begun_ms: int) -> None:
    """Write down how long a pull waited that found nothing."""
    if reply.code == 19:
        plan.ledger.waits.append(Waited(plan.clock(), place, wait_ms, plan.clock() - begun_ms))


def _take(plan: WorkloadPlan, place: Place, reply: Command, tag: str | None) -> tuple[int, int] | None:
    """Write down what a pull brought; return the next offset and the number of messages, or None to try again later."""
    if reply.code not in (0, 19, 20, 21):
        if reply.code not in (1, 2, 14, 17):
            plan.ledger.unexpected.append(f"a pull of {place} was answered {reply.code}: {reply.remark}")
        return None
    header = reply.header(PullMessageReply)
    count, last = 0, -1
    for message, record in _whole_messages(plan, place, reply):
        if (place, message.queue_offset) in plan.ledger.spoilt and message.queue_offset > last:
            pass  # it was hit where no reader can see it, and says something else than was sent
        elif message.queue_offset <= last or message.topic != place.topic or message.queue_id != place.queue_id:
            plan.ledger.unexpected.append(f"a pull of {place} brought {message.topic}/{message.queue_id}@{message.queue_offset}")
        elif tag is not None and message.tag not in tag.split("||"):
            plan.ledger.unexpected.append(f"a pull of {place} for tag {tag} brought tag {message.tag}")
        last = message.queue_offset
        seen = Seen(plan.clock(), place, message.queue_offset, message.physical_offset, message.body, record)
        plan.ledger.seen.append(seen)
        plan.on_seen(seen)
        count += 1
    if header.next_begin_offset <= last:
        plan.ledger.unexpected.append(f"a pull of {place} brought {last} and goes on at {header.next_begin_offset}")
    return header.next_begin_offset, count


def _whole_messages(plan: WorkloadPlan, place: Place, reply: Command) -> list[tuple[StoredMessage, bytes]]:
    """Return the messages of a pull's answer; what is no message is written down and ends them."""
    found: list[tuple[StoredMessage, bytes]] = []
    try:
        for each in messages_of(reply) if reply.code == 0 else ():
            found.append(each)
    except BadMessage as exc:
        plan.ledger.unexpected.append(f"a pull of {place} brought what is no message: {exc}")
    return found


def read_queue(plan: WorkloadPlan, place: Place) -> Op[dict[int, Seen]]:
    """Read all of a queue, from its lowest offset, and return its messages by offset. Raises what the network raises."""
    found: dict[int, Seen] = {}
    offset = 0
    for _ in range(100_000):
        request = pull_request("readers", place.topic, place.queue_id, offset)
        reply = yield Call(plan.brokers[place.broker], request, b"", 5000)
        if reply.code in (1, 17):
            return found  # no such queue: when something was acknowledged there, it is missed by the checkers
        if reply.code not in (0, 19, 20, 21):
            plan.ledger.unexpected.append(f"reading {place} at {offset} was answered {reply.code}: {reply.remark}")
            return found
        header = reply.header(PullMessageReply)
        for message, record in _whole_messages(plan, place, reply):
            found[message.queue_offset] = Seen(
                plan.clock(), place, message.queue_offset, message.physical_offset, message.body, record
            )
        if header.next_begin_offset == offset or (reply.code == 21 and header.next_begin_offset < offset):
            return found
        offset = header.next_begin_offset
    plan.ledger.unexpected.append(f"reading {place} never came to its end")
    return found
