"""When a record of the timer topic is to be looked at, as its tag code says."""

from __future__ import annotations

import pytest

from halfmoon.store.timer.messages import timer_code


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        (b"TIMER_OUT_MS\x015000\x02", 5000),
        (b"TIMER_OUT_MS\x015000\x02TIMER_LOOK_MS\x013000\x02", 3000),
        (b"TIMER_CANCELS\x0117\x02TIMER_OUT_MS\x015000\x02", -18),
        (b"", 77),
        (b"TIMER_OUT_MS\x01soon\x02", 77),
        (b"TIMER_OUT_MS\x01" + b"9" * 19 + b"\x02", 77),
    ],
)
def test_the_code_says_when_to_look(properties: bytes, code: int):
    assert timer_code(properties, 77) == code
