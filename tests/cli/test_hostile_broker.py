"""Commands that list what all brokers have go on without one that fails, and name it on standard error."""

from __future__ import annotations

import asyncio

import pytest

from tests.console.test_hostile_broker import KINDS, NAME, registered


@pytest.mark.slow
@pytest.mark.parametrize("command", ["group list", "client list", "tx status", "tx batches", "status"])
async def test_a_hostile_broker_is_left_out_and_named(run, cluster, command: str) -> None:
    await asyncio.to_thread(run, "group", "create", "C_there")
    async with registered(cluster.nameserver, KINDS["refuses"]):
        ran = await asyncio.to_thread(run, *command.split())

    assert ran.code == (1 if command == "status" else 0), ran.err
    assert "not reported: " in ran.err or command == "status"
    assert NAME in ran.out + ran.err or "127.0.0.1:" in ran.err
    assert len(ran.out) + len(ran.err) < 50_000
    if command == "group list":
        assert "C_there" in ran.out
