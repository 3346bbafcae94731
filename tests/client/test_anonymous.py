"""A client that a process has once."""

from __future__ import annotations

from halfmoon.client.ranges import Ranges, ranges

NOBODY = "127.0.0.1:9"


def test_a_process_has_one_started_client_for_the_same_settings():
    first, again, other = ranges(nameserver=NOBODY), ranges(nameserver=NOBODY), ranges(nameserver=NOBODY, retries_max=3)

    assert isinstance(first, Ranges)
    assert first is again
    assert first is not other
    assert first.client_id != other.client_id
