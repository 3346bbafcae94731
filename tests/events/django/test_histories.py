"""Random programs of blocks, savepoints and failures: afterwards the rows in the database and the events agree exactly."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import pytest
from django.db import DatabaseError, connections, transaction

from halfmoon.events import Codecs
from halfmoon.events.django import atomic, events
from halfmoon.events.django.models import Token
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.testing import MemoryBus
from tests.events.django.conftest import empty
from tests.events.django.orders.models import Order

DEPTH_MAX = 4
PROGRAMS = 80


class Failure(Exception):
    """The program fails on purpose."""


class Program:
    """One program: what it does is drawn from a seed."""

    def __init__(self, using: str, random: Random) -> None:
        self._using, self._random, self._count = using, random, 0

    def run(self) -> None:
        """Run a few outermost transactions."""
        for _ in range(self._random.randint(1, 3)):
            with contextlib.suppress(Failure, DatabaseError):
                self._block(0)

    def _block(self, depth: int) -> None:
        options: dict[str, Any] = {"using": self._using, "savepoint": self._random.random() < 0.8}
        with (transaction.atomic if self._random.random() < 0.5 else atomic)(**options):
            for _ in range(self._random.randint(0, 5)):
                self._random.choice([self._publish, self._publish, self._publish, self._inner, self._by_hand, self._trouble])(depth)

    def _publish(self, depth: int) -> None:
        """Place an order and publish two events of it; sometimes only the row, so that the transaction is found late."""
        self._count += 1
        number = str(self._count)
        Order.objects.using(self._using).create(number=number)
        events.publish("TP_ORDER", "EC_PAID", number, transactional=True)
        events.publish("TP_ORDER", "EC_SEEN", number)

    def _inner(self, depth: int) -> None:
        if depth < DEPTH_MAX:
            with contextlib.suppress(Failure) if self._random.random() < 0.7 else contextlib.nullcontext():
                self._block(depth + 1)

    def _by_hand(self, depth: int) -> None:
        sid = transaction.savepoint(using=self._using)
        for _ in range(self._random.randint(0, 2)):
            self._publish(depth)
        how = self._random.choice(["release", "undo", "undo and go on"])
        if how == "release":
            transaction.savepoint_commit(sid, using=self._using)
            return
        transaction.savepoint_rollback(sid, using=self._using)
        if how == "undo and go on":
            self._publish(depth)
            transaction.savepoint_rollback(sid, using=self._using)

    def _trouble(self, depth: int) -> None:
        how = self._random.choice(["raise", "asked", "swallowed", "nothing"])
        if how == "raise":
            raise Failure
        if how == "asked":
            transaction.set_rollback(True, using=self._using)
        if how == "swallowed" and self._count:  # a number that is there already
            with contextlib.suppress(DatabaseError), transaction.atomic(using=self._using):
                Order.objects.using(self._using).create(number="0")
                Order.objects.using(self._using).create(number="0")


@pytest.mark.slow
@pytest.mark.mission("002-52", "002-36", "002-30")
def test_rows_and_events_agree_whatever_the_program_does(using: str, bus: MemoryBus):
    ended = {"committed": 0, "rolled back": 0}
    for seed in range(PROGRAMS):
        empty(using)
        bus.clear()
        Program(using, Random(seed)).run()

        rows = sorted(Order.objects.using(using).values_list("number", flat=True))
        tokens = sorted(Token.objects.using(using).values_list("id", flat=True))
        committed = {code: sorted(_numbers(bus.committed, code)) for code in ("EC_PAID", "EC_SEEN")}
        assert committed == {"EC_PAID": rows, "EC_SEEN": rows}, f"seed {seed}"
        assert tokens == sorted(one.id for one in bus.committed if one.code == "EC_PAID"), f"seed {seed}"
        assert not bus.pending, f"seed {seed}"
        assert connections[using].get_autocommit()
        ended["committed"] += len(rows)
        ended["rolled back"] += len(bus.rolled_back)

    assert min(ended.values()) > PROGRAMS // 2, "the programs do something"


def _numbers(records: Any, code: str) -> list[str]:
    return [event_of(one.stored, Codecs()).payload for one in records if one.code == code]
