"""Registration in virtual time, with real name server cores behind a simulated network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from halfmoon.broker.registration import Registration, RegistrationReply
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Call
from halfmoon.errors import BrokerError, RequestTimeout
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.settings import overwrite
from halfmoon.testing.driver import Calls, Driver, Task
from halfmoon.testing.host import CoreHost
from halfmoon.testing.network import Network
from halfmoon.testing.timeline import Timeline
from halfmoon.wire.bodies import DataVersion, TopicConfig, TopicConfigTable
from halfmoon.wire.command import Command

ADDRESS = "10.0.0.1:10911"


class Scene:
    """Name servers, and one broker's registration with them."""

    def __init__(self, name_servers: int = 1, **settings: Any) -> None:
        self.timeline = Timeline(7)
        self.network = Network(self.timeline)
        self.hosts = [CoreHost(self.timeline, self.network, f"10.0.1.{i}", [9876], f"ns-{i}") for i in range(1, name_servers + 1)]
        for host in self.hosts:
            self.boot(host)
        self.table = TopicConfigTable(DataVersion(1, 5), {"t": topic("t")})
        self.replies: list[RegistrationReply] = []
        addresses = ";".join(host.address for host in self.hosts)
        self.settings = BrokerSettings(nameserver=addresses, **settings)
        self.registration = Registration(self.settings, ADDRESS, lambda: self.table, self.replies.append)
        self.calls = Calls(self.timeline, self.network, "10.0.0.1", lost=self.registration.disconnected)
        self.driver = Driver(self.timeline, self.calls, lambda: self.timeline.now, "broker")

    def boot(self, host: CoreHost) -> None:
        host.boot(lambda now: NameServer(NameServerSettings(), now=now))

    def core(self, index: int = 0) -> NameServer:
        core = self.hosts[index].core
        assert isinstance(core, NameServer)
        return core

    def keep(self) -> None:
        self.driver.start(self.registration.keep(), "register")

    def run(self, operation: Any, within_ms: int = 10_000) -> Any:
        task: Task[Any] = self.driver.start(operation)
        assert self.timeline.run_until(lambda: task.done, within_ms)
        return task.result()

    def add_topic(self, name: str) -> None:
        version = DataVersion(self.table.data_version.counter + 1, 5)
        self.table = TopicConfigTable(version, {**self.table.topic_config_table, name: topic(name)})
        self.registration.changed()

    def knows(self, name: str = "t", index: int = 0) -> bool:
        return self.core(index).routes.route(name) is not None


def topic(name: str) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4)


def test_a_broker_registers_with_every_name_server_at_once() -> None:
    scene = Scene(name_servers=3)
    scene.keep()
    scene.timeline.run(50)
    assert [scene.knows(index=index) for index in range(3)] == [True, True, True]
    assert scene.registration.registered == scene.registration.name_servers
    (group,) = scene.core().routes.groups()
    assert (group.cluster, group.name, group.addresses) == ("DefaultCluster", "broker-a", {0: ADDRESS})


@pytest.mark.parametrize("settings", [{}, {"compressed_register": True}, {"force_register": False}])
def test_a_broker_stays_known_by_registering_each_period(settings: dict[str, Any]) -> None:
    scene = Scene(**settings)
    scene.keep()
    for _ in range(20):
        scene.timeline.run(30_000)
        assert scene.knows()


def test_a_shorter_period_counts_from_the_last_registration_on() -> None:
    scene = Scene(register_ms=60_000, force_register=True)
    scene.keep()
    scene.timeline.run(25_000)
    scene.replies.clear()
    overwrite(scene.settings, replace(scene.settings, register_ms=10_000))
    scene.registration.settings_changed(0)
    scene.timeline.run(100)
    assert len(scene.replies) == 1
    scene.timeline.run(20_000)
    assert len(scene.replies) == 3


def test_a_new_topic_is_announced_at_once() -> None:
    scene = Scene()
    scene.keep()
    scene.timeline.run(5_000)
    scene.add_topic("new")
    scene.timeline.run(10)
    assert scene.knows("new")


