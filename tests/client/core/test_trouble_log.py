"""What cannot be reached is said: with its address and the reason, once at WARNING, then more and more seldom."""

from __future__ import annotations

import logging

import pytest

from halfmoon.client.core.trouble_log import KEPT_MAX, TroubleLog
from halfmoon.errors import UsageError
from halfmoon.model import subscription
from halfmoon.runtime.connections.sockets import connect_failed
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.client.queue_of import listening
from tests.client.scripted import Scripted


def test_a_trouble_is_told_once_then_with_back_off_and_its_end_is_told(caplog):
    troubles = TroubleLog()

    for second in range(300):
        troubles.failed("no heartbeat to broker b:1", "Connection refused", second * 1000)
    troubles.recovered("no heartbeat to broker b:1")
    troubles.recovered("no heartbeat to broker b:1")

    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        "no heartbeat to broker b:1: Connection refused; trying again",
        "no heartbeat to broker b:1: Connection refused; 31 times in 30 s",
        "no heartbeat to broker b:1: Connection refused; 91 times in 90 s",
        "no heartbeat to broker b:1: Connection refused; 211 times in 210 s",
        "no heartbeat to broker b:1: works again",
    ]


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_only_debug_shows_the_traceback_of_a_trouble(caplog, level):
    try:
        raise ConnectionRefusedError("nobody listens")
    except OSError as exc:
        error = exc
    with caplog.at_level(level, "halfmoon.client"):
        troubles = TroubleLog()
        for second in (0, 1, 60):
            troubles.failed("routes not refreshed", error, second * 1000)

    assert len(caplog.records) == 3
    assert [entry.exc_info is not None for entry in caplog.records] == [level == logging.DEBUG] * 3


def test_troubles_have_a_bound():
    troubles = TroubleLog()

    for number in range(KEPT_MAX + 5):
        troubles.failed(f"topic {number}", "gone", 0)

    assert len(troubles) == KEPT_MAX


@pytest.mark.parametrize("expression", ["a && b", "a b", "a | b", "a || b c", "amount > 5", "!a", "(a || b)", "a = 'b'"])
def test_an_expression_that_is_no_list_of_tags_is_refused_with_a_hint(expression):
    with pytest.raises(UsageError, match="sql="):
        subscription("t", expression)


@pytest.mark.parametrize("expression", ["a", "a || b", "a||b", " a-b_c.d || e:f ", "||a", "täg || 标签"])
def test_a_list_of_tags_is_taken(expression):
    assert subscription("t", expression).tags


def test_a_consumer_that_nobody_answers_says_so_once_with_the_address_and_the_reason(caplog):
    script = Scripted()
    script.on(GetRouteinfoByTopic, lambda seen: connect_failed(seen.address, ConnectionRefusedError(111, "Connect call failed")))
    listening(script, lambda messages: None)
    script.run_for(20_000)

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    [about] = [text for text in warnings if " orders" in text]
    assert about.startswith("C cannot consume orders: no name server answers: ")
    assert "connect to ns:1 failed: Connection refused" in about
