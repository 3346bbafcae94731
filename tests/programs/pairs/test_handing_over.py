"""The end of a master's role while the lease's system is down or hangs: what is refused, what goes on, and what the log says."""

from __future__ import annotations

import asyncio

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message
from halfmoon.broker.pairs.record import decode_record
from halfmoon.errors import BrokerError
from halfmoon.programs.pairs.member import Member
from tests.programs.pairs.test_member import LEASE_MS, Pair, pair  # noqa: F401

REFUSED = r"the lease cannot be written now \(.*\), so nobody could take over: mend it first"
NO_LONGER = "this broker is no longer the master"


async def complete(pair: Pair) -> tuple[Member, Member]:  # noqa: F811
    """Return the master and the follower of a complete pair that name servers know."""
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    second = await pair.begin("b")
    await pair.complete(first)
    return first, second


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


async def stored_by(pair: Pair) -> None:  # noqa: F811
    """Store a message."""
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        await producer.send(Message("orders", b"x"))


async def test_a_switch_is_refused_while_the_lease_is_known_to_be_down_and_the_master_serves_on(pair: Pair) -> None:  # noqa: F811
    first, _ = await complete(pair)
    pair.leases.is_down = True
    await pair.until(lambda: first.lease is not None and first.lease.problem)
    program = first.program
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        with pytest.raises(BrokerError, match=REFUSED):
            await admin.switch_master("broker-a")
    await stored_by(pair)
    assert first.program is program


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_switch_is_refused_if_the_lease_turns_out_to_be_down_and_the_master_serves_on(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    *,
    hangs: bool,
) -> None:
    first, _ = await complete(pair)
    pair.leases.refuses = lambda text: True
    if hangs:
        pair.leases.goes_on.clear()
    program, lease = first.program, first.lease
    assert lease is not None
    lease.problem = None
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        with pytest.raises(BrokerError, match=REFUSED):
            await admin.switch_master("broker-a")
    await stored_by(pair)
    assert (first.program, first.lease) == (program, lease)
    if not hangs:
        assert said(caplog, "this broker goes on as the master, although its follower was to take over")
    pair.leases.goes_on.set()


async def test_a_master_whose_release_fails_serves_on_in_its_epoch(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = await complete(pair)
    lease = first.lease
    pair.leases.refuses = lambda text: not decode_record(text, first.name).address
    assert first.program is not None
    before, first.program.broker.copies.is_switching = first.program, True  # type: ignore[union-attr]
    await pair.until(lambda: first.is_master and first.program is not before)
    assert first.lease is lease
    await stored_by(pair)
    assert (first.lease.epoch, second.is_master) == (1, False)  # type: ignore[union-attr]
    await pair.complete(first)
    assert said(caplog, "this broker is the master still: broker=DefaultCluster/broker-a epoch=1")
    assert len(said(caplog, NO_LONGER)) == 1
    pair.leases.refuses = lambda text: False
    first.program.broker.copies.is_switching = True  # type: ignore[union-attr]
    await pair.until(lambda: second.is_master)


async def test_a_master_whose_release_was_written_without_an_answer_does_not_serve_on(pair: Pair) -> None:  # noqa: F811
    first, second = await complete(pair)
    lease, write = first.lease, pair.leases.write

    def loses(text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        pair.leases.loses_answers = not decode_record(text, first.name).address
        try:
            return write(text, expected, timeout_ms)
        finally:
            pair.leases.loses_answers = False

    pair.leases.write = loses  # type: ignore[method-assign]
    first.program.broker.copies.is_switching = True  # type: ignore[union-attr]
    await pair.until(lambda: second.is_master)
    assert first.lease is not lease or not lease.may_serve(first.clock.instant().steady)  # type: ignore[union-attr]
    assert second.lease.epoch == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_stop_with_the_lease_down_ends_in_its_time_and_says_that_nobody_takes_over(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
    *,
    hangs: bool,
) -> None:
    first, _ = await complete(pair)
    if hangs:
        pair.leases.goes_on.clear()
    pair.leases.is_down = True
    began = asyncio.get_running_loop().time()
    await first.stop()
    assert asyncio.get_running_loop().time() - began < 2 * LEASE_MS / 1000
    assert len(said(caplog, NO_LONGER)) == 1
    [text] = said(caplog, "the lease was not handed over, and ends by itself: ")
    assert text.startswith("pair DefaultCluster/broker-a: ")


async def test_a_master_whose_lease_runs_out_while_its_system_hangs_says_so(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    lease = first.lease
    hangs_ms = 5 * LEASE_MS  # longer than a call may: a machine that is busy, or a network without an answer
    pair.leases.hangs_ms = hangs_ms
    pair.leases.goes_on.clear()
    await pair.until(lambda: first.lease is not lease)
    pair.leases.goes_on.set()
    [text] = said(caplog, NO_LONGER)
    assert "the lease could not be renewed in time: its system did not answer" in text


async def test_each_end_of_the_role_is_one_line_with_its_reason(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = await complete(pair)
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        await admin.switch_master("broker-a")
    await pair.complete(second)
    await second.stop()
    await pair.until(lambda: first.is_master)
    texts = [text.partition("reason=")[2] for text in said(caplog, NO_LONGER)]
    assert texts == [
        "an operator switches the master, and the other member takes over",
        "this process stops, and the other member takes over",
    ]
