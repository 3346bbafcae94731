# ruff: noqa: PT012 (what stands in the block is what is tested)
"""What happens to published events when their transaction ends: sent, decided, dropped or left to the check."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from halfmoon.errors import BrokerError, ConnectFailed
from halfmoon.events import Publisher, local_transaction
from tests.events.fakes import FakeTransport, lost

T, C = "TP_ORDER", "EC_PAID"


@pytest.mark.parametrize("unknown", [False, True], ids=["rolled back", "unknown"])
def test_a_plain_event_is_dropped_where_the_transaction_did_not_surely_commit(
    events: Publisher, transport: FakeTransport, caplog: pytest.LogCaptureFixture, unknown: bool
) -> None:
    def commit() -> None:
        raise OSError("gone")

    with pytest.raises(OSError), local_transaction(commit):
        event_id = events.publish(T, C, 1, key="42").event_id
        if not unknown:
            raise OSError
    assert transport.calls == []
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == unknown
    assert all(f"event={event_id} topic={T} code={C} key=42" in text for text in said)


def test_deferred_events_keep_their_order_and_one_failure_stops_nothing(
    transport: FakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = Publisher("P_shop", transport=transport, tries_max=0)
    with local_transaction():
        ids = [publisher.publish(T, C, number, key=f"k{number}").event_id for number in range(4)]
        transport.script.extend([None, lost(), BrokerError("full", code=13), None])
    assert [message.msg_id for message in transport.messages] == ids
    lost_ones = [record.getMessage() for record in caplog.records if "event lost after commit" in record.getMessage()]
    assert [f"event={ids[1]} " in lost_ones[0], f"event={ids[2]} " in lost_ones[1]] == [True, True]
    assert "key=k1 " in lost_ones[0]


def test_deferred_events_are_tried_again_with_the_same_id(events: Publisher, transport: FakeTransport) -> None:
    with local_transaction():
        event_id = events.publish(T, C, 1).event_id
        transport.script.extend([lost(), lost(), None])
    assert [(call.message.msg_id, call.attempt) for call in transport.calls] == [(event_id, 1), (event_id, 2), (event_id, 3)]


def test_what_is_waited_for_after_one_commit_is_bounded_and_the_rest_is_sent_without_waiting(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]

    def send(call: Any) -> None:
        clock_s[0] += 0.06 if call.kind == "send" else 0

    monkeypatch.setattr("halfmoon.events.publishing.completion.time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    publisher = Publisher("P_shop", transport=transport, tries_max=0, timeout_ms=100)
    with local_transaction():
        for number in range(5):
            publisher.publish(T, C, number)
        transport.before = send
    assert transport.kinds == ["send", "send", "post", "post", "post"]


async def test_on_an_event_loop_deferred_events_are_not_waited_for_and_one_that_fails_to_the_end_is_told_in_the_log(
    events: Publisher, transport: FakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    async with local_transaction():
        first = await events.publish_async(T, C, 1)
        second = events.publish(T, C, 2)  # it waits for nothing, so a plain call may be used, too
        transport.script.extend([lost(), None, lost(), lost(), lost()])
    assert [(call.kind, call.attempt) for call in transport.calls] == [("post", n) for n in (1, 2, 1, 2, 3)]
    assert transport.messages[0].msg_id == transport.messages[1].msg_id == first.event_id
    assert [record.getMessage().partition(" topic")[0] for record in caplog.records if record.levelno == logging.ERROR] == [
        f"event lost after commit: event={second.event_id}"
    ]


@pytest.mark.mission("002-47", "002-48")
@pytest.mark.parametrize("unknown", [False, True], ids=["rolled back", "unknown"])
def test_a_half_message_is_rolled_back_with_a_warning_or_left_to_the_check_where_nobody_knows_the_end(
    events: Publisher, transport: FakeTransport, caplog: pytest.LogCaptureFixture, unknown: bool
) -> None:
    def commit() -> None:
        raise OSError("the connection broke")

    with pytest.raises(OSError), local_transaction(commit):
        event_id = events.publish(T, C, 1, transactional=True).event_id
        if not unknown:
            raise OSError
    assert (transport.decisions, transport.left) == (([], [event_id]) if unknown else ([(event_id, False)], []))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(f"message={event_id}" in text and f"decision={'unknown' if unknown else 'rollback'}" in text for text in warnings)


@pytest.mark.mission("002-51")
def test_what_the_second_phase_raises_never_reaches_the_caller(
    events: Publisher, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(*_: object, **__: object) -> None:
        raise ConnectFailed("no broker")

    with local_transaction():
        events.publish(T, C, 1, transactional=True)
        events.publish(T, C, 2, transactional=True)
        monkeypatch.setattr(transport, "decide", decide)
    assert caplog.text.count("synchronization failed") == 2


def test_plain_events_go_out_before_the_decisions(events: Publisher, transport: FakeTransport) -> None:
    with local_transaction():
        events.publish(T, C, 1, transactional=True)
        events.publish(T, C, 2)
        transport.before = lambda call: order.append(len(transport.decisions))
        order: list[int] = []
    assert order == [0]
    assert len(transport.decisions) == 1
