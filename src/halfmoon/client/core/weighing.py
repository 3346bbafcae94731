"""How many bytes ranges of queues hold, about: what is planned by is asked of the brokers, a few requests whatever the messages.

Our own brokers look at entries of their queues. Of others a few messages are pulled, and stand for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from halfmoon.client.core.ask import call
from halfmoon.client.core.ranges import RangesCore, Segment, answer_of, pull_request, side_by_side
from halfmoon.effects import Op
from halfmoon.errors import NetworkError, PeerError, RequestNotSupported
from halfmoon.hot import RECORD_BYTES_MIN
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import from_json, to_json
from halfmoon.wire.headers.ranges import PARTS, STRETCHES_MAX, Stretch, Stretches, WeighRanges, Weights

Weighed = dict[tuple[str, int], list[int]]
"""(broker name, queue id) → about how many bytes each part of its range has; the parts have equal numbers of offsets."""

SAMPLED_MAX, SAMPLE_COUNT = 64, 8
"""Queues of a topic at other brokers of which messages are pulled, and how many from the middle of the range."""

LIKELY_BYTES = 1024
"""Assumed size of a message when none of its topic could be looked at."""

_SIZE = Struct(">i").unpack_from


def weigh(core: RangesCore, topic: str, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Op[Weighed]:
    """Return how many bytes ranges of a topic's queues have, about: one request for `STRETCHES_MAX` of a broker, side by side.

    ``ranges`` are offsets [begin, end) by broker name and queue id. Raises NoRoute, NetworkError, BrokerError.
    """
    wire, chunks = core.wire(topic), list[list[tuple[str, int]]]()
    for broker in sorted({broker for broker, _ in ranges}):
        keys = sorted(key for key in ranges if key[0] == broker)
        chunks += [keys[at : at + STRETCHES_MAX] for at in range(0, len(keys), STRETCHES_MAX)]
    answers = yield from side_by_side([_weighed(core, wire, keys, ranges) for keys in chunks])
    weights: Weighed = {}
    for answer in answers:
        weights |= answer
    others = [key for key in sorted(ranges) if key not in weights]
    return weights | (yield from _sampled(core, wire, others, ranges)) if others else weights


def _weighed(
    core: RangesCore, topic: str, keys: list[tuple[str, int]], ranges: Mapping[tuple[str, int], tuple[int, int]]
) -> Op[Weighed]:
    """Ask one broker; nothing when it does not know the request."""
    body = to_json(Stretches([Stretch(queue, *ranges[broker, queue]) for broker, queue in keys]))
    request = WeighRanges(topic=topic, half_messages=core.settings.half_messages or None)
    try:
        reply = yield from core.asked(MessageQueue(topic, *keys[0]), request, body)
    except RequestNotSupported:
        return {}
    parts = from_json(Weights, bytes(reply.body)).part_bytes
    if len(parts) != len(keys) or any(len(sizes) != PARTS or min(sizes) < 0 for sizes in parts):
        raise PeerError(f"asked about {len(keys)} ranges, a broker weighed {len(parts)}, or in other parts than {PARTS}")
    return dict(zip(keys, parts))


def _sampled(
    core: RangesCore, topic: str, keys: list[tuple[str, int]], ranges: Mapping[tuple[str, int], tuple[int, int]]
) -> Op[Weighed]:
    """Weigh ranges by a few messages of each, those of the longest ones; the others by what these have in the mean."""
    counts = {key: ranges[key][1] - ranges[key][0] for key in keys}
    looked = sorted((key for key in keys if counts[key] > 0), key=lambda key: (-counts[key], key))[:SAMPLED_MAX]
    sizes = yield from side_by_side([_mean_bytes(core, MessageQueue(topic, *key), *ranges[key]) for key in looked])
    means = {key: size for key, size in zip(looked, sizes) if size}
    usual = sum(means.values()) // len(means) if means else LIKELY_BYTES
    return {key: [means.get(key, usual) * counts[key] // PARTS] * PARTS for key in keys}


def _mean_bytes(core: RangesCore, queue: MessageQueue, begin: int, end: int) -> Op[int]:
    """Return the mean size of messages in the middle of a range; 0: none was there."""
    middle = begin + (end - begin) // 2
    segment = Segment(middle, min(middle + SAMPLE_COUNT, end))
    try:
        address = yield from core.address(queue)
        reply = yield from call(address, pull_request(queue, segment), b"", core.settings.request_timeout_ms)
    except NetworkError:
        return 0  # who reads will try again
    answer = answer_of(reply, segment)
    return _mean(bytes(reply.body)) if answer is not None and answer.found else 0


def _mean(body: bytes) -> int:
    """Return the mean size of records that lie one behind the other."""
    at = count = 0
    while len(body) - at >= RECORD_BYTES_MIN:
        (size,) = _SIZE(body, at)
        if not RECORD_BYTES_MIN <= size <= len(body) - at:
            break
        at, count = at + size, count + 1
    return at // count if count else 0