def test_a_burst_of_new_topics_is_announced_in_few_tables_and_completely() -> None:
    scene = Scene()
    scene.keep()
    scene.timeline.run(5_000)
    sent: list[str] = []
    for index in range(100):
        scene.add_topic(f"new{index}")
        scene.timeline.run(2)
        sent = [name for name in scene.table.topic_config_table if scene.knows(name)]
    assert len(sent) < 101
    scene.timeline.run(250)
    assert all(scene.knows(name) for name in scene.table.topic_config_table)


def test_a_topic_that_appears_while_a_registration_is_under_way_is_not_forgotten() -> None:
    scene = Scene()
    scene.keep()
    scene.timeline.run_until(lambda: scene.calls is not None and scene.knows(), 1_000)  # arrived, its answer still on the way
    scene.add_topic("late")
    scene.timeline.run(50)
    assert scene.knows("late")


def test_a_dead_name_server_delays_no_other_and_is_registered_with_soon_after_it_came_back() -> None:
    scene = Scene(name_servers=2)
    scene.hosts[0].kill()
    scene.keep()
    scene.timeline.run(100)
    assert scene.knows(index=1)
    assert scene.registration.registered == [scene.hosts[1].address]
    scene.boot(scene.hosts[0])
    scene.timeline.run(1_000)
    assert scene.knows(index=0)
    assert scene.registration.registered == scene.registration.name_servers


@pytest.mark.parametrize("down_ms", [0, 300, 20_000, 100_000])
@pytest.mark.parametrize("force", [False, True])
def test_a_restarted_name_server_knows_the_broker_again_within_a_second(force: bool, down_ms: int) -> None:
    scene = Scene(force_register=force)
    scene.keep()
    scene.timeline.run(5_000)
    scene.hosts[0].kill()
    scene.timeline.run(down_ms)
    scene.boot(scene.hosts[0])
    assert not scene.knows()
    scene.timeline.run(1_000)
    assert scene.knows()
    assert scene.registration.registered == scene.registration.name_servers


def test_a_lost_connection_alone_is_enough_to_register_again_within_a_second() -> None:
    scene = Scene(force_register=False)
    scene.keep()
    scene.timeline.run(5_000)
    (end,) = scene.network.connections("10.0.0.1")
    scene.network.lose(end)
    assert scene.timeline.run_until(lambda: not scene.knows(), 100)
    scene.timeline.run(1_000)
    assert scene.knows()


def test_a_name_server_that_hangs_up_after_each_registration_is_not_asked_in_a_circle() -> None:
    scene = Scene()
    scene.keep()
    scene.timeline.run(5_000)
    scene.replies.clear()
    for _ in range(10_000):
        for end in scene.network.connections("10.0.0.1"):
            scene.network.lose(end)
        scene.timeline.run(1)
    assert len(scene.replies) <= 20


def test_an_announcement_that_was_lost_is_made_good_by_the_next() -> None:
    scene = Scene()
    scene.keep()
    scene.timeline.run(5_000)
    scene.network.cut("10.0.0.1", "10.0.1.1")
    scene.add_topic("lost")
    scene.timeline.run(1_000)
    scene.network.heal()
    scene.add_topic("next")
    scene.timeline.run(40_000)
    assert scene.knows("lost")
    assert scene.knows("next")


