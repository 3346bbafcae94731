"""Objects hear of a fork in the child, while somebody keeps them."""

from __future__ import annotations

from halfmoon.events.forks import hear_of_forks
from tests.events.forking import in_child


class Lock:
    """Counts the forks that it heard of."""

    count = 0

    def forked(self) -> None:
        self.count += 1


def test_an_object_hears_of_a_fork_once_and_only_in_the_child() -> None:
    kept = Lock()
    for _ in range(2):
        hear_of_forks(kept)
    hear_of_forks(Lock())  # nobody keeps it

    def heard_once() -> None:
        assert kept.count == 1

    assert in_child(heard_once)
    assert kept.count == 0
