"""Settings of a running broker: which can be changed, that they take effect and outlive a kill, and what is refused by name."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import halfmoon
from halfmoon.broker.admin.configuration import PATH, TEXT_BYTES_MAX
from halfmoon.broker.settings import CHANGEABLE, BrokerSettings
from halfmoon.broker.topics import topic_config
from halfmoon.errors import StoreError
from halfmoon.settings import describe
from halfmoon.store.settings import StoreSettings
from halfmoon.wire.bodies import DataVersion, from_json, parse_config_text
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerConfigReply, UpdateBrokerConfig
from tests.broker.talk import START_MS

TABLES = {"broker": BrokerSettings, "store": StoreSettings}


def update(talk, text):
    return talk.ask(UpdateBrokerConfig(), text.encode())


def shown(talk, key):
    return parse_config_text(talk.ask(GetBrokerConfig()).body)[key]


def test_settings_are_changed_and_outlive_a_kill_and_say_so_at_the_start(talk, caplog):
    assert update(talk, "fileReservedTime=96\nlongPollingEnable=false\n").code == 0
    talk.broker.store.close(talk.instant)
    caplog.clear()
    talk.open()

    assert (shown(talk, "fileReservedTime"), shown(talk, "longPollingEnable")) == ("96", "false")
    assert (talk.settings.long_polling, talk.store_settings.file_reserved_hours) == (True, 72), "others' settings stay theirs"
    assert "settings changed by command apply, over those of files and flags" in caplog.text
    assert "fileReservedTime=96, longPollingEnable=false" in caplog.text


def test_a_later_change_adds_to_what_was_changed_before(talk):
    update(talk, "fileReservedTime=96")
    talk.store_settings = replace(talk.store_settings, file_reserved_hours=96)
    talk.restart()
    update(talk, "maxMsgsNumBatch=5")

    assert (talk.root / PATH).read_text() == "fileReservedTime=96\nmaxMsgsNumBatch=5\n"


def test_a_change_moves_the_version_of_the_settings(talk):
    def version():
        return from_json(DataVersion, talk.ask(GetBrokerConfig()).header(GetBrokerConfigReply).version.encode())

    before = version()
    update(talk, "fileReservedTime=72")
    assert version() == before, "it was so already"
    update(talk, "fileReservedTime=96")

    assert (before, version().counter) == (DataVersion(timestamp=START_MS), 1)


def test_a_permission_that_is_taken_away_is_missed_at_once_and_announced(talk):
    talk.send("orders")
    assert talk.pull("orders").code == 0
    before, told = talk.broker.topics.version, []
    talk.broker.topics.on_change = told.append

    assert update(talk, "brokerPermission=2").code == 0

    assert talk.pull("orders").code == 16
    assert talk.broker.topics.version.counter == before.counter + 1
    assert told == [None]


MINUTE_MS = 60_000
INTERVALS = (
    "transaction_check_interval_ms={0}\nsave_offsets_ms={0}\nflush_log_interval_ms={1}\nflush_queue_interval_ms={1}\n"
    "clean_interval_ms={0}"
)


def planned(talk):
    """Return how many ms from now what has an interval is planned."""
    broker, store = talk.broker, talk.broker.store
    plans = (
        broker.transactions.checks.next_round_at, broker._next_save_at, store._log_due, store.queues_due,
        store.maintenance._clean_due,
    )  # fmt: skip
    return [due - talk.instant.steady for due in plans]


def test_a_shorter_interval_counts_from_now_on_and_a_longer_one_from_the_next_time_on(talk):
    update(talk, INTERVALS.format(MINUTE_MS, MINUTE_MS))
    talk.wait(11_000)
    assert all(40_000 < due <= MINUTE_MS for due in planned(talk))
    update(talk, INTERVALS.format(5_000, 2_000))

    assert planned(talk) == [5_000, 5_000, 2_000, 2_000, 5_000]
    before = planned(talk)
    update(talk, INTERVALS.format(MINUTE_MS, MINUTE_MS))
    assert planned(talk) == before


def test_topics_are_made_by_sends_once_that_is_allowed(make_talk):
    talk = make_talk(auto_create_topics=False)
    assert talk.send("orders").code == 17

    update(talk, "autoCreateTopicEnable=true")
    assert talk.send("orders").code == 0


def test_topics_are_made_by_sends_also_when_a_kill_left_nothing_but_the_setting(make_talk):
    talk = make_talk(auto_create_topics=False)
    talk.broker.store.close(talk.instant)
    (talk.root / PATH).write_text("autoCreateTopicEnable=true\n")

    talk.open()

    assert talk.send("orders").code == 0


@pytest.fixture
def full(make_talk):
    """A broker whose sends make no topics and that has as many as it may have."""
    talk = make_talk(auto_create_topics=False, topics_max=100)
    for number in range(100 - len(talk.broker.topics.names())):
        talk.broker.topics.put(topic_config(f"t{number}", 1), talk.now)
    return talk


def test_sends_are_not_to_make_topics_where_there_is_no_room_for_their_template(full):
    reply = update(full, "autoCreateTopicEnable=true")

    assert (reply.code, reply.remark) == (2, "the broker would have 101 topics, more than its bound of 100 (topics_max)")
    assert shown(full, "autoCreateTopicEnable") == "false"
    assert not (full.root / PATH).exists()
    assert update(full, "autoCreateTopicEnable=true\ntopics_max=102").code == 0
    assert full.send("orders").code == 0


def test_a_broker_with_as_many_topics_as_it_may_have_starts_with_what_was_changed(full):
    full.restart()
    full.broker.store.close(full.instant)
    (full.root / PATH).write_text("autoCreateTopicEnable=true\n")

    full.open()

    assert len(full.broker.topics.names()) == 101


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("fileReservedTime=96\nfileReservedTimes=48", 1, "unknown setting 'fileReservedTimes'; did you mean 'fileReservedTime'?"),
        ("fileReservedTime=96\nlistenPort=10912\nflushDiskType=SYNC_FLUSH", 1, "at the start: flushDiskType, listenPort"),
        ("fileReservedTime=96\nstorePathRootDir=/tmp", 1, "can only be set at the start: storePathRootDir"),
        ("fileReservedTime=96\nstorePathCommitLog=/tmp", 1, "can only be set at the start: storePathCommitLog"),
        ("fileReservedTime=96\nnamesrvAddr=10.0.0.9:9876", 1, "can only be set at the start: namesrvAddr"),
        ("fileReservedTime=96\nbrokerRole=SLAVE", 1, "brokerRole = 'SLAVE': must be one of ASYNC_MASTER, SYNC_MASTER"),
        ("fileReservedTime=-1", 1, "fileReservedTime = '-1': must be a whole number, 0 to 1000000"),
        ("fileReservedTime=96\ndeleteWhen=25", 1, "deleteWhen"),
        ("fileReservedTime=96\nbrokerConfigPath=/etc", 16, "Can not update config in black list: brokerConfigPath"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed_is_refused_by_name_and_nothing_else_is_changed(talk, text, code, named):
    reply = update(talk, text)

    assert reply.code == code
    assert named in reply.remark
    assert shown(talk, "fileReservedTime") == "72"
    assert not (talk.root / PATH).exists()


@pytest.mark.parametrize("body", [b"\xff", b"a=\\u12", b"#" * (TEXT_BYTES_MAX + 1)])
def test_what_is_no_text_of_settings_is_refused(talk, body):
    assert talk.ask(UpdateBrokerConfig(), body).code == 1


@pytest.mark.parametrize("text", ["", "listenPort=10911"])
def test_what_changes_nothing_is_a_success(talk, text):
    assert update(talk, text).code == 0


def test_a_key_of_rocketmq_that_means_nothing_here_is_a_success_that_says_so(talk):
    reply = update(talk, "sendMessageThreadPoolNums=8\nfileReservedTime=96")

    assert reply.code == 0
    assert reply.remark.startswith("without effect here: sendMessageThreadPoolNums: ")
    assert shown(talk, "fileReservedTime") == "96"


@pytest.mark.parametrize("text", ["fileReservedTime=soon", "listenPort=1", "\xff"])
def test_saved_settings_that_cannot_be_stop_the_start_by_name(talk, text):
    talk.broker.store.close(talk.instant)
    (talk.root / PATH).write_bytes(text.encode("latin-1"))

    with pytest.raises(StoreError, match=PATH):
        talk.open()


# ---------------------------------------------------------------- which can be


def _read_while_running():
    """Names of attributes that are read in other functions than constructors, anywhere in a broker or its store."""
    names = set()
    root = Path(halfmoon.__file__).parent
    for path in (*(root / "broker").rglob("*.py"), *(root / "store").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and function.name != "__init__":
                names |= {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return names


@pytest.mark.parametrize("table", TABLES)
def test_settings_that_can_be_changed_are_read_while_the_broker_runs(table):
    assert CHANGEABLE[table] <= {each.name for each in describe(TABLES[table])}
    assert CHANGEABLE[table] <= _read_while_running()


def test_no_setting_that_can_be_changed_is_a_free_text():
    described = [each for table, cls in TABLES.items() for each in describe(cls) if each.name in CHANGEABLE[table]]
    texts = {each.name for each in described if each.kind == "text"}

    assert texts == {"delete_when"}  # hours, checked
