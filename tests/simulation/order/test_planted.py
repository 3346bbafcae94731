"""The checkers of order bite: within a delay level, of keys, and of what nobody ever consumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from halfmoon.broker.broker import Broker
from halfmoon.broker.delay.delivery import Due
from halfmoon.wire.command import Command
from simulation.delays.history import simulate_delays
from simulation.order.history import simulate_order
from tests.simulation.finding import some_seed_finds
from tests.simulation.messages.planted import PULL, forgetful, tampered

BITE = range(1, 7)
CRC, BODY_BYTES, BODY = slice(8, 12), slice(84, 88), 88
"""Where these stand in a record of IPv4 hosts."""


class Reversed(Broker):
    """Delivers what is due at once the wrong way round."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        deliveries = self.delays.deliveries
        store = deliveries.store

        def backwards(messages: Sequence[Due], now: int) -> list[Due]:
            return store(messages[::-1], now)

        deliveries.store = backwards  # type: ignore[method-assign]


def test_messages_of_a_delay_level_that_change_places_are_found() -> None:
    assert some_seed_finds(simulate_delays, BITE, "order", kinds=("kill",), make_broker=Reversed)


def keys_swapped(chance: Random) -> Callable[[int, Command], None]:
    """Let two messages of one key in a pull's answer change their bodies, so that the offsets say nothing of it."""

    def tamper(code: int, reply: Command) -> None:
        if code != PULL or not reply.body:
            return
        body, at = bytearray(reply.body), 0
        first: dict[tuple[bytes, int], int] = {}
        while at < len(body):
            size = int.from_bytes(body[at + BODY_BYTES.start : at + BODY_BYTES.stop], "big")
            key = bytes(body[at + BODY : at + BODY + size]).partition(b"/")[0], size
            if key in first:
                _swap(body, first[key], at, size)
                break
            first[key] = at
            at += int.from_bytes(body[at : at + 4], "big")
        reply.body = bytes(body)

    return tamper


def _swap(records: bytearray, one: int, other: int, size: int) -> None:
    for begin, end in ((CRC.start, CRC.stop), (BODY, BODY + size)):
        here, there = slice(one + begin, one + end), slice(other + begin, other + end)
        records[here], records[there] = records[there], records[here]


def test_messages_of_a_key_that_change_places_are_found() -> None:
    assert some_seed_finds(simulate_order, BITE, "keys", kinds=("join",), make_broker=tampered(keys_swapped))


def test_an_acknowledged_message_that_nobody_consumes_is_found() -> None:
    assert some_seed_finds(simulate_order, BITE, "never consumed", kinds=("join",), make_broker=forgetful)


def test_without_a_fault_the_same_seeds_hold() -> None:
    assert [simulate_order(seed, kinds=("join",)).problems for seed in BITE[:2]] == [[], []]
    assert [simulate_delays(seed, kinds=("kill",)).problems for seed in BITE[:2]] == [[], []]
