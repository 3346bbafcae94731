"""Mistakes of people who start a pair: each is told in one line, before the member is needed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message
from halfmoon.broker.settings import BrokerRole
from halfmoon.cli import servers
from halfmoon.errors import StoreLocked
from halfmoon.programs.monitoring import Monitoring
from halfmoon.programs.pairs.member import Member
from halfmoon.programs.ports import PortTaken
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.settings.http import HttpSettings
from halfmoon.store.layout import LOCK
from tests.programs.pairs.test_member import Pair, free_port, pair  # noqa: F401

LEASE = ("--lease", "etcd://127.0.0.1:1")
SECRET = "geheim"


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        ("broker", (*LEASE, "--slave-of", "broker-a"), "--lease decides who is the slave of whom: leave out --slave-of"),
        ("broker", (*LEASE, "--slave-of", "broker-a", "--broker-name", "broker-a"), "--lease decides who is the slave of whom"),
        ("broker", ("--set", "lease=etcd://a", "--slave-of", "broker-a"), "leave out --slave-of"),
        ("broker", (*LEASE, "--broker-port", "0"), "a member of a pair needs a port of its own: set broker.port (--broker-port)"),
        ("serve", ("--set", "lease=etcd://127.0.0.1:1"), "start halfmoon nameserver, and halfmoon broker with --lease"),
        ("broker", ("--set", "copies_min=2"), "copies_min=2 is for a pair: give --lease, or leave it out"),
        ("broker", ("--lease", f"mysql://u:{SECRET}@h/db"), "the URL names no known system: use postgresql://"),
        ("broker", ("--lease", f"postgresql://u:{SECRET}@h:x/db"), "a port in the URL of PostgreSQL is no number"),
        ("broker", ("--lease", f"etcd://u:{SECRET}@h:70000"), "an endpoint is not host:port"),
        ("broker", ("--lease", "kubernetes://a/b"), "this program runs in no pod of Kubernetes"),
        ("broker", ("--lease", "kubernetes://A"), "the URL of Kubernetes is malformed"),
        ("broker", (*LEASE, "--leave-pair"), "--leave-pair starts a broker alone: leave out --lease and --slave-of"),
        ("broker", (*LEASE, "--set", "lease_ms=1"), "lease_ms = '1': must be a whole number, 500 to 600000"),
    ],
)
def test_a_pair_that_cannot_be_is_refused_in_one_line_without_the_password(
    command: str, arguments: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert servers.run_server(command, [*arguments, "--data", str(tmp_path / "data")]) == 2
    said = capsys.readouterr()
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert SECRET not in said.out + said.err


async def test_nobody_is_shown_the_password_of_the_lease(pair: Pair) -> None:  # noqa: F811
    first = await pair.begin("a", lease=f"postgresql://halfmoon:{SECRET}@10.0.0.9/halfmoon")
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    async with AsyncAdmin(nameserver=pair.names.address) as admin:
        config = await admin.broker_config(first.address)
        texts = await admin.broker_runtime_info(first.address)
    assert config["lease"] == "******"
    assert SECRET not in f"{config} {texts} {first._settings}"


@pytest.mark.slow
def test_people_read_that_a_member_runs_and_of_which_pair(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "halfmoon.cli.main", "broker", *LEASE, "--broker-port", str(port), "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            ready = f"halfmoon ready: member 127.0.0.1:{port} of the pair DefaultCluster/broker-a waits for the lease, data in "
            assert process.stdout.readline() == f"{ready}{tmp_path}\n"
        finally:
            process.terminate()


@pytest.mark.parametrize("above", [0, 1])
async def test_a_port_that_is_taken_is_refused_at_the_start_and_not_when_the_member_is_to_serve(tmp_path: Path, above: int) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port + above)), pytest.raises(PortTaken, match=str(port + above)):
        await servers._programs("broker", changed(port), tmp_path, 1, None, is_slave=False)


async def test_a_directory_in_use_is_refused_at_the_start(tmp_path: Path) -> None:
    lock = RealDisk(str(tmp_path)).lock(LOCK)
    with pytest.raises(StoreLocked, match=f"is a broker running on {tmp_path}"):
        await servers._programs("broker", changed(free_port()), tmp_path, 1, None, is_slave=False)
    lock.release()


def changed(port: int) -> Any:
    """Return the settings of a member at a port, as the command reads them."""
    return servers.settings_from("broker", {"lease": LEASE[1], "broker_port": str(port)}, {})


async def reasons(member: Member) -> list[str]:
    """Return why a member is not ready, as /readyz says it."""
    monitoring = Monitoring(HttpSettings())
    monitoring.members.append(member)
    answer = await monitoring.ready({})
    found: list[str] = json.loads(b"".join(answer.body))["reasons"]
    assert answer.status == (503 if found else 200)
    return found


async def test_a_member_that_cannot_reach_the_lease_says_so_and_is_not_ready(pair: Pair) -> None:  # noqa: F811
    pair.leases.is_down = True
    member = await pair.begin("a")
    await pair.until(lambda: "cannot be read" in (member.unready() or ""))
    assert await reasons(member) == ["member of the pair DefaultCluster/broker-a: lease: it cannot be read: memory: down"]
    pair.leases.is_down = False
    await pair.until(lambda: member.is_master)
    assert await reasons(member) == []


async def test_two_members_on_one_directory_the_second_waits_and_does_not_take_the_lease(pair: Pair) -> None:  # noqa: F811
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    other = Pair(pair.root, pair.names)
    other.leases = pair.leases
    second = await other.begin("a")
    await pair.until(lambda: "is a broker running on" in (second.unready() or ""))
    assert second.lease is None
    assert first.is_master
    await second.abort()


async def test_a_copy_of_the_masters_directory_gets_an_id_of_its_own_and_follows(pair: Pair) -> None:  # noqa: F811
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    await first.stop()
    shutil.copytree(pair.root / "a", pair.root / "b")
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    assert second.lease.member != first.lease.member  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"delay_levels": "1s 2s"}, "the same messageDelayLevel: the master has 1s 5s 10s"),
        ({"copies_min": 2}, "the same copies_min: the master has 1, here it is 2"),
        ({"message_bytes_max": 1024**2}, "the same maxMessageSize: the master has 4194304, here it is 1048576"),
        ({"commit_log_file_bytes": 8 * 1024**2}, "set mappedFileSizeCommitLog=4194304, here it is 8388608"),
    ],
)
async def test_settings_that_members_must_have_the_same_are_compared(
    pair: Pair,  # noqa: F811
    changes: dict[str, Any],
    reason: str,
) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b", **changes)
    await pair.until(lambda: reason in (second.unready() or ""))
    assert not first.program.broker.copies.pair.is_complete  # type: ignore[union-attr]


async def test_a_directory_of_another_pair_is_not_added_to(pair: Pair) -> None:  # noqa: F811
    other = Pair(pair.root, pair.names, name="broker-b")
    stranger = await other.begin("b")
    await pair.until(lambda: stranger.is_master and stranger.program.broker.registration.registered)  # type: ignore[union-attr]
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        await producer.send(Message("others", b"of broker-b"))
    await stranger.stop()
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master and first.program.broker.registration.registered)  # type: ignore[union-attr]
    async with AsyncProducer(group="P", nameserver=pair.names.address) as producer:
        for number in range(2):
            await producer.send(Message("orders", b"%d" % number))
    second = await pair.begin("b")
    await pair.until(lambda: "is not a copy of the master's log; empty the directory" in (second.unready() or ""))


async def test_a_member_without_name_servers_and_with_settings_that_have_no_effect_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"lease": LEASE[1], "broker_port": str(free_port()), "set": ["brokerRole=SYNC_MASTER", "brokerId=3"]}
    [program] = await servers._programs("broker", servers.settings_from("broker", given, {}), tmp_path, 1, None, is_slave=False)
    assert "broker broker-a has no name server, so clients do not find it: give --nameserver" in caplog.text
    assert "the lease says who is the master, and has no use for: brokerRole, brokerId" in caplog.text
    own = program.pair_member._settings.broker  # type: ignore[union-attr]
    assert (own.role, own.broker_id) == (BrokerRole.ASYNC_MASTER, 0)
    await program.kill()


@pytest.mark.parametrize(("has_rules", "has_account"), [(True, False), (True, True), (False, False)])
async def test_a_member_that_could_not_follow_for_want_of_an_account_says_so_at_its_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, has_rules: bool, has_account: bool
) -> None:
    for name in ("HALFMOON_ACCESS_KEY", "HALFMOON_SECRET_KEY"):
        monkeypatch.setenv(name, "a-long-enough-secret") if has_account else monkeypatch.delenv(name, raising=False)
    given = {"lease": LEASE[1], "broker_port": str(free_port()), "set": [f"aclEnable={str(has_rules).lower()}"]}
    [program] = await servers._programs("broker", servers.settings_from("broker", given, {}), tmp_path, 1, None, is_slave=False)
    assert ("this member has no account, so it could not follow the other one" in caplog.text) == (has_rules and not has_account)
    await program.kill()


async def test_a_third_member_says_that_it_is_one_too_many_and_so_does_the_master(
    pair: Pair,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = await pair.begin("a")
    await pair.until(lambda: first.is_master)
    second = await pair.begin("b")
    await pair.complete(first)
    third = await pair.begin("c")
    await pair.until(lambda: f"{third.address} is a spare: the pair has two members" in pair_state(first))
    assert f"{second.address} follows" in pair_state(first)
    await pair.until(lambda: "; a spare: the pair has two members" in pair_state(third))
    assert "spare" not in pair_state(second)
    assert caplog.text.count("this member is a spare: the pair has two members, and two others are in it: stop it, or") == 1


def pair_state(member: Member) -> str:
    """Return the state of a member, as the runtime information has it."""
    program = member.program
    if program is None or (program.broker is None and program.serving is None):
        return ""
    if program.broker is not None:
        return program.broker.copies.texts(member.clock.instant())["pairState"]
    return program.serving._runtime_texts().get("pairState", "")  # type: ignore[union-attr]