def test_that_a_name_server_is_gone_is_said_once_however_many_topics_are_new(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.keep()
    scene.timeline.run(5_000)
    scene.hosts[0].kill()
    for index in range(20):
        scene.add_topic(f"new{index}")
        scene.timeline.run(500)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_leaving_unregisters_everywhere_and_ends_the_loops() -> None:
    scene = Scene(name_servers=2)
    kept = scene.driver.start(scene.registration.keep(), "register")
    scene.timeline.run(100)
    scene.hosts[1].kill()
    scene.run(scene.registration.leave())
    assert not scene.knows()
    scene.timeline.run(4_000)
    assert kept.done
    assert not scene.knows()


def test_what_the_name_server_says_of_ordered_topics_and_of_the_master_is_told() -> None:
    scene = Scene(name_servers=2)
    scene.core(0).values.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    assert scene.run(scene.registration.register()) == [
        RegistrationReply(None, None, {"t": "broker-a:4"}),
        RegistrationReply(None, None, {}),
    ]


def test_only_the_first_name_server_that_answers_is_listened_to() -> None:
    scene = Scene(name_servers=2)
    scene.core(0).values.put("ORDER_TOPIC_CONFIG", "t", "first")
    scene.core(1).values.put("ORDER_TOPIC_CONFIG", "t", "second")
    scene.keep()
    scene.timeline.run(10_000)
    scene.replies.clear()
    scene.timeline.run(60_000)
    assert {reply.order_topics["t"] for reply in scene.replies} == {"first"}
    scene.hosts[0].kill()
    scene.timeline.run(65_000)
    assert scene.replies[-1].order_topics["t"] == "second"


def test_everybody_is_told_once_each_name_server_was_tried() -> None:
    scene = Scene(name_servers=2)
    scene.hosts[1].kill()
    tried: list[bool] = []
    scene.registration.tried.subscribe(lambda: tried.append(True))
    scene.keep()
    scene.timeline.run(10_000)
    assert tried == [True]


def test_a_broker_without_name_servers_has_nothing_to_do() -> None:
    registration = Registration(BrokerSettings(), ADDRESS, TopicConfigTable)
    scene = Scene()
    assert scene.run(registration.keep()) is None
    assert scene.run(registration.leave()) is None


# ---------------------------------------------------------------- against answers made up


class Answers:
    """Runs an operation that registers once; answers its calls from a list."""

    def __init__(self, *answers: Command | Exception, **settings: Any) -> None:
        self.calls: list[Call] = []
        self._answers = list(answers)
        table = TopicConfigTable(DataVersion(3, 5), {"t": topic("t")})
        settings = {"nameserver": "10.0.1.1:9876", **settings}
        self.registration = Registration(BrokerSettings(**settings), ADDRESS, lambda: table)

    def register(self, *, force: bool) -> Any:
        operation = self.registration._register(self.registration.links[0], force=force)
        try:
            asked = next(operation)
            while True:
                self.calls.append(asked)
                answer = self._answers.pop(0)
                asked = operation.throw(answer) if isinstance(answer, Exception) else operation.send(answer)
        except StopIteration as end:
            return end.value

    @property
    def asked(self) -> list[str]:
        return [type(each.request).__name__ for each in self.calls]


def test_the_registration_says_who_and_what() -> None:
    answers = Answers(Command(code=0, flag=1))
    answers.registration.slave_address = "10.0.0.1:10912"
    answers.register(force=True)
    (call,) = answers.calls
    header = call.request
    assert (header.broker_name, header.broker_addr, header.ha_server_addr) == ("broker-a", ADDRESS, "10.0.0.1:10912")
    assert (header.cluster_name, header.broker_id, header.compressed) == ("DefaultCluster", 0, False)
    assert header.body_crc32 > 0
    assert b'"dataVersion":{"counter":3,"timestamp":5}' in call.body
    assert b'"topicName":"t"' in call.body
    assert call.timeout_ms == 6_000


def test_nothing_is_sent_when_the_name_server_has_this_version() -> None:
    answers = Answers(Command(code=0, flag=1, fields={"changed": "false"}))
    assert answers.register(force=False) is None
    assert answers.asked == ["QueryDataVersion"]


@pytest.mark.parametrize(
    "answer",
    [
        Command(code=0, flag=1, fields={"changed": "true"}),
        Command(code=3, flag=1, remark=" request type 322 not supported"),
        Command(code=0, flag=1),
        RequestTimeout("no answer"),
    ],
)
def test_the_table_is_sent_when_it_changed_or_the_name_server_cannot_say(answer: Command | Exception) -> None:
    answers = Answers(answer, Command(code=0, flag=1))
    answers.register(force=False)
    assert answers.asked == ["QueryDataVersion", "RegisterBroker"]


def test_a_slave_learns_its_master() -> None:
    reply = Command(code=0, flag=1, fields={"haServerAddr": "a:1", "masterAddr": "b:2"}, body=b'{"table":{}}')
    assert Answers(reply).register(force=True) == RegistrationReply("a:1", "b:2", {})


def test_a_refusal_is_an_error_with_its_code_and_remark() -> None:
    with pytest.raises(BrokerError, match="crc32 not match"):
        Answers(Command(code=1, flag=1, remark="crc32 not match")).register(force=True)
