"""`halfmoon cluster switch` and what commands show of a pair, with two real members."""

from __future__ import annotations

import asyncio
import json

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message, SendStatus
from halfmoon.cli.main import main
from tests.programs.pairs.test_member import Pair, pair  # noqa: F401


async def command(*arguments: str) -> int:
    """Run a command of people in a thread, beside the servers of this loop; return its exit code."""
    return await asyncio.to_thread(main, list(arguments))


async def test_people_switch_the_master_of_a_pair_and_lose_nothing(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    first, names = await pair.begin("a"), ("-n", pair.names.address)
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    assert await command("cluster", "switch", "broker-a", *names) == 1
    assert "this broker cannot give up its role: the pair is not complete" in capsys.readouterr().err

    second = await pair.begin("b")
    await pair.complete(first)
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        sent = [await producer.send(Message("orders", b"%d" % number)) for number in range(20)]
    assert {each.status for each in sent} == {SendStatus.SEND_OK}

    assert await command("cluster", "switch", "broker-a", "--json", *names) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["broker"], told["was"], told["master"], told["epoch"]) == ("broker-a", first.address, second.address, 2)
    await pair.complete(second)
    assert not first.is_master
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        ends = await admin.topic_stats("orders")
        assert sum(end.max_offset for end in ends.values()) == 20
        await admin.switch_master("broker-a")
    await pair.complete(first)


async def test_people_wait_until_a_pair_is_complete_and_are_told_why_it_is_not(
    pair: Pair,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("-n", pair.names.address)
    assert await command("cluster", "wait", "broker-a", "--for", "1s", *names) == 1
    assert "the pair broker-a is not complete after 1s: no broker 'broker-a' is registered" in capsys.readouterr().err

    first = await pair.begin("a")
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    assert await command("cluster", "wait", "broker-a", "--for", "1s", *names) == 1
    assert "after 1s: master of epoch 1, alone: no follower is connected" in capsys.readouterr().err

    waiting = asyncio.create_task(command("cluster", "wait", "broker-a", "--for", "60s", *names))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await pair.begin("b")
    assert await waiting == 0
    assert "broker-a/0: master of epoch 1, complete: " in capsys.readouterr().out


async def test_status_cluster_and_doctor_show_the_role_the_epoch_and_who_follows(
    pair: Pair,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, names = await pair.begin("a"), ("-n", pair.names.address)
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        [alone] = await admin.brokers()
        assert alone.pair == "master of epoch 1, alone: no follower is connected"
        assert alone.fault == "the pair is not complete: there is no second copy"
        second = await pair.begin("b")
        await pair.complete(first)
        await pair.until(lambda: second.program is not None and second.program.serving.registration.registered)  # type: ignore[union-attr]
        complete, follower = await admin.brokers()
    assert (follower.id, follower.pair, follower.fault) == (1, f"follower of {first.address}, epoch 1", None)
    assert complete.fault is None
    assert complete.pair is not None
    begin, follows = complete.pair.split(": ", 1)
    assert (begin, " follows, " in follows) == ("master of epoch 1, complete", True)

    for arguments, shown in (
        (("status",), "pair broker-a/0: master of epoch 1, complete: "),
        (("cluster",), "broker-a/0: master of epoch 1, complete: "),
        (("doctor",), "pair of broker broker-a: master of epoch 1, complete: "),
    ):
        await command(*arguments, *names)
        assert shown in capsys.readouterr().out
