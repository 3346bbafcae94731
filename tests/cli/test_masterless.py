"""Commands while no broker has a master, and while none is registered: each says so, and none blames the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import halfmoon
from halfmoon.cli.shared.command_group import COMMANDS
from halfmoon.programs.embedded import Program, kill, name_server, standby, start
from halfmoon.testing.local import LocalCluster
from tests.programs.test_embedded import settings
from tests.programs.test_standby import copied, knows, slave_of
from tests.waiting import until

TOPIC = "orders"
MESSAGE = "7F00000100002A9F0000000000000000"
ELSEWHERE = {
    *("serve", "nameserver", "broker", "events", "outbox", "spark", "filter", "context", "console", "fsck", "backup", "docs"),
    *("completion", "demo", "sql"),
}
"""Commands that ask no broker, or are no single request: servers, and those for files, databases, Spark and DuckDB."""
ASKING = [
    "topic create new", "topic list", f"topic show {TOPIC}", f"topic delete {TOPIC} --yes", f"topic trim {TOPIC} --offset 0 --yes",
    "group list", f"group list --topic {TOPIC}", "group show C", "group lag C", f"group skip C {TOPIC} 0 --offset 0 --yes",
    "group create C", "group delete C --yes", f"group reset C {TOPIC} --to-latest --yes", f"produce {TOPIC} x", f"consume {TOPIC}",
    f"request {TOPIC} x --wait 1s", f"msg get {MESSAGE}", f"msg get --broker broker-a --queue 0 --offset 0 --topic {TOPIC}",
    f"msg find --topic {TOPIC} --key a", f"msg trace {MESSAGE}", f"msg resend {MESSAGE}", "tx batches", "tx pending",
    f"tx show {MESSAGE}", f"tx check {MESSAGE}", f"tx commit {MESSAGE} --yes", f"tx rollback {MESSAGE} --yes", "tx expired",
    f"tx resume {MESSAGE}", "tx status", "delay list", f"delay cancel {MESSAGE} {TOPIC} --yes", "dlq list C", "dlq replay C --yes",
    "dlq report",
    f"dlq show {MESSAGE}", "acl list", "config get", "config set fileReservedTime=48", "client list", "cluster",
    "cluster switch broker-a", "cluster wait broker-a --for 1s", "status", "doctor",
    f"bench send {TOPIC} --for 100ms",
]  # fmt: skip


class WithoutMaster(LocalCluster):
    """A name server and a slave that has copied a topic; the master is gone."""

    slave: Program

    def begin(self, data: Path) -> None:
        """Start the slave, have it copy a message, and kill the master."""
        with halfmoon.Producer(group="P", nameserver=self.nameserver) as producer:
            producer.send(halfmoon.Message(TOPIC, b"a"))
        self._run(self._follow(data))
        with halfmoon.Admin(nameserver=self.nameserver) as admin:
            until(lambda: {*admin.cluster().broker_addr_table["broker-a"].broker_addrs} == {1})

    async def _follow(self, data: Path) -> None:
        found = slave_of(self._programs)
        store = replace(found.store, commit_log_file_bytes=self._programs[1].broker.store.settings.commit_log_file_bytes)
        self.slave = await standby(found._replace(store=store), data)
        await start((self.slave,))
        await copied(self._programs[1], self.slave)
        await knows(self.slave, TOPIC)
        await kill(self._programs[1:])

    def stop(self) -> None:
        """Kill what still runs."""
        self._run(kill((self._programs[0], self.slave)))
        self._end_loop()


@pytest.fixture(scope="module")
def masterless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WithoutMaster]:
    root = tmp_path_factory.mktemp("masterless")
    with WithoutMaster(root / "master") as cluster:
        cluster.begin(root / "slave")
        yield cluster


def said(cluster: WithoutMaster) -> str:
    return f"broker-a has no master; {cluster.slave.address} follows and waits"


def test_every_command_that_asks_brokers_is_walked():
    assert {words.split()[0] for words in ASKING} | ELSEWHERE | {"reply"} == set(COMMANDS)


@pytest.mark.parametrize("words", ASKING)
def test_without_a_master_no_command_blames_its_arguments_or_shows_a_traceback(run_alone, masterless, words):
    ran = run_alone(*words.split(), "-n", masterless.nameserver)

    assert ran.code in (0, 1), ran.err
    assert "Traceback" not in ran.out + ran.err
    assert '"kind": "UsageError"' not in run_alone(*words.split(), "--json", "-n", masterless.nameserver).err


@pytest.mark.parametrize("words", ["status", "cluster", "doctor"])
def test_without_a_master_it_is_said_which_member_waits(run_alone, masterless, words):
    ran = run_alone(words, "-n", masterless.nameserver)

    assert (ran.code, ran.err) == (1, "")
    assert said(masterless) in ran.out
    if words == "status":
        assert ran.out.startswith(f"down\n  {said(masterless)}\n")


@pytest.mark.parametrize("words", ["tx status", "group list", "topic create new", "cluster switch broker-a", "config get"])
def test_a_command_that_needs_a_master_says_which_member_waits(run_alone, masterless, words):
    ran = run_alone(*words.split(), "--json", "-n", masterless.nameserver)

    assert (ran.code, json.loads(ran.err)) == (1, {"error": said(masterless), "kind": "NetworkError", "code": None})


async def test_where_no_broker_is_registered_commands_say_where_to_look(run_alone):
    names = await name_server(settings(), None)
    await start((names,))
    for words in ("cluster", "tx status", "status", "config get", "acl list"):
        ran = await asyncio.to_thread(run_alone, *words.split(), "-n", names.address)
        assert ran.code == 1, words
        assert "no broker is registered with the name server" in ran.out + ran.err, words
    assert (
        "start one, or look at its log and its --nameserver"
        in (await asyncio.to_thread(run_alone, "cluster", "-n", names.address)).out
    )
    await kill((names,))
