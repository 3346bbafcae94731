"""The sender's own id of a message, and how a repeat of it travels."""

from __future__ import annotations

import threading
from random import Random

import pytest

from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.model import REPEAT, UNIQ_KEY, Message
from halfmoon.wire.headers.send import SendMessageV2
from halfmoon.wire.ids import UniqueIds
from halfmoon.wire.properties import decode
from tests.client.scripted import Scripted
from tests.client.transacting import transactions


def sent(script: Scripted) -> dict[str, str]:
    """The properties of the one message that was sent."""
    (seen,) = script.asked(SendMessageV2)
    return decode(seen.request.properties.encode())


def test_the_id_of_the_caller_is_the_one_that_travels_and_comes_back():
    script = Scripted()
    core = transactions(script)

    result = script.run(core.sender.send(Message("orders", b"x", msg_id="order-7")))

    assert result.msg_id == "order-7"
    assert sent(script)[UNIQ_KEY] == "order-7"
    assert REPEAT not in sent(script)


def test_a_half_message_of_a_second_attempt_says_so():
    script = Scripted()
    core = transactions(script)

    stored = script.run(OpenHalf(core, Message("orders", b"x", msg_id="order-7", attempt=2)).store())

    assert stored.result.msg_id == "order-7"
    assert (sent(script)[UNIQ_KEY], sent(script)[REPEAT]) == ("order-7", "2")


@pytest.mark.parametrize("attempt", [0, -1, 1_000_001])
def test_a_count_of_attempts_that_cannot_be_is_refused(attempt):
    with pytest.raises(MessageIllegal, match="attempt"):
        Message("orders", b"x", msg_id="a", attempt=attempt).wire_properties()


def test_nobody_gives_the_mark_of_a_repeat_as_a_property():
    with pytest.raises(MessageIllegal, match=REPEAT):
        Message("orders", b"x", properties={REPEAT: "2"}).wire_properties()


def test_a_batch_takes_ids_but_no_repeats_and_none_twice():
    script = Scripted()
    sender = transactions(script).sender

    assert sender.prepare_batch([Message("orders", b"x", msg_id="a"), Message("orders", b"y", msg_id="b")], 1).msg_id == "a,b"
    with pytest.raises(UsageError, match="alone"):
        sender.prepare_batch([Message("orders", b"x", msg_id="a", attempt=2)], 1)
    with pytest.raises(UsageError, match="same msg_id"):
        sender.prepare_batch([Message("orders", b"x", msg_id="a"), Message("orders", b"y", msg_id="a")], 1)


def test_ids_made_by_many_threads_are_all_different():
    ids, found = UniqueIds(b"\x0a\0\0\1", 1, Random(7)), []

    def make() -> None:
        mine = [ids.next(1_700_000_000_000) for _ in range(5_000)]
        found.extend(mine)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == 40_000


# ---------------------------------------------------------------- the broker that may have it
