"""Where progress is kept: asked of brokers, told to them, and in a file for broadcasting."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets, offsets_json, same_topic
from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route_table import RouteTable
from halfmoon.errors import BrokerError, PeerError
from halfmoon.model import MessageQueue
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, UpdateConsumerOffset
from tests.client.scripted import Reply, Scripted

ONE, TWO = (MessageQueue("orders", "broker-a", i) for i in range(2))


def remote() -> RemoteOffsets:
    routes = RouteTable(NameServers(["ns:1"], Random(1)), Random(1))
    routes.brokers = {"broker-a": {0: "m", 1: "s"}}
    return RemoteOffsets("g", routes)


def test_progress_goes_forward_unless_it_is_set_on_purpose():
    offsets = remote()

    offsets.update(ONE, 5)
    offsets.update(ONE, 3)
    assert offsets.memory(ONE) == 5
    offsets.update(ONE, 3, only_forward=False)

    assert offsets.memory(ONE) == 3


def test_a_group_without_progress_is_minus_one_and_other_refusals_are_errors():
    script, offsets = Scripted(), remote()
    script.on(QueryConsumerOffset, Reply(22), Reply(1), Reply(header=OffsetReply(offset=8)))

    assert script.run(offsets.fetch(ONE)) == -1
    with pytest.raises(BrokerError):
        script.run(offsets.fetch(ONE))
    assert script.run(offsets.fetch(ONE)) == offsets.memory(ONE) == 8


def test_our_queues_are_told_to_the_master_one_way_and_others_forgotten():
    script, offsets = Scripted(), remote()
    offsets.update(ONE, 5)
    offsets.update(TWO, 6)

    script.run(offsets.persist([ONE]))

    (seen,) = script.told
    assert (seen.address, type(seen.request), seen.request.queue_id, seen.request.commit_offset) == (
        "m",
        UpdateConsumerOffset,
        0,
        5,
    )
    assert offsets.memory(TWO) == -1


def test_a_broker_that_is_gone_does_not_stop_the_others():
    script, offsets = Scripted(), remote()
    gone = MessageQueue("orders", "broker-0", 0)
    offsets.update(gone, 1)
    offsets.update(ONE, 2)

    script.run(offsets.persist([gone, ONE]))

    assert len(script.told) == 1


class File:
    def __init__(self, data=None):
        self.data, self.saves = data, 0

    def load(self):
        return self.data

    def save(self, data):
        self.data, self.saves = data, self.saves + 1


def test_the_file_is_written_only_when_something_changed_and_read_back():
    script, file = Scripted(), File()
    offsets = LocalOffsets(file)
    script.run(offsets.load())
    script.run(offsets.persist([ONE]))
    offsets.update(ONE, 5)

    for _ in range(3):
        script.run(offsets.persist([ONE]))
    again = LocalOffsets(file)
    script.run(again.load())

    assert file.saves == 1
    assert script.run(again.fetch(ONE)) == 5
    assert script.run(again.fetch(TWO)) == -1


def test_a_damaged_file_is_an_error_not_a_new_beginning():
    script = Scripted()

    with pytest.raises(PeerError):
        script.run(LocalOffsets(File(b"{half")).load())


def test_the_format_is_that_of_java_and_its_standard_form_is_read_too():
    raw = b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"orders"}:12}}'
    standard = b'{"offsetTable": {"{\\"brokerName\\":\\"broker-a\\",\\"queueId\\":1,\\"topic\\":\\"orders\\"}": 12}}'

    assert offsets_json({TWO: 12}) == raw
    for text in (raw, standard):
        script, offsets = Scripted(), LocalOffsets(File(text))
        script.run(offsets.load())
        assert script.run(offsets.fetch(TWO)) == 12


def test_the_file_says_of_which_topic_its_offsets_are_and_java_reads_past_that():
    script, file = Scripted(), File()
    offsets = LocalOffsets(file)
    script.run(offsets.load())
    offsets.update(TWO, 12)
    offsets.learn_birth(TWO, 1_700_000_000_000)

    script.run(offsets.persist([TWO]))
    again = LocalOffsets(file)
    script.run(again.load())

    queue = b'{"brokerName":"broker-a","queueId":1,"topic":"orders"}'
    assert file.data == b'{"offsetTable":{%s:12},"topicBirths":{%s:1700000000000}}' % (queue, queue)
    assert (again.memory(TWO), again.birth(TWO)) == (12, 1_700_000_000_000)


def test_an_offset_is_committed_with_the_birth_that_came_with_it():
    script, offsets = Scripted(), remote()
    script.on(QueryConsumerOffset, Reply(header=OffsetReply(offset=7, topic_birth_ms=1000)))
    script.run(offsets.fetch(ONE))
    offsets.learn_birth(ONE, 2000)  # what is known stays: with it the broker refuses

    script.run(offsets.persist([ONE]))

    assert [told.request.topic_birth_ms for told in script.told] == [1000]


def test_what_a_broker_tells_that_knows_no_births_says_nothing():
    script, offsets = Scripted(), remote()
    script.on(QueryConsumerOffset, Reply(header=OffsetReply(offset=7)))
    script.run(offsets.fetch(ONE))

    script.run(offsets.persist([ONE]))

    assert offsets.birth(ONE) == -1
    assert [told.request.topic_birth_ms for told in script.told] == [None]


@pytest.mark.parametrize(
    ("known", "now", "same"), [(1, 1, True), (1, 2, False), (0, 2, False), (-1, 2, True), (1, 0, True), (1, -1, True), (0, 0, True)]
)
def test_a_birth_that_is_known_now_is_anothers_where_it_was_not_known_before(known, now, same):
    assert same_topic(known, now) is same
