"""`replace`: a publisher that exists already is on a bus inside the block, and as it was before afterwards."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfmoon.errors import NotRunning, UsageError
from halfmoon.events import NoTransaction, PayloadRefused, Publisher, local_transaction
from halfmoon.events.testing import MemoryBus
from halfmoon.testing import replace

T, C = "TP_ORDER", "EC_PAID"


class Shop:
    """What modules of an application make when they are imported: sessions, and a publisher whose broker nobody runs."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.engine = create_engine(f"sqlite:///{path / 'shop.db'}")
        self.Session = sessionmaker(self.engine)
        self.events = Publisher("P_shop", "127.0.0.1:1", session=self.Session, **options)

    def sell(self, number: int) -> str:
        with self.Session.begin() as session:
            session.execute(text("create table if not exists orders (id integer)"))
            return str(self.events.publish(T, C, number).delivery)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path, lazy=True)
    yield made
    made.events.close(0)
    made.engine.dispose()


def test_a_publisher_is_on_the_bus_inside_the_block_and_as_it_was_before_afterwards(shop: Shop):
    before = dict(vars(shop.events))
    with replace(shop.events) as bus:
        shop.events.create_tables()
        assert shop.sell(1) == "prepared"
        assert [event.payload for event in bus.events(T, C)] == [1]
        with pytest.raises(NoTransaction):
            shop.events.publish(T, C, 2)
        assert vars(shop.events)["transport"] is not before["transport"]
    assert vars(shop.events) == before
    with replace(shop.events) as other:
        assert shop.sell(3) == "prepared"
    assert [event.payload for event in other.events(T, C)] == [3]


def test_it_is_restored_where_the_test_fails(shop: Shop):
    before = dict(vars(shop.events))
    with pytest.raises(ZeroDivisionError), replace(shop.events):
        raise ZeroDivisionError
    assert vars(shop.events) == before


def test_it_is_restored_where_what_is_given_is_no_bus_or_its_end_fails(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    before = dict(vars(shop.events))
    with pytest.raises(UsageError), replace(shop.events, bus=object()):  # type: ignore[arg-type]
        pass
    assert vars(shop.events) == before

    def fail(self: Publisher, flush_ms: int = 0) -> None:
        raise OSError("the database is gone")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="gone"), replace(shop.events):
        patch.setattr(Publisher, "close", fail)
    assert vars(shop.events) == before


def test_in_the_block_it_may_be_closed_as_a_lifespan_does_it(shop: Shop):
    for number in (1, 2):
        with replace(shop.events) as bus, shop.events:
            shop.events.create_tables()
            shop.sell(number)
        assert [event.payload for event in bus.events(T, C)] == [number]
    with replace(shop.events):
        shop.events.close()
        with pytest.raises(NotRunning):
            shop.sell(3)


def test_another_block_inside_is_refused_and_the_outer_one_goes_on(shop: Shop):
    with replace(shop.events) as bus:
        with pytest.raises(UsageError, match="P_shop is replaced already: leave that block first"), replace(shop.events):
            pass
        shop.events.create_tables()
        shop.sell(1)
        assert [event.payload for event in bus.events(T, C)] == [1]


@pytest.mark.parametrize("given", [(), ("events",), (None,)])
def test_what_is_no_publisher_is_refused(given: Any):
    with pytest.raises(UsageError, match=r"replace\(\) takes"), replace(*given):
        pass


def test_one_whose_relay_runs_is_refused_for_it_would_send_to_the_broker(tmp_path: Path):
    shop = Shop(tmp_path, mode="outbox")
    shop.events.transport.start(lambda stored: None)  # type: ignore[arg-type,return-value]
    shop.events.create_tables()
    with shop.events, pytest.raises(UsageError, match="has a relay that would send"), replace(shop.events):
        pass


def test_several_publishers_share_a_bus_and_their_checks_and_settings_stay(tmp_path: Path, shop: Shop):
    pay = Publisher("P_pay", "127.0.0.1:1", lazy=True, body_bytes_max=10)
    paid: set[int] = set()

    @pay.check("TP_PAY", C)
    def was_it_paid(event: Any, context: Any) -> None:
        if event.payload not in paid:
            context.set_rollback_only()

    mine = MemoryBus()
    with replace(pay, shop.events, bus=mine) as bus:
        assert bus is mine
        shop.events.create_tables()
        shop.sell(1)
        bus.lose_second_phase()
        with local_transaction(commit=lambda: paid.add(7)):
            pay.publish("TP_PAY", C, 7, transactional=True)
        assert [half.id for half in bus.pending if half.topic == "TP_PAY"]
        bus.check_now()
        assert sorted(event.payload for event in bus.events()) == [1, 7]
        with pytest.raises(PayloadRefused, match="over the 10"):
            pay.publish("TP_PAY", C, "a long text")
    assert pay.check("TP_PAY", "EC_OTHER")(was_it_paid) is was_it_paid


def test_an_async_session_is_served_as_well(tmp_path: Path):
    async def main() -> list[Any]:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
        Session = async_sessionmaker(engine)
        events = Publisher("P_shop", "127.0.0.1:1", session=Session, lazy=True)
        with replace(events) as bus:
            async with events:
                await asyncio.to_thread(events.create_tables)
                async with Session.begin():
                    await events.publish_async(T, C, 1)
                with suppress(ZeroDivisionError):
                    async with Session.begin():
                        await events.publish_async(T, C, 2)
                        raise ZeroDivisionError
                seen = await asyncio.to_thread(bus.events, T, C)
        await engine.dispose()
        return [event.payload for event in seen]

    assert asyncio.run(main()) == [1]


def test_one_that_was_started_is_closed_at_the_end_of_the_process_as_before(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", registered.append)
    shop.events._started = True
    with replace(shop.events):
        pass
    assert registered[-1] == shop.events._at_exit
    shop.events._started = False
