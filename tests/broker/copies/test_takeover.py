"""A slave takes the place of a running Apache master: with all that was stored, or the master has its role again."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies import takeover
from halfmoon.broker.copies.copies import EPOCHS
from halfmoon.broker.copies.takeover import FAILED, LACKED_BYTES_MAX, Stopped, Takeover
from halfmoon.broker.names import TIMER_TOPIC
from halfmoon.effects import Call, Sleep, SteadyTime, Work
from halfmoon.errors import ConnectFailed
from halfmoon.settings import overwrite
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerOffsetTable,
    KVTable,
    config_text,
    from_json,
    parse_config_text,
    to_json,
)
from halfmoon.wire.command import Command
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerRuntimeInfo, TakeOver, UpdateBrokerConfig
from halfmoon.wire.headers.delay import GetTimerCheckPoint
from halfmoon.wire.headers.offset import GetAllConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.route import GetBrokerClusterInfo
from tests.broker.copies.serving_slave import SlaveTalk
from tests.broker.copies.slave import log_of
from tests.broker.half import stored
from tests.broker.talk import Talk
from tests.store.driving import draft

NAME_SERVER, MASTER = "10.0.0.5:9876", "10.0.0.1:10911"
ITS_ROLE = {"brokerRole": "ASYNC_MASTER", "brokerId": "0", "slaveReadEnable": "false", "brokerPermission": "6"}
LATE_MS = 100
"""When a write that had passed the master's check is appended, at the latest."""


