"""One request and its reply."""

from __future__ import annotations

import pytest

from halfmoon.client.core.ask import ask, at_each, call, tell
from halfmoon.errors import ConnectFailed, PartlyDone, TopicNotFound
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply
from tests.client.scripted import REFUSED, Reply, Scripted

REQUEST = GetMaxOffset(topic="orders", queue_id=0)


def test_a_reply_of_another_code_is_returned_by_call_and_raised_by_ask():
    script = Scripted()
    script.on(GetMaxOffset, Reply(17, remark="no topic"))

    assert script.run(call("broker:1", REQUEST)).code == 17
    with pytest.raises(TopicNotFound, match="no topic") as caught:
        script.run(ask("broker:1", REQUEST))

    assert caught.value.address == "broker:1"


def test_the_reply_comes_within_the_time_that_is_given():
    script = Scripted()
    script.on(GetMaxOffset, Reply(header=OffsetReply(offset=7)))

    assert script.run(ask("broker:1", REQUEST, b"body", 250)).header(OffsetReply).offset == 7
    assert [(seen.address, seen.body, seen.timeout_ms) for seen in script.seen] == [("broker:1", b"body", 250)]


def test_a_one_way_request_carries_its_remark_and_fails_only_when_it_cannot_leave():
    script = Scripted()

    script.run(tell("broker:1", REQUEST, remark="why"))
    script.on(GetMaxOffset, REFUSED)
    with pytest.raises(ConnectFailed):
        script.run(tell("broker:1", REQUEST))

    assert [(seen.oneway, seen.remark) for seen in script.told] == [(True, "why"), (True, None)]


def test_a_change_at_several_servers_is_made_where_it_can_be_and_the_error_says_where_it_was_not():
    script = Scripted()
    script.on(GetMaxOffset, lambda seen: REFUSED if seen.address == "b:1" else Reply(header=OffsetReply(offset=7)))

    def changed(address: str):
        return (yield from ask(address, REQUEST)).header(OffsetReply).offset

    with pytest.raises(PartlyDone, match=r"done at broker-a, broker-c, but not at broker-b: connect failed") as caught:
        script.run(at_each({f"broker-{name}": changed(f"{name}:1") for name in "abc"}))
    assert (caught.value.done, list(caught.value.failed), caught.value.retry) == (
        {"broker-a": 7, "broker-c": 7},
        ["broker-b"],
        True,
    )
    assert script.run(at_each({"broker-a": changed("a:1")})) == {"broker-a": 7}
    with pytest.raises(ConnectFailed):
        script.run(at_each({"broker-b": changed("b:1")}))
