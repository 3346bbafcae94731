"""A client that a process has once."""

from __future__ import annotations

import threading

from halfmoon.client.anonymous import of_process
from halfmoon.client.ranges import Ranges, ranges
from tests.events.forking import in_child

NOBODY = "127.0.0.1:9"


def test_a_process_has_one_started_client_for_the_same_settings():
    first, again, other = ranges(nameserver=NOBODY), ranges(nameserver=NOBODY), ranges(nameserver=NOBODY, retries_max=3)

    assert isinstance(first, Ranges)
    assert first is again
    assert first is not other
    assert first.client_id != other.client_id


def test_a_child_forked_while_a_client_is_made_makes_one_of_its_own():
    making, over = threading.Event(), threading.Event()
    mine = ranges(nameserver=NOBODY)

    def make(settings: object) -> Ranges:
        making.set()
        over.wait(30)
        return Ranges(settings)

    thread = threading.Thread(target=of_process, args=(make, mine.settings))
    thread.start()
    making.wait(30)
    try:
        assert in_child(lambda: ranges(nameserver=NOBODY, retries_max=7), within_s=20)
    finally:
        over.set()
        thread.join()
