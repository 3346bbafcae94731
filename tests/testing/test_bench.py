"""A core on a bench: what goes in, what comes out, and works that are kept back."""

from __future__ import annotations

from functools import partial
from typing import Any

from halfmoon.testing.bench import Bench
from halfmoon.wire.command import encode, request_command
from tests.testing.toy import ASK, Toy


class Benched:
    """A toy on a bench."""

    def __init__(self) -> None:
        self.toy, self.bench = Toy(), Bench(1000)
        self.bench.begin(self.toy)

    def ask(self) -> None:
        self.bench.feed(1, encode(request_command(ASK, opaque=7)))

    def opaques(self) -> list[int]:
        return [command.opaque for command in self.bench.received[1]]


def test_a_peer_is_answered_in_a_turn() -> None:
    benched = Benched()
    benched.ask()
    assert benched.opaques() == []
    benched.bench.turn()
    assert benched.opaques() == [7]


def test_a_work_is_run_at_once_or_kept_back_and_told_what_came_of_it() -> None:
    benched = Benched()
    benched.toy.on_request = partial(benched.toy.answer_after_work, run=lambda: 1 // 0)
    benched.ask()
    benched.bench.turn()
    assert benched.opaques() == [7]

    works: list[Any] = []
    benched.bench.held_back = works
    benched.ask()
    benched.bench.turn()
    assert (len(works), benched.opaques()) == (1, [7])
    benched.bench.run_work(works.pop())
    benched.bench.run_effects()
    assert benched.opaques() == [7, 7]


def test_time_passes_with_every_tick_that_the_core_asks_for() -> None:
    benched = Benched()
    benched.toy.due_ms = 3000
    benched.bench.wait(5000)
    assert (benched.toy.ticks, benched.bench.now) == ([3000], 6000)


def test_a_core_is_told_of_what_is_lost_and_closes_what_it_wants() -> None:
    benched = Benched()
    benched.bench.connect(3)
    benched.bench.lose(3)
    assert benched.toy.gone == [3]
    benched.toy.on_request = benched.toy.hang_up
    benched.ask()
    benched.bench.turn()
    assert benched.bench.closed == {1: "enough"}
    assert benched.bench.stop() == []
