"""Slaves and pairs with access control, over sockets: they sign with the account of their environment."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message, Producer
from halfmoon.broker.copies import accounts
from halfmoon.programs.configuration import ServerSettings
from halfmoon.programs.embedded import Program, both, kill, standby, start, stop
from tests.broker.access.rule_files import write
from tests.programs.pairs.test_member import Pair, log_end, pair  # noqa: F401
from tests.programs.test_embedded import settings
from tests.programs.test_standby import copied, slave_of
from tests.waiting import soon, until

ACCOUNTS = """accounts:
- {accessKey: operator, secretKey: secret-1, admin: true}
- {accessKey: observer, secretKey: secret-2, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""
OPERATOR = {"access_key": "operator", "secret_key": "secret-1"}


def sign_as(monkeypatch: pytest.MonkeyPatch, key: str, secret: str) -> None:
    """Have the programs of this process use an account."""
    monkeypatch.setenv("HALFMOON_ACCESS_KEY", key)
    monkeypatch.setenv("HALFMOON_SECRET_KEY", secret)


def with_accounts(found: ServerSettings, root: Path, **changes: Any) -> ServerSettings:
    """Return settings with access control."""
    return found._replace(broker=replace(found.broker, acl_enable=True, acl_file=str(root / "conf" / "plain_acl.yml"), **changes))


def unready(slave: Program) -> str:
    """Return why a slave copies nothing now; empty: it copies."""
    assert slave.standby is not None
    return slave.standby.unready() or ""


async def test_a_slave_signs_and_is_cut_when_its_account_is_removed_and_comes_back_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, ACCOUNTS)
    sign_as(monkeypatch, "operator", "secret-1")
    programs = await both(with_accounts(settings(), tmp_path), tmp_path / "master")
    slave = await standby(slave_of(programs), tmp_path / "slave")
    await start(programs)
    await start((slave,))
    assert programs[1].broker is not None
    feeding = programs[1].broker.copies.feeding
    async with AsyncProducer(group="P", nameserver=programs[0].address, **OPERATOR) as producer:
        await producer.send(Message("orders", b"1"))
        await copied(programs[1], slave)
        await soon(lambda: feeding.slaves and not unready(slave), "the slave to sign")
        write(tmp_path, ACCOUNTS.replace("admin: true", "admin: false, defaultTopicPerm: PUB|SUB"))
        await soon(lambda: not feeding.slaves, "the slave to be cut")
        assert "accessKey=operator, with which it signed, may not copy any more" in caplog.text
        await soon(lambda: "needs the account of an administrator" in unready(slave), "the slave to say why")
        await producer.send(Message("orders", b"2"))
        assert slave.standby is not None
        assert slave.standby.store.end_offset < programs[1].broker.store.end_offset
        write(tmp_path, ACCOUNTS)
        await copied(programs[1], slave)
        await soon(lambda: not unready(slave), "the slave to copy again")
    await stop((slave,))
    await stop(programs)


@pytest.mark.parametrize(
    ("key", "secret", "why"),
    [
        ("observer", "secret-2", "and accessKey=observer is none"),
        ("operator", "secret-3", "Check signature failed for accessKey=operator"),
        ("", "", "No accessKey is configured"),
    ],
)
async def test_a_slave_without_the_account_of_an_administrator_gets_nothing_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, secret: str, why: str
) -> None:
    write(tmp_path, ACCOUNTS)
    programs = await both(with_accounts(settings(), tmp_path), tmp_path / "master")
    sign_as(monkeypatch, key, secret)
    slave = await standby(slave_of(programs), tmp_path / "slave")
    await start(programs)
    await start((slave,))
    async with AsyncProducer(group="P", nameserver=programs[0].address, **OPERATOR) as producer:
        await producer.send(Message("orders", b"1"))
        await soon(lambda: why in unready(slave), "the slave to say why")
    assert slave.standby is not None
    assert slave.standby.store.end_offset == 0
    await kill((slave,))
    await kill(programs)


async def test_a_pair_with_access_control_completes_and_takes_over(
    pair: Pair,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path, ACCOUNTS)
    sign_as(monkeypatch, "operator", "secret-1")
    pair.changed = {"acl_enable": True, "acl_file": str(tmp_path / "conf" / "plain_acl.yml")}
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    assert first.program is not None
    assert first.program.broker is not None
    assert len(first.program.broker.copies.feeding._admission._admitted) == 1, "it signed"
    async with AsyncProducer(group="P", nameserver=pair.names.address, send_timeout_ms=30_000, **OPERATOR) as producer:
        await producer.send(Message("orders", b"both"))
        assert log_end(first) == log_end(second)
        await first.abort()
        await pair.until(lambda: second.is_master)
        await producer.send(Message("orders", b"after"))
        again = await pair.begin("a")
        await pair.complete(second)
        await pair.until(lambda: log_end(again) == log_end(second))


