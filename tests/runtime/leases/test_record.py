"""Records of leases: what is let through, and what people are shown of it."""

from __future__ import annotations

import pytest

from halfmoon.errors import LeaseUnavailable
from halfmoon.limits import LEASE_RECORD_BYTES_MAX
from halfmoon.runtime.leases.record import checked, holder_and_epoch, line, stored


def test_a_record_that_cannot_be_kept_everywhere_is_refused() -> None:
    longest = b"x" * LEASE_RECORD_BYTES_MAX
    assert checked(longest) == longest.decode()
    for text in (longest + b"x", b"a\0", b"\xff"):
        with pytest.raises(ValueError):
            checked(text)


def test_a_record_longer_than_any_of_ours_is_not_read() -> None:
    longest = b"x" * LEASE_RECORD_BYTES_MAX
    assert stored(longest, "1", "a:1") == (longest, "1")
    with pytest.raises(LeaseUnavailable, match=f"a:1: the record has {LEASE_RECORD_BYTES_MAX + 1} bytes"):
        stored(longest + b"x", "1", "a:1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"holder": "broker-a/1", "epoch": 7, "more": []}', ("broker-a/1", 7)),
        (b'{"holder": "", "epoch": -1}', (None, None)),
        (b'{"holder": 1, "epoch": true}', (None, None)),
        (b'{"epoch": 2147483648}', (None, None)),
        (b'{"epoch": 2147483647}', (None, 2147483647)),
        (b"[]", (None, None)),
        (b"{", (None, None)),
        (b"[" * 60_000, (None, None)),
    ],
)
def test_only_a_holder_and_an_epoch_that_fit_are_shown(text: bytes, found: tuple[str | None, int | None]) -> None:
    assert holder_and_epoch(text) == found


def test_what_another_system_says_stays_one_short_line() -> None:
    assert line("no\n  such\x1b[31m\trole \u2028x") == "no such [31m role x"
    assert line("x" * 201) == "x" * 200 + "..."
