"""`halfmoon serve`, `nameserver` and `broker` as processes: ready, stopped, killed, refused."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from halfmoon import Admin, HalfmoonError, Message, Producer
from halfmoon.cli import servers
from halfmoon.cli.shared.reading import FIRST, read, starts_and_ends
from halfmoon.errors import SettingError, UsageError
from halfmoon.programs.configuration import ServerSettings
from tests.broker.access.rule_files import write
from tests.waiting import stand_still, until

pytestmark = pytest.mark.slow

PLAIN = ServerSettings()
FREE = ("--nameserver-port", "0", "--broker-port", "0")


class Started(NamedTuple):
    """A server process that is ready, and what it said."""

    process: subprocess.Popen[str]
    facts: dict[str, Any]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    @property
    def nameserver(self) -> str:
        """Where its name server is."""
        return str(self.facts["nameserver"])

    @property
    def ports(self) -> tuple[str, ...]:
        """Options that start it again on the same ports."""
        names, broker = (str(self.facts[name]).rpartition(":")[2] for name in ("nameserver", "broker"))
        return ("--nameserver-port", names, "--broker-port", broker)


Start = Callable[..., Started]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server command and wait until it is ready; killed at the end when it still runs."""
    running: list[subprocess.Popen[str]] = []

    def started(*arguments: str, files_max: int = 0) -> Started:
        limited = ["/bin/sh", "-c", f'ulimit -n {files_max} && exec "$@"', "sh"] if files_max else []
        command = [*limited, sys.executable, "-m", "halfmoon.cli.main", *map(str, arguments), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        return Started(process, json.loads(line))

    yield started
    for process in running:
        process.kill()
        process.communicate()


def refused(*arguments: str) -> tuple[int, str]:
    """Run a server command that must not start; return exit code and what it says."""
    command = [sys.executable, "-m", "halfmoon.cli.main", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.stdout == ""
    return ended.returncode, ended.stderr


def send(nameserver: str, *bodies: str) -> list[str]:
    """Send bodies to the topic ``orders`` and return the brokers' ids."""
    with Producer(group="P", nameserver=nameserver) as producer:
        return [producer.send(Message("orders", body.encode())).offset_msg_id for body in bodies]


def bodies(nameserver: str) -> list[str]:
    """Return what the topic ``orders`` holds, sorted."""
    return sorted(message.body.decode() for message in read(nameserver, starts_and_ends(nameserver, "orders", FIRST)))


def test_serve_says_one_line_when_clients_may_connect(tmp_path):
    command = [sys.executable, "-m", "halfmoon.cli.main", "serve", "--data", str(tmp_path), *FREE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        nameserver = line.split("name server ")[1].split(",")[0]
        with Admin(nameserver=nameserver) as admin:
            brokers = list(admin.cluster().broker_addr_table)
        process.terminate()
        rest = process.stdout.read()

    assert line.startswith("halfmoon ready: ")
    assert brokers == ["broker-a"]
    assert (rest, process.returncode) == ("", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_and_messages_are_there_after_the_next_start(start, tmp_path, number):
    first = start("serve", "--data", tmp_path, *FREE)
    send(first.nameserver, "1", "2", "3")

    code = first.stop(number)
    assert not (tmp_path / "abort").exists()
    second = start("serve", "--data", tmp_path, *first.ports)

    assert code == 0
    assert bodies(second.nameserver) == ["1", "2", "3"]


def test_killed_with_9_nothing_acknowledged_is_lost(start, tmp_path):
    first = start("serve", "--data", tmp_path, *FREE)
    sent = [str(number) for number in range(100)]
    send(first.nameserver, *sent)

    code = first.stop(signal.SIGKILL)
    second = start("serve", "--data", tmp_path, *first.ports)
    send(second.nameserver, "after")

    assert code == -signal.SIGKILL
    assert bodies(second.nameserver) == sorted([*sent, "after"])


def test_a_second_signal_ends_it_at_once(start, tmp_path):
    server = start("serve", "--data", tmp_path, *FREE)

    stand_still(server.process.pid)  # so that it finds both signals together, whatever stopping takes
    server.process.send_signal(signal.SIGTERM)
    server.process.send_signal(signal.SIGINT)
    code = server.stop(signal.SIGCONT)

    assert code == 1


def test_a_directory_in_use_is_refused_by_name(start, tmp_path):
    start("serve", "--data", tmp_path, *FREE)

    code, text = refused("serve", "--data", tmp_path, *FREE)

    assert code == 1
    assert str(tmp_path) in text
    assert "locked" in text
    assert "Traceback" not in text


def test_a_second_broker_on_the_directory_of_serve_is_refused(start, tmp_path):
    start("serve", "--data", tmp_path, *FREE)

    code, text = refused("broker", "--data", tmp_path, "--broker-port", "0")

    assert code == 1
    assert "locked" in text


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config", "transaction", "nameserver", "."])
def test_a_file_in_the_place_of_a_directory_is_refused_in_plain_words(tmp_path, name):
    data = tmp_path / "data"
    file = data / name if name != "." else data
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")

    code, text = refused("serve", "--data", data, *FREE)

    assert code == 1
    assert name in text if name != "." else str(data) in text
    assert "move it away" in text
    assert "Errno" not in text
    assert "Traceback" not in text
    assert file.read_text() == "mine"


def test_the_store_of_a_broker_conf_is_where_its_storePathRootDir_says(start, tmp_path):
    (tmp_path / "broker.conf").write_text(f"storePathRootDir={tmp_path}/store\nstorePathCommitLog={tmp_path}/store/commitlog\n")

    found = start("serve", "--config", tmp_path / "broker.conf", *FREE)
    send(found.nameserver, "a")

    assert found.facts["data"] == str(tmp_path / "store")
    assert (tmp_path / "store" / "commitlog").is_dir()
    with Admin(nameserver=found.nameserver) as admin:
        assert admin.broker_config(found.facts["broker"])["storePathRootDir"] == str(tmp_path / "store")
    assert found.stop() == 0
    code, text = refused("serve", "--config", tmp_path / "broker.conf", "--data", tmp_path / "other", *FREE)
    assert code == 2
    assert "storePathCommitLog" in text


def test_a_wrong_option_is_refused_with_the_facts_that_every_command_gives(tmp_path):
    code, error = refused("serve", "--data", tmp_path, "--broker-port", "x", "--json")

    text = "command line: broker.port = 'x': must be a whole number, 0 to 65535"
    assert (code, json.loads(error)) == (2, {"error": text, "kind": "SettingError", "code": None})


def test_a_port_in_use_is_refused_by_number_and_the_directory_is_not_touched(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, text = refused("broker", "--data", tmp_path / "new", "--broker-port", port)

    assert code == 1
    assert port in text
    assert not (tmp_path / "new").exists()


@pytest.mark.mission("004-06", "004-07")
def test_a_second_master_joins_the_cluster_and_its_queues_are_sent_to_as_well(start, tmp_path):
    first = start("serve", "--data", tmp_path / "a", *FREE)
    second = start(
        *("broker", "--nameserver", first.nameserver, "--broker-name", "broker-b"),
        *("--data", tmp_path / "b", "--broker-port", "0"),
    )
    with Admin(nameserver=first.nameserver) as admin:
        admin.create_topic("orders", queue_count=1, broker_address=first.facts["broker"])
        admin.create_topic("orders", queue_count=2, broker_address=second.facts["broker"])
        brokers = sorted(admin.cluster().broker_addr_table)
    with Producer(group="P", nameserver=first.nameserver) as producer:
        queues = [(queue.broker_name, queue.queue_id) for queue in producer.queues("orders")]
        sent_to = {producer.send(Message("orders", body.encode())).queue.broker_name for body in "123456"}

    assert brokers == ["broker-a", "broker-b"]
    assert sorted(queues) == [("broker-a", 0), ("broker-b", 0), ("broker-b", 1)]
    assert sent_to == {"broker-a", "broker-b"}
    assert bodies(first.nameserver) == list("123456")
    assert second.stop() == 0
    with Admin(nameserver=first.nameserver) as admin:
        assert sorted(admin.cluster().broker_addr_table) == ["broker-a"]


def test_a_name_server_alone_keeps_its_values_over_a_restart(start, tmp_path):
    first = start("nameserver", "--data", tmp_path, "--nameserver-port", "0")
    with Admin(nameserver=first.nameserver) as admin:
        admin.put_kv("space", "key", "value")
    assert first.stop() == 0
    second = start("nameserver", "--data", tmp_path, "--nameserver-port", "0")

    with Admin(nameserver=second.nameserver) as admin:
        assert admin.kv("space", "key") == "value"


def test_settings_of_a_broker_conf_and_of_set_reach_the_broker(start, tmp_path):
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=from-file\nflushDiskType=ASYNC_FLUSH\nsendMessageThreadPoolNums=4\nmaxMessageSize=1000\n")

    server = start("serve", "--data", tmp_path / "data", *FREE, "--config", config, "--set", "flushDiskType=SYNC_FLUSH")

    with Admin(nameserver=server.nameserver) as admin:
        found = admin.broker_config(server.facts["broker"])
    assert server.facts["broker_name"] == "from-file"
    assert found["flushDiskType"] == "SYNC_FLUSH"
    assert found["maxMessageSize"] == "1000"


def test_a_toml_file_sets_every_part(start, tmp_path):
    config = tmp_path / "halfmoon.toml"
    config.write_text('[nameserver]\nport = 0\n[broker]\nport = 0\nname = "from-toml"\n[store]\nflush_disk_type = "SYNC_FLUSH"\n')

    server = start("serve", "--data", tmp_path / "data", "--config", config)

    assert server.facts["broker_name"] == "from-toml"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--brokers", "0"), ("--brokers 0: must be a number from 1 to 9",)),
        (("--brokers", "9" * 5000), ("--brokers 9999",)),
        (("--brokers", "3x"), ("--brokers 3x: must be",)),
        (("--ephemeral",), ("leave out --data",)),
        (("--set", "flushDiskTyp=SYNC_FLUSH"), ("flushDiskTyp", "flushDiskType")),
        (("--set", "flushDiskType=SINK_FLUSH"), ("SINK_FLUSH", "SYNC_FLUSH")),
        (("--broker-port", "banana"), ("banana",)),
        (("--broker-port", "70000"), ("70000",)),
        (("--set", "novalue"), ("novalue",)),
        (("--config", "no/such/file.toml"), ("no/such/file.toml",)),
        (("--bogus",), ("--bogus",)),
        (("--data",), ("--data",)),
        (("--log", "loud"), ("loud",)),
        (("--host", "0.0.0.0"), ("0.0.0.0", "--allow-remote")),
    ],
)
def test_a_wrong_option_or_setting_is_named_with_exit_code_2(tmp_path, options, words):
    code, text = refused("serve", *FREE, *(() if options == ("--data",) else ("--data", tmp_path / "new")), *options)

    assert code == 2
    assert all(word in text for word in words)
    assert not (tmp_path / "new").exists()


def test_other_machines_are_let_in_only_with_a_warning(start, tmp_path):
    server = start("serve", "--data", tmp_path, *FREE, "--host", "0.0.0.0", "--allow-remote", "--insecure")
    server.stop()

    assert server.process.stderr is not None
    text = server.process.stderr.read()
    assert "without accounts: other machines may read, send and administer" in text
    assert "other machines may register brokers there: see register_secret" in text


WITHOUT_TLS = ("--set", "acl_without_tls=true")


def test_with_accounts_other_machines_are_let_in_without_a_warning(start, tmp_path):
    rules = write(tmp_path, "accounts:\n- {accessKey: account1, secretKey: secret-1, defaultTopicPerm: PUB}\n")
    server = start("serve", "--data", tmp_path / "data", *FREE, "--host", "0.0.0.0", "--allow-remote", "--acl", rules, *WITHOUT_TLS)
    own = {"group": "P", "nameserver": server.nameserver, "retries_max": 0}
    with Producer(**own, access_key="account1", secret_key="secret-1") as producer:
        producer.send(Message("orders", b"1"))
    with Producer(**own) as stranger, pytest.raises(HalfmoonError, match="No accessKey is configured"):
        stranger.send(Message("orders", b"2"))
    server.stop()

    assert server.process.stderr is not None
    text = server.process.stderr.read()
    assert "other machines may" not in text


@pytest.mark.parametrize("text", [None, "accounts:\n- accessKey: account1\n"])
def test_a_file_of_accounts_that_makes_no_sense_stops_the_start_before_anything_is_made(tmp_path, text):
    rules = tmp_path / "plain_acl.yml"
    if text is not None:
        rules.touch(0o600)
        rules.write_text(text)
    code, said = refused("serve", *FREE, "--data", tmp_path / "new", "--acl", rules)

    assert code == 2
    assert f"{rules}:" in said
    assert not (tmp_path / "new" / "commitlog").exists()


def test_closing_while_clients_are_connected_fails_their_next_send(start, tmp_path):
    server = start("serve", "--data", tmp_path, *FREE)
    with Producer(group="P", nameserver=server.nameserver, retries_max=0, send_timeout_ms=1000) as producer:
        producer.send(Message("orders", b"1"))
        code = server.stop()
        with pytest.raises(HalfmoonError):
            producer.send(Message("orders", b"2"))

    assert code == 0


# ---------------------------------------------------------------- options, without a process


def test_options_read_plainly_in_every_form():
    options = servers.OPTIONS["serve"]

    values = servers.read_options(options, ["--data", "d", "--broker-port=1", "--set", "a=b", "--set=c=d", "--json"])

    assert values is not None
    assert (values["data"], values["broker_port"], values["set"], values["json"]) == ("d", "1", ["a=b", "c=d"], True)
    assert values["host"] is None


@pytest.mark.parametrize("arguments", [["--help"], ["--nope"], ["stray"], ["--data"], ["--json=yes"], ["--data", "--json"]])
def test_what_does_not_read_plainly_goes_the_long_way(arguments):
    assert servers.read_options(servers.OPTIONS["serve"], arguments) is None


def test_the_data_directory_is_given_or_from_the_environment_or_the_users():
    assert servers.data_directory("serve", "here", PLAIN, {"HALFMOON_DATA": "/there"}) == Path("here")
    assert servers.data_directory("serve", None, PLAIN, {"HALFMOON_DATA": "/there"}) == Path("/there")
    assert servers.data_directory("serve", None, PLAIN, {"XDG_DATA_HOME": "/data"}) == Path("/data/halfmoon")
    assert servers.data_directory("nameserver", None, PLAIN, {"XDG_DATA_HOME": "/data"}) == Path("/data/halfmoon/nameserver")
    assert servers.data_directory("serve", None, PLAIN, {}) == Path("~/.local/share/halfmoon").expanduser()


def test_flags_win_over_set_and_set_over_the_environment_and_that_over_files(tmp_path):
    (tmp_path / "f.toml").write_text("[broker]\nport = 1\nname = 'file'\ncluster = 'file'\nregion = 'file'\n")
    environment = {
        "HALFMOON_CONFIG": str(tmp_path / "f.toml"),
        "HALFMOON_BROKER_PORT": "2",
        "HALFMOON_BROKER_NAME": "env",
        "HALFMOON_CLUSTER": "env",
    }

    found = servers.settings_from(
        "serve", {"set": ["broker.port=3", "brokerName=set"], "broker_port": "4", "config": []}, environment
    ).broker

    assert (found.port, found.name, found.cluster, found.region) == (4, "set", "env", "file")


def test_a_host_that_others_reach_is_refused_unless_allowed():
    with pytest.raises(UsageError, match="--allow-remote"):
        servers.settings_from("serve", {"host": "0.0.0.0"}, {})

    found = servers.settings_from("serve", {"host": "192.0.2.7", "allow_remote": True, "insecure": True}, {})

    assert (found.host, found.broker.address) == ("192.0.2.7", "192.0.2.7")


@pytest.mark.parametrize("name", ["serve", "broker"])
def test_other_machines_are_let_in_only_with_accounts_or_on_purpose(name):
    remote = {"host": "0.0.0.0", "allow_remote": True, "set": ["acl_without_tls=true"]}
    with pytest.raises(UsageError, match=r"--acl FILE .* or --insecure"):
        servers.settings_from(name, remote, {})

    assert servers.settings_from(name, {**remote, "acl": "a.yml"}, {}).broker.acl_file == "a.yml"
    assert servers.settings_from(name, {**remote, "set": [*remote["set"], "aclEnable=true"]}, {}).broker.acl_enable
    assert not servers.settings_from(name, {**remote, "insecure": True}, {}).broker.acl_enable


@pytest.mark.parametrize("name", ["serve", "broker"])
def test_accounts_without_tls_are_refused_beyond_loopback_unless_they_are_allowed(name, tmp_path):
    remote = {"host": "0.0.0.0", "allow_remote": True, "acl": "a.yml"}
    with pytest.raises(UsageError, match=r"accounts without TLS.* acl_without_tls=true"):
        servers.settings_from(name, remote, {})
    with pytest.raises(UsageError, match="accounts without TLS"):
        servers.settings_from(name, {**remote, "set": ["tls.server.mode=permissive"]}, {})

    assert servers.settings_from(name, {**remote, "set": ["acl_without_tls=true"]}, {}).broker.acl_enable
    assert servers.settings_from(name, {**remote, "set": ["tls.server.mode=enforcing"]}, {}).broker.acl_enable
    assert servers.settings_from(name, {**remote, "host": "127.0.0.1"}, {}).broker.acl_enable


def test_a_name_server_has_no_accounts_that_could_be_asked_for():
    assert servers.settings_from("nameserver", {"host": "0.0.0.0", "allow_remote": True}, {}).host == "0.0.0.0"


def test_a_broker_finds_its_name_servers_in_the_environment():
    environment = {"HALFMOON_NAMESERVER": "127.0.0.1:1", "NAMESRV_ADDR": "127.0.0.1:1"}

    def nameserver(name: str, **values: object) -> str:
        return servers.settings_from(name, values, environment).broker.nameserver

    assert nameserver("broker") == "127.0.0.1:1"
    assert nameserver("broker", nameserver="127.0.0.1:2") == "127.0.0.1:2"
    assert nameserver("serve") == ""


def test_an_unknown_setting_of_the_environment_is_refused():
    with pytest.raises(SettingError, match="HALFMOON_BROKER_NAME"):
        servers.settings_from("serve", {}, {"HALFMOON_BROKER_NAM": "x"})


def test_connections_are_refused_before_the_store_lacks_descriptors(start: Start, tmp_path: Path) -> None:
    server = start("serve", "--data", str(tmp_path), *FREE, files_max=256)
    host, _, port = str(server.facts["broker"]).rpartition(":")
    with Producer(group="P_crowd", nameserver=server.nameserver) as producer:
        producer.send(Message("first", b"1"))
        crowd = [socket.create_connection((host, int(port))) for _ in range(400)]
        for number in range(10):  # a new topic is a new file in each of its queues
            producer.send(Message(f"new-{number}", b"sent"))
        for each in crowd:
            each.close()
        producer.send(Message("last", b"1"))
    with Admin(nameserver=server.nameserver) as admin:
        assert "brokerFaults" not in admin.broker_runtime_info(str(server.facts["broker"]))
    assert server.stop() == 0
    assert server.process.stderr is not None
    said = server.process.stderr.read()
    assert "new connections are refused, 1 so far:" in said
    assert "of the 256 files that the system lets this process open, all but 192 are kept for the store" in said
    assert "ERROR" not in said


def _made(directory: Path) -> bool:
    """Make a directory, unless the server has a file of that name just now."""
    with suppress(FileExistsError):
        directory.mkdir()
    return directory.is_dir()


def test_a_stop_that_cannot_save_its_tables_ends_soon_says_so_and_exits_1(start: Start, tmp_path: Path) -> None:
    server = start("serve", "--data", str(tmp_path), *FREE)
    until(lambda: _made(tmp_path / "config" / "topics.json.tmp"))  # in the way; root may write into any directory
    with (
        Producer(group="P_unsaved", nameserver=server.nameserver) as producer,
        pytest.raises(HalfmoonError, match=r"config/topics\.json cannot be saved: \[Errno 21\] Is a directory"),
    ):
        any(producer.send(Message(f"new-{number}", b"1")) is None for number in range(20))
    begun = time.monotonic()
    assert server.stop() == 1
    assert time.monotonic() - begun < 15  # on a machine that is busy; nothing in it waits
    assert server.process.stderr is not None
    said = server.process.stderr.read()
    assert (
        "ERROR halfmoon.broker.tables: a table cannot be saved, requests that depend on it are refused: path=config/topics.json"
        in said
    )
    assert '"error": "stopped, and not all is saved: config/' in said


def test_a_broker_without_a_name_server_says_that_clients_do_not_find_it(start, tmp_path, monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    server = start("broker", "--data", tmp_path, "--broker-port", "0")

    server.process.send_signal(signal.SIGTERM)
    _, text = server.process.communicate(timeout=60)

    assert "has no name server, so clients do not find it" in text


def test_a_slave_copies_the_broker_that_is_named_and_ends_cleanly(start: Start, tmp_path: Path) -> None:
    master = start("serve", *FREE, "--data", str(tmp_path / "master"))
    of_slave = ("--slave-of", "broker-a", "--broker-port", "0", "--set", "brokerId=3")
    slave = start("broker", *of_slave, "--nameserver", master.nameserver, "--data", str(tmp_path / "copy"))
    assert (slave.facts["slave_of"], slave.facts["broker_id"]) == ("broker-a", 3)
    assert slave.facts["nameserver"] == master.nameserver
    with Producer(group="P", nameserver=master.nameserver) as producer:
        producer.send(Message("orders", b"1"))
    copy = tmp_path / "copy" / "consumequeue" / "orders"
    until(copy.exists, "the slave to copy the message")
    assert slave.stop() == 0
    assert not (tmp_path / "copy" / "abort").exists()
