"""Weighing ranges: how many questions it takes, and what stands for brokers that do not know the request."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.instance import Instance
from halfmoon.client.core.ranges import RangesCore, RangeSettings
from halfmoon.client.core.weighing import LIKELY_BYTES, SAMPLE_COUNT, SAMPLED_MAX, weigh
from halfmoon.client.settings import settings_of
from halfmoon.errors import ConnectFailed, PeerError
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.headers.ranges import PARTS, STRETCHES_MAX, Stretches, WeighRanges, Weights
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.json import from_json, to_json
from halfmoon.wire.record import encode_record
from tests.client.scripted import Reply, Scripted, Seen, route, routes


@pytest.fixture
def script() -> Scripted:
    found = Scripted()
    found.on(GetRouteinfoByTopic, routes(T=route({"broker-a": 200, "broker-b": 3})))
    return found


def core() -> RangesCore:
    settings = settings_of(RangeSettings, {"nameserver": "10.0.0.9:9876", "retries_max": 0})
    return RangesCore(Instance(settings, "10.0.0.3@1", Random(1)), settings)


def weighed(seen: Seen) -> Reply:
    asked = from_json(Stretches, seen.body).stretches
    return Reply(body=to_json(Weights([[each.queue_id] * PARTS for each in asked])))


def pulled(sizes: dict[int, int]):
    """Answer pulls with eight messages, their bodies as long as ``sizes`` says of their queue."""

    def answer(seen: Seen) -> Reply:
        queue, offset = seen.request.queue_id, seen.request.queue_offset
        header = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=offset + 8, min_offset=0, max_offset=2**40)
        if queue not in sizes:
            return Reply(20, header)
        record = encode_record(
            topic="T", queue_id=queue, queue_offset=offset, physical_offset=0, body=bytes(sizes[queue]), properties=b"", born_ms=1,
            born_host=bytes(8), store_ms=2, store_host=bytes(8),
        )  # fmt: skip
        return Reply(0, header, record * seen.request.max_msg_nums)

    return answer


def test_it_takes_one_question_for_many_ranges_however_long_they_are(script: Scripted):
    script.on(WeighRanges, weighed)
    ranges = {("broker-a", queue): (0, 10**12) for queue in range(200)} | {("broker-b", 2): (5, 6)}

    result = script.run(weigh(core(), "T", ranges))

    assert result == {key: [key[1]] * PARTS for key in ranges}
    assert len(script.asked(WeighRanges)) == -(-200 // STRETCHES_MAX) + 1
    counts = {len(from_json(Stretches, seen.body).stretches) for seen in script.asked(WeighRanges)}
    assert counts == {STRETCHES_MAX, 200 % STRETCHES_MAX, 1}


def test_of_other_brokers_a_few_messages_of_the_longest_ranges_stand_for_all(script: Scripted):
    script.on(WeighRanges, Reply(3))
    script.on(PullMessage, pulled({queue: 100 if queue else 1_000 for queue in range(200)}))
    ranges = {("broker-a", queue): (1_000, 1_000_000 - queue) for queue in range(200)}

    result = script.run(weigh(core(), "T", ranges))

    assert len(script.asked(PullMessage)) == SAMPLED_MAX
    assert {seen.request.max_msg_nums for seen in script.asked(PullMessage)} == {SAMPLE_COUNT}
    heavy, light, unseen = (sum(result["broker-a", queue]) for queue in (0, 1, 199))
    assert 5 < heavy / light < 10
    assert light < unseen < heavy
    assert all(len(parts) == PARTS for parts in result.values())


def test_where_no_message_can_be_looked_at_all_count_the_same(script: Scripted):
    script.on(WeighRanges, Reply(3))
    script.on(PullMessage, ConnectFailed("gone"))
    ranges = {("broker-b", 0): (0, 160), ("broker-b", 1): (0, 0)}

    result = script.run(weigh(core(), "T", ranges))

    assert result == {("broker-b", 0): [10 * LIKELY_BYTES] * PARTS, ("broker-b", 1): [0] * PARTS}


@pytest.mark.parametrize("parts", [[], [[1] * (PARTS - 1)], [[-1] * PARTS]])
def test_an_answer_about_something_else_is_an_error(script: Scripted, parts: list[list[int]]):
    script.on(WeighRanges, Reply(body=to_json(Weights(parts))))

    with pytest.raises(PeerError, match="weighed"):
        script.run(weigh(core(), "T", {("broker-b", 0): (0, 10)}))
