"""A slave and a pair's member look at their start whether a name server is on another machine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from halfmoon.broker.settings import BrokerSettings
from halfmoon.programs.embedded import both, kill, start
from halfmoon.programs.pairs.reach import reach_of
from halfmoon.programs.pairs.slave import slave
from tests.programs.pairs.test_member import Pair, pair  # noqa: F401
from tests.programs.test_embedded import settings
from tests.programs.test_standby import copied, slave_of

WARNING = "no other machine can reach this broker"


def names(known: dict[str, str]) -> Any:
    """Return a resolver that knows these names."""

    async def resolve(host: str, port: int) -> list[Any]:
        if host not in known:
            raise OSError("Name or service not known")
        return [(2, 1, 6, "", (known[host], port))]

    return resolve


@pytest.mark.parametrize(
    ("nameserver", "said"),
    [
        ("127.0.0.1:9876;10.0.0.1:9876", "name server 10.0.0.1:9876, at 10.0.0.1:9876 is on another machine"),
        ("mq.example:9876", "name server mq.example:9876, at 10.0.0.7:9876 is on another machine"),
        ("localhost:9876;this.example:9876;unknown.example:9876", ""),
        ("", ""),
    ],
)
async def test_a_name_server_on_another_machine_is_warned_of_and_one_here_is_not(
    nameserver: str, said: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"mq.example": "10.0.0.7", "this.example": "127.0.1.1", "localhost": "::1", "127.0.0.1": "127.0.0.1"}
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", names({**known, "10.0.0.1": "10.0.0.1"}))
    reach = await reach_of(BrokerSettings(address="127.0.0.1", port=10911, nameserver=nameserver))
    assert (caplog.text.count(WARNING), said in caplog.text, reach.is_doubtful) == (bool(said), True, not said)


async def test_a_slave_and_both_members_of_a_pair_on_one_machine_warn_of_nothing(pair: Pair, tmp_path: Any, caplog: Any) -> None:  # noqa: F811
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    await pair.begin("b")
    await pair.complete(first)
    programs = await both(settings(), tmp_path / "master")
    beside = await slave(slave_of(programs), tmp_path / "slave")
    await start((*programs, beside))
    await copied(programs[1], beside.pair_member.present)  # type: ignore[union-attr, arg-type]
    assert WARNING not in caplog.text
    await kill((*programs, beside))


async def test_a_slave_and_a_member_of_a_pair_warn_at_their_start(pair: Pair, tmp_path: Any, caplog: Any) -> None:  # noqa: F811
    elsewhere = f"{pair.names.address};192.0.2.1:9876"
    found = slave_of((pair.names,))
    beside = await slave(found._replace(broker=replace(found.broker, nameserver=elsewhere)), tmp_path / "slave")
    await start((beside,))
    assert caplog.text.count(WARNING) == 1
    await kill((beside,))
    member = await pair.begin("a", nameserver=elsewhere)
    await pair.until(lambda: member.is_master)
    assert caplog.text.count(WARNING) == 2
