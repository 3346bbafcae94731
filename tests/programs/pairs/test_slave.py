"""A slave that was told to take over becomes a broker on its port and directory, or a slave again that gives the role back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message, SendStatus
from halfmoon.broker.copies.takeover import Stopped, Takeover
from halfmoon.instant import Steady
from halfmoon.programs.embedded import Program, Programs, both, kill, start, stop
from halfmoon.programs.pairs import slave as slave_module
from halfmoon.programs.pairs.slave import Slave, slave
from halfmoon.programs.ports import PortTaken
from tests.programs.test_embedded import settings
from tests.programs.test_standby import copied, knows, slave_of


async def until(holds: Callable[[], Any]) -> None:
    """Wait until that holds."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def copy_of(tmp_path: Path) -> tuple[Programs, Program, Slave]:
    """Return a name server and a master with ten messages, and a slave that has them."""
    programs = await both(settings(), tmp_path / "master")
    await start(programs)
    found = slave_of(programs)
    program = await slave(found._replace(broker=replace(found.broker, broker_id=2)), tmp_path / "slave")
    await start((program,))
    async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
        for number in range(10):
            await producer.send(Message("orders", b"%d" % number))
    await copied(programs[1], program)
    await knows(program, "orders")
    runs = program.pair_member
    assert isinstance(runs, Slave)
    return programs, program, runs


def tell(runs: Slave) -> None:
    """Say that the master takes no writes and everything is copied."""
    assert runs.program.serving is not None
    takeover = runs.program.serving.takeover
    takeover.stopped, takeover.is_done = Stopped("127.0.0.1:1", Steady(0), {"brokerRole": "ASYNC_MASTER"}), True


async def test_it_becomes_the_master_at_its_address_with_everything_and_takes_sends(tmp_path: Path) -> None:
    programs, program, runs = await copy_of(tmp_path)
    shown: list[Program] = []
    runs.on_program = shown.append
    await kill(programs[1:])
    tell(runs)
    await until(lambda: shown)
    assert shown == [runs.present]
    assert shown[0].broker is not None
    async with AsyncAdmin(nameserver=programs[0].address) as admin:
        assert (await admin.topic_route("orders")).broker_datas[0].broker_addrs == {0: program.address}
        assert sum(end.max_offset for end in (await admin.topic_stats("orders")).values()) == 10
    async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
        assert (await producer.send(Message("orders", b"more"))).status is SendStatus.SEND_OK
    await stop((program,))
    assert shown[0].broker.lost_at_stop() is None
    assert not (tmp_path / "slave" / "abort").exists()
    await kill(programs[:1])


async def test_a_broker_that_does_not_start_leaves_a_slave_that_gives_the_role_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, program, runs = await copy_of(tmp_path)
    given_back: list[tuple[str, str]] = []

    async def refuse(*args: Any, **kwargs: Any) -> Program:
        raise PortTaken("the port is taken")

    def noted(self: Takeover, stopped: Stopped, reason: str) -> None:
        given_back.append((stopped.address, reason))

    monkeypatch.setattr(slave_module, "broker", refuse)
    monkeypatch.setattr(Takeover, "give_back_first", noted)
    tell(runs)
    await until(lambda: given_back)
    assert given_back == [("127.0.0.1:1", "the port is taken")]
    await until(lambda: runs.present.standby is not None and runs.present.standby.unready() is None)
    assert runs.present.address == program.address
    await stop((program,))
    await kill(programs)


async def test_a_slave_that_is_stopped_or_killed_leaves_its_directory(tmp_path: Path) -> None:
    programs, program, _ = await copy_of(tmp_path)
    await kill((program,))
    again = await slave(slave_of(programs), tmp_path / "slave")
    await start((again,))
    await stop((again,))
    assert not (tmp_path / "slave" / "abort").exists()
    await stop(programs)
