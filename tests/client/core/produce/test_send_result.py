"""What the reply to a send says, and the codes of failures that no broker sent."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce.send_result import failure_code
from halfmoon.errors import (
    BrokerError,
    ConnectFailed,
    ConnectionLost,
    NetworkError,
    RequestTimeout,
)
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from tests.client.core.produce.test_send import ORDER
from tests.client.scripted import Reply, Scripted, producer


def test_an_answer_with_queue_minus_one_leaves_the_queue_that_was_asked_for():
    script = Scripted()
    sender = producer(script, 1)
    script.on(SendMessageV2, Reply(header=SendMessageReply(msg_id="id", queue_id=-1, queue_offset=5)))

    assert script.run(sender.send(ORDER)).queue.queue_id == 0


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (BrokerError("busy", code=2), 2),
        (RequestTimeout("late"), 10002),
        (ConnectFailed("nobody there"), 10001),
        (ConnectionLost("cut"), 10001),
        (NetworkError("no such broker"), 10003),
        (None, 10003),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_the_code_of_a_failure_is_the_brokers_or_says_what_failed_in_the_network(cause, code):
    assert failure_code(cause) == code