class World:
    """An Apache master that takes writes all the time, and a slave of ours. ``dead_from``: of the master's answers, from 0.

    ``late``: a write is appended so long after the master became a slave. ``deaf``: settings that it ignores.
    """

    def __init__(self, seed: int = 1) -> None:
        self.random, self.answers, self.dead_from, self.dead_for = Random(seed), 0, 1 << 30, 1
        self.master = Talk("master", disk=SimDisk(Random(3)))
        self.config = {**ITS_ROLE, "brokerName": "broker-a", "haListenPort": "10912"}
        self.config["mappedFileSizeCommitLog"] = str(self.master.store_settings.commit_log_file_bytes)
        self.late: int | None = None
        self.deaf, self.texts, self.refused, self.refused_at = set[str](), dict[str, str](), set[type](), 0
        self.write()
        self.slave = SlaveTalk(self.master)
        self.slave.copy()
        standby = self.slave.standby
        overwrite(standby.settings, standby.settings.__class__(**{**standby.settings.__dict__, "nameserver": NAME_SERVER}))
        self.takeover: Takeover = self.slave.broker.takeover
        self._operation, self.is_over = standby.keep(), False
        self.answer: Any = None
        self.run(lambda: standby.problem is None)
        self.connect(9)

    def connect(self, peer: int) -> None:
        """Connect the slave to its master."""
        self.slave.standby.connected(peer, MASTER, self.slave.instant)
        self._save()

    def write(self) -> None:
        """Store a message, and progress of a group, as long as it is a master."""
        if self.config["brokerRole"] != "SLAVE":
            self.master.send("T", b"x" * self.random.randrange(1, 50))
            self.master.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=self.master.now % 1000))

    def begin(self) -> str | None:
        """Ask the slave to take over; return why it refuses."""
        remark: str | None = self.slave.ask(TakeOver()).remark
        return remark

    def run(self, until: Any = lambda: False) -> None:
        """Let the slave go on until that, or until it looks at its master no more."""
        for _ in range(5_000):
            if self.is_over or until():
                return
            self._step()
        raise AssertionError(f"it never ends: {self.takeover.state}")

    def _step(self) -> None:
        answer, self.answer = self.answer, None
        go_on = self._operation.throw if isinstance(answer, Exception) else self._operation.send
        try:
            effect = go_on(answer)
        except StopIteration:
            self.is_over = True
            return
        if isinstance(effect, SteadyTime):
            self.answer = self.slave.instant.steady
        elif isinstance(effect, Sleep):
            self._pass(effect.ms)
        else:
            try:
                self.answer = self._answer(effect)
            except ConnectFailed as exc:
                self.answer = exc
        self._save()

    def _save(self) -> None:
        for work in self.slave.standby.effects():
            if isinstance(work, Work):
                work.done(work.run(), self.slave.instant)

    def _pass(self, ms: int) -> None:
        """Let time pass: the master stores, and the slave copies some of it."""
        for talk in (self.slave, self.master):
            talk.now += ms
        self.write()
        if self.late is not None and self.config["brokerRole"] == "SLAVE" and self.slave.now - self.refused_at >= self.late:
            self.late = None
            self.master.send("T", b"late")
        self.copy_all(whole=bool(self.random.randrange(3)))

    def copy_all(self, *, whole: bool = True) -> None:
        """Let the slave copy what the master has stored, or some of it."""
        copying = self.slave.standby.store.copying()
        data = log_of(self.master, copying.received)
        copying.take(data if whole else data[: self.random.randrange(len(data) + 1)])
        self._save()

    def _answer(self, call: Any) -> Command:
        assert isinstance(call, Call)
        if call.address == NAME_SERVER:
            assert isinstance(call.request, GetBrokerClusterInfo)
            found = ClusterInfo(broker_addr_table={"broker-a": BrokerData(broker_name="broker-a", broker_addrs={0: MASTER})})
            return Command(code=0, flag=1, body=to_json(found))
        self.answers += 1
        if self.dead_from < self.answers <= self.dead_from + self.dead_for:
            raise ConnectFailed(f"connect to {MASTER} failed")
        if isinstance(call.request, GetBrokerConfig):
            return Command(code=0, flag=1, body=config_text(self.config))
        if isinstance(call.request, UpdateBrokerConfig):
            given = {key: value for key, value in parse_config_text(call.body).items() if key not in self.deaf}
            self.config, self.refused_at = {**self.config, **given}, self.slave.now
            return Command(code=0, flag=1)
        if isinstance(call.request, GetBrokerRuntimeInfo):
            store = self.master.broker.store
            ends = {"commitLogMinOffset": str(store.min_offset), "commitLogMaxOffset": str(store.end_offset)}
            return Command(code=0, flag=1, body=to_json(KVTable({**ends, **self.texts})))
        if type(call.request) in self.refused:
            return Command(code=3, flag=1, remark="not supported")
        reply: Command = self.master.ask(call.request)
        return reply

    # ------------------------------------------------------------ what must hold

    def role(self) -> dict[str, str]:
        """Return the role of the master, as its settings say."""
        return {key: self.config[key] for key in ITS_ROLE}

    def check(self) -> None:
        """Check that there is one broker that stores: the slave with everything, or the master, or people are told how."""
        if self.takeover.is_done:
            assert self.config["brokerRole"] == "SLAVE"
            if self.late is not None:
                self.master.send("T", b"late")
            assert self.slave.standby.store.end_offset == self.master.broker.store.end_offset, "messages are lost"
            saved = from_json(ConsumerOffsetTable, self.slave.disk.read("config/consumerOffset.json") or b"{}", bounds=None)
            assert saved == from_json(ConsumerOffsetTable, self.master.ask(GetAllConsumerOffset()).body), "progress is lost"
            return
        assert self.takeover.state.startswith(FAILED)
        if self.role() != ITS_ROLE:
            for key, value in ITS_ROLE.items():
                assert f"mqadmin updateBrokerConfig -b {MASTER} -k {key} -v {value}" in self.takeover.state

    def take_over(self) -> None:
        """Let it take over, or fail to, and check."""
        self.begin()
        self.run(lambda: self.takeover.state.startswith(FAILED))
        self.check()


@pytest.mark.parametrize("seed", range(20))
def test_it_has_everything_that_a_master_under_load_has_stored(seed: int) -> None:
    world = World(seed)
    for _ in range(10):
        world.write()
    world.late = world.random.randrange(LATE_MS)
    world.take_over()
    assert world.takeover.is_done
    assert world.config["brokerId"] == "1", "name servers believe the old master no more"


def answers_wanted() -> int:
    """Return how many answers of the master a takeover needs."""
    world = World()
    before = world.answers
    world.take_over()
    return world.answers - before


@pytest.mark.parametrize("dead_for", [1, 8, 1000])
def test_whatever_answer_of_the_master_is_missing_one_of_both_is_the_master_or_people_are_told(dead_for: int) -> None:
    ends = set()
    for number in range(answers_wanted()):
        world = World()
        world.dead_from, world.dead_for = world.answers + number, dead_for
        world.take_over()
        ends.add((world.takeover.is_done, world.role() == ITS_ROLE))
    assert (False, True) in ends
    assert ((False, False) in ends) == (dead_for == 1000), "a master that answers again has its role back"