async def test_accounts_are_changed_at_both_members_and_count_after_a_takeover(
    pair: Pair,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(accounts, "LOOK_MS", 100)
    sign_as(monkeypatch, "operator", "secret-1")
    members = {}
    for name in ("a", "b"):
        write(tmp_path / name, ACCOUNTS)
        members[name] = await pair.begin(name, acl_enable=True)
        await pair.until(lambda: members["a"].is_master)
    await pair.complete(members["a"])
    shop = {"access_key": "shop-service", "secret_key": "secret-5"}
    async with AsyncAdmin(nameserver=pair.names.address, **OPERATOR) as admin:
        await pair.registered("broker-a", {0, 1})
        assert await admin.put_account(**shop, topics={"orders": "PUB"}) == ["broker-a", "broker-a/1"]
        assert await admin.rotate_secret("observer", "secret-4", 60_000) == ["broker-a", "broker-a/1"]
        (tmp_path / "b" / "conf" / "plain_acl.yml").write_text(ACCOUNTS)  # as if it had been down
        await pair.until(lambda: accounts.DIFFER in caplog.text)
        said = f"broker-a: {accounts.DIFFER}"
        await soon_says(admin, said, is_there=True)
        await admin.put_account(**shop, topics={"orders": "PUB"})
        await admin.rotate_secret("observer", "secret-4", 60_000)
        await pair.until(lambda: "equal to its master's again" in caplog.text)
        await soon_says(admin, said, is_there=False)
        assert caplog.text.count(accounts.DIFFER) == 1
    await members["a"].abort()
    await pair.until(lambda: members["b"].is_master)
    async with AsyncProducer(group="P", nameserver=pair.names.address, send_timeout_ms=30_000, **shop) as producer:
        await producer.send(Message("orders", b"with an account that was made at the old master"))


async def soon_says(admin: AsyncAdmin, fault: str, *, is_there: bool) -> None:
    """Wait until the status of a cluster has a fault, or has it no more."""
    async with asyncio.timeout(60):
        while (fault in (await admin.status(groups=False)).faults) is not is_there:
            await asyncio.sleep(0.05)


async def test_a_member_that_may_not_copy_does_not_join_and_says_why(
    pair: Pair,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(tmp_path, ACCOUNTS)
    pair.changed = {"acl_enable": True, "acl_file": str(tmp_path / "conf" / "plain_acl.yml")}
    sign_as(monkeypatch, "operator", "secret-1")
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    sign_as(monkeypatch, "observer", "secret-2")
    second = await pair.begin("b")
    await pair.until(lambda: "and accessKey=observer is none" in (second.unready() or ""))
    await pair.until(lambda: "slave refused: from=127.0.0.1 reason=a slave needs the account of an administrator" in caplog.text)
    assert first.program is not None
    assert first.program.broker is not None
    assert not first.program.broker.copies.pair.is_complete
    assert next(record.levelno for record in caplog.records if "slave refused" in record.getMessage()) == logging.WARNING


@pytest.mark.slow
def test_processes_with_access_control_copy_and_strangers_do_not(tmp_path: Path) -> None:
    write(tmp_path, ACCOUNTS)
    command = [sys.executable, "-m", "halfmoon.cli.main"]
    acl = ["--acl", str(tmp_path / "conf" / "plain_acl.yml")]
    programs: list[subprocess.Popen[str]] = []

    def run(name: str, *arguments: str, key: str = "operator", secret: str = "secret-1") -> tuple[str, Path]:
        arguments = (*arguments, "--set", "mappedFileSizeCommitLog=4194304")
        environment = {**os.environ, "HALFMOON_ACCESS_KEY": key, "HALFMOON_SECRET_KEY": secret}
        log = tmp_path / f"{name}.log"
        with log.open("w") as file:
            program = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=file, text=True, env=environment)
        programs.append(program)
        assert program.stdout is not None
        return program.stdout.readline(), log

    try:
        ready, log = run("master", "serve", "--data", str(tmp_path / "a"), "--nameserver-port", "0", "--broker-port", "0", *acl)
        names = re.search(r"127\.0\.0\.1:\d+", ready)[0]  # type: ignore[index]
        with Producer(group="P", nameserver=names, **OPERATOR) as producer:
            producer.send(Message("orders", b"1" * 1000))
        own = ["broker", "--slave-of", "broker-a", "--nameserver", names, "--broker-port", "0", "--data"]
        run("slave", *own, str(tmp_path / "b"))
        run("stranger", *own, str(tmp_path / "c"), "--set", "brokerId=2", key="observer", secret="secret-2")

        def has(name: str) -> bool:
            files = [*(tmp_path / name / "commitlog").glob("0*")] if (tmp_path / name).exists() else []
            return any(b"1" * 1000 in file.read_bytes() for file in files)

        until(lambda: has("b"), "the slave to copy")
        until(lambda: "accessKey=observer is none" in log.read_text(), "the master to refuse the other")
        assert not has("c")
    finally:
        for program in programs:
            program.kill()
            program.wait()
