"""Replies to pulls: statuses, unpacking, the exact tag, and the broker that is asked."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from halfmoon.client.core.consume.pull import pull, pull_result, read_request
from halfmoon.client.core.nameservers import NameServers
from halfmoon.client.core.route_table import RouteTable
from halfmoon.errors import BrokerError, FlowControl, NetworkError, SubscriptionNotFound
from halfmoon.model import MessageQueue, PullStatus, subscription
from halfmoon.wire.codes import PULL_COMMIT_OFFSET, PULL_SUSPEND
from halfmoon.wire.command import Command, reply_command
from halfmoon.wire.headers.pull import PullMessage
from tests.client.messages import at, record
from tests.client.queue_of import Queues, pulled
from tests.client.scripted import Scripted

QUEUE = MessageQueue("orders", "broker-a", 0)
ALL = subscription("orders")


def result(code: int, body: bytes = b"", wanted=ALL):
    answer = pulled(code, 7, body, 9)
    return pull_result(reply_command(Command(11), answer.code, None, answer.header, body), QUEUE, wanted, 0)


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, PullStatus.FOUND), (19, PullStatus.NO_NEW_MSG), (20, PullStatus.NO_MATCHED_MSG), (21, PullStatus.OFFSET_ILLEGAL)],
)
def test_four_codes_are_results(code, status):
    found = result(code)

    assert (found.status, found.next_offset, found.min_offset, found.max_offset, found.messages) == (status, 7, 0, 9, [])


@pytest.mark.parametrize(("code", "error"), [(24, SubscriptionNotFound), (215, FlowControl), (23, BrokerError), (1, BrokerError)])
def test_other_codes_are_errors(code, error):
    with pytest.raises(error):
        result(code)


def test_messages_come_unpacked_with_their_broker_and_the_queues_ends():
    packed = record(5, zlib.compress(b"long body"), sys_flag=0x301, tag="A")

    (message,) = result(0, packed).messages

    assert (message.body, message.sys_flag, message.broker_name) == (b"long body", 0x300, "broker-a")
    assert (message.properties["MIN_OFFSET"], message.properties["MAX_OFFSET"]) == ("0", "9")
    assert (message.msg_id, message.tag) == ("ID5", "A")


def test_a_body_is_unpacked_when_it_is_asked_for_and_not_before(monkeypatch):
    asked = []
    monkeypatch.setattr("halfmoon.client.core.consume.pull.decompress", lambda body, sys_flag: asked.append(body) or b"long body")

    (message,) = result(0, record(5, b"packed", sys_flag=0x301, tag="A"), subscription("orders", "A")).messages

    assert asked == []
    assert (message.body, asked) == (b"long body", [b"packed"])


def test_a_body_that_does_not_unpack_is_left_as_it_is():
    (message,) = result(0, record(5, b"not zlib", sys_flag=1)).messages

    assert (message.body, message.sys_flag) == (b"not zlib", 1)


@pytest.mark.mission("001-09")
def test_only_exact_tags_pass():
    body = record(1, tag="Aa") + record(2, tag="BB") + record(3)

    assert [message.queue_offset for message in result(0, body, subscription("orders", "Aa || C")).messages] == [1]
    assert len(result(0, body).messages) == 3


def test_a_slave_is_never_asked_to_store_progress():
    script = Scripted()
    routes = RouteTable(NameServers(["ns:1"], Random(1)), Random(1))
    routes.brokers = {"broker-a": {0: "m", 1: "s"}}
    script.on(PullMessage, pulled(19, 0))

    for broker_id in (0, 1):
        asked = read_request(QUEUE, 0, 1, broker_name="broker-a")
        asked.sys_flag, asked.commit_offset = PULL_COMMIT_OFFSET | PULL_SUSPEND, 5
        script.run(pull(routes, asked, ALL, broker_id=broker_id, timeout_ms=3_000))

    assert [(seen.address, seen.request.sys_flag) for seen in script.seen] == [("m", 3), ("s", 2)]
    with pytest.raises(NetworkError, match="not exist"):
        script.run(pull(routes, read_request(QUEUE, 0, 1, broker_name="gone"), ALL, timeout_ms=3_000))


# ---------------------------------------------------------------- records that do not decode


BROKEN = {
    "its magic": at(record(2), 4, b"\0\0\0\0"),
    "its topic's length": at(record(2), 88 + len(b"body"), b"\xff"),
    "its body's length": at(record(2), 84, b"\xff\xff\xff\xff"),
    "its size, too small": at(record(2), 0, b"\0\0\0\x10"),
    "its size, zero": at(record(2), 0, b"\0\0\0\0"),
    "its size, negative": at(record(2), 0, b"\xff\xff\xff\xff"),
    "its size, one less": at(record(2), 0, (len(record(2)) - 1).to_bytes(4, "big")),
    "its size, huge": at(record(2), 0, b"\x7f\xff\xff\xff"),
    "its magic and its offset": at(at(record(2), 4, b"\0\0\0\0"), 20, b"\x7f" * 8),
    "all of it": b"\xa5" * len(record(2)),
    "all of it, and more": b"\0" * 1000,
    "all of it, and short": b"\x01",
}


def pulls(records: list[bytes], batch: int = 32, wanted=ALL) -> tuple[list[int], list[int], list[int]]:
    """Pull a queue to its end; return the offsets of what came, of what was skipped, and where pulls began."""
    script = Scripted()
    Queues(script).records["orders", 0] = records
    routes = RouteTable(NameServers(["ns:1"], Random(1)), Random(1))
    routes.brokers = {"broker-a": {0: "m"}}
    came, skipped, next_offset = [], [], 0
    for _ in range(20):
        if next_offset >= len(records):
            break
        request = read_request(QUEUE, next_offset, batch, broker_name="broker-a")
        result = script.run(pull(routes, request, wanted, timeout_ms=3_000))
        came += [message.queue_offset for message in result.messages]
        skipped += result.skipped
        next_offset = result.next_offset
    assert next_offset == len(records)
    return came, skipped, [seen.request.queue_offset for seen in script.asked(PullMessage)]


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("batch", [1, 2, 32])
def test_a_record_that_does_not_decode_is_skipped_and_its_neighbours_come(fault, place, batch, caplog):
    records = [record(k) for k in range(5)]
    broken = BROKEN[fault]
    records[place] = at(broken, 20, place.to_bytes(8, "big")) if fault.startswith("its") and "offset" not in fault else broken

    came, skipped, begins = pulls(records, batch)

    assert came == [k for k in range(5) if k != place]
    assert skipped == [place]
    assert begins == sorted(begins)
    (warning,) = [entry.getMessage() for entry in caplog.records if "skipped" in entry.getMessage()]
    assert "queue=orders/broker-a:0" in warning
    assert f"offset={place} " in warning


@pytest.mark.parametrize("fault", BROKEN)
def test_a_run_of_broken_records_is_skipped_one_by_one(fault):
    came, skipped, _ = pulls([record(0), BROKEN[fault], BROKEN[fault], record(3), BROKEN[fault]])

    assert came == [0, 3]
    assert len(skipped) == 3


def test_a_queue_of_nothing_but_broken_records_comes_to_its_end():
    assert pulls([BROKEN["all of it"]] * 6)[:2] == ([], [0, 1, 2, 3, 4, 5])


def test_neighbours_of_other_tags_are_not_returned_and_not_asked_for_again():
    came, skipped, _ = pulls([record(0, tag="B"), BROKEN["its size, huge"], record(2, tag="A")], wanted=subscription("orders", "A"))

    assert (came, skipped) == ([2], [1])


def test_records_behind_a_broken_one_are_pulled_only_once_where_its_size_is_right():
    assert pulls([record(0), record(1), BROKEN["its magic"], record(3), record(4)])[2] == [0]


def test_a_pull_that_brings_no_record_and_goes_nowhere_still_goes_on():
    """A broker that says that the next pull begins where this one did, with a record that does not decode."""
    answer = pulled(0, 5, b"", 9)
    result = pull_result(reply_command(Command(11), 0, None, answer.header, b"nonsense"), QUEUE, ALL, 5, alone=True)

    assert (result.next_offset, result.skipped, result.messages) == (6, (5,), [])