def test_a_lost_connection_gives_the_master_its_role_back_and_a_second_takeover_succeeds() -> None:
    world = World()
    world.begin()
    world.run(lambda: world.config["brokerRole"] == "SLAVE")
    world.slave.standby.lost(9, world.slave.instant)
    world.run(lambda: world.takeover.state.startswith(FAILED))
    world.check()
    assert world.role() == ITS_ROLE
    world.connect(10)
    world.take_over()
    assert world.takeover.is_done


def test_a_slave_whose_broker_did_not_start_gives_the_role_back() -> None:
    world = World()
    world.config |= {"brokerRole": "SLAVE", "brokerId": "1"}
    world.takeover.give_back_first(Stopped(MASTER, world.slave.instant.steady, ITS_ROLE), "the port is taken")
    world.run(lambda: world.takeover.state.startswith(FAILED))
    assert (world.role(), world.takeover.state) == (ITS_ROLE, f"{FAILED}the port is taken")


def test_a_slave_that_does_not_copy_or_takes_over_already_refuses() -> None:
    world = World()
    assert world.begin() is None
    assert "it does so already: begins" in str(world.begin())
    alone = World()
    alone.slave.standby.lost(9, alone.slave.instant)
    assert "this slave cannot take over: not connected to the master" in str(alone.begin())


def test_a_master_that_cannot_be_replaced_keeps_its_role() -> None:
    ours, rolled, silent, behind, slave, deaf = (World() for _ in range(6))
    ours.texts = {EPOCHS: ""}
    for timed, more in ((rolled, b"TIMER_ROLL_TIMES\x011\x02"), (silent, b"")):
        due_ms = timed.master.now + 60_000
        parked = draft(b"later", b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02%s" % (due_ms, more), tag=due_ms)
        timed.master.broker.store.append(TIMER_TOPIC, 0, [parked], timed.master.now)
        timed.copy_all()
    silent.refused = {GetTimerCheckPoint}
    while behind.master.broker.store.end_offset - behind.slave.standby.store.end_offset <= LACKED_BYTES_MAX:
        behind.master.send("T", b"x" * 100_000)
    slave.config["brokerRole"] = "SLAVE"
    deaf.deaf = {"brokerRole"}
    for world, reason in (
        (ours, "is a broker of Halfmoon: pairs change their master"),
        (rolled, "would be delivered again: the master has cancelled some, or stored them again"),
        (silent, "would be delivered again: the master does not say which of them it has delivered"),
        (behind, "wait until it has nearly everything"),
        (slave, "does not say that it is a master: brokerRole=SLAVE"),
        (deaf, "did not become a slave: brokerRole=ASYNC_MASTER"),
    ):
        before = dict(world.config)
        world.begin()
        world.run(lambda world=world: world.takeover.state.startswith(FAILED))  # type: ignore[misc]
        assert reason in world.takeover.state
        assert world.config == before


@pytest.mark.parametrize("seed", range(10))
def test_messages_for_a_point_in_time_are_delivered_by_the_new_master_and_those_of_the_old_one_not_again(seed: int) -> None:
    world = World(seed)
    for body, after_s in ((b"early", 1), (b"soon", 60), (b"late", 3600)):
        world.master.send("Timed", body, properties=f"TIMER_DELAY_SEC\x01{after_s}\x02")
    world.master.wait(10_000)
    world.slave.now = world.master.now
    world.copy_all()
    world.take_over()
    assert world.takeover.is_done
    standby = world.slave.standby
    standby.stop(world.slave.instant)
    world._save()
    standby.close(world.slave.instant)
    new = Talk("promoted", disk=world.slave.disk)
    new.now = world.slave.now
    new.restart()
    for wait_s, bodies in ((10, [b"early"]), (60, [b"early", b"soon"]), (3600, [b"early", b"soon", b"late"])):
        new.wait(1000 * wait_s)
        assert [message.body for message in stored(new, "Timed")] == bodies


def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "SETTLE_MS", 0)


def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.broker.copies.standby.Standby.copy_tables", lambda self, address: iter(()))


def no_return(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_back(self: Takeover, reason: str) -> Any:
        self.state = f"{FAILED}{reason}"
        yield from ()
        return True

    monkeypatch.setattr(Takeover, "give_back", give_back)


@pytest.mark.parametrize("plant", [no_settling, no_tables, no_return])
def test_a_planted_fault_is_found(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = 0
    for seed in range(20):
        for dead_from in (1 << 30, 8):
            world = World(seed)
            world.late, world.dead_from = LATE_MS // 2, world.answers + dead_from
            try:
                world.take_over()
            except AssertionError:
                found += 1
    assert found
