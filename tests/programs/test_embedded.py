"""Programs in this event loop: bound first, then started, and everything given back when a start fails."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from halfmoon import AsyncAdmin, AsyncProducer, Message
from halfmoon.broker.settings import VipChannel
from halfmoon.cli.console.child import cluster_of
from halfmoon.errors import HalfmoonError, SettingError, StoreError, StoreLocked
from halfmoon.programs.cluster import cluster
from halfmoon.programs.configuration import BROKER, NAME_SERVER, ServerSettings, configuration
from halfmoon.programs.embedded import NAME_SERVER_DIRECTORY, SMALL, both, broker, kill, name_server, start, stop
from halfmoon.programs.ports import PortTaken
from halfmoon.runtime.connections.asyncio_connections import Connections
from halfmoon.settings.tls import ClientCertificates, TlsMode, TlsSettings
from halfmoon.wire.bodies import RegisterBrokerBody, to_json
from halfmoon.wire.headers.route import RegisterBroker
from halfmoon.wire.signature import Credentials
from tests.authority import Authority
from tests.broker.access.rule_files import write
from tests.programs.test_ports import pair_of_ports


def settings() -> ServerSettings:
    """Settings with free ports and small files."""
    found = ServerSettings()
    return found._replace(
        nameserver=replace(found.nameserver, port=0),
        broker=replace(found.broker, port=0),
        store=replace(found.store, commit_log_file_bytes=1 << 22, hash_slots=1000, index_entries_max=4000),
    )


async def test_both_take_messages_as_soon_as_they_are_started(tmp_path):
    programs = await both(settings(), tmp_path)
    await start(programs)
    try:
        async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
            sent = await producer.send(Message("orders", b"1"))
    finally:
        await stop(programs)

    assert sent.queue.broker_name == "broker-a"
    assert (tmp_path / NAME_SERVER_DIRECTORY).is_dir()
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
async def test_clients_reach_a_server_on_the_loopback_address_that_it_listens_on(tmp_path, host, caplog):
    assignments = ["nameserver.port=0", "broker.port=0", *(f"{key}={value}" for key, value in SMALL.items())]
    programs = await both(configuration({**NAME_SERVER, **BROKER}, host=host, assignments=assignments), tmp_path)
    await start(programs)
    try:
        async with AsyncProducer(group="P", nameserver=programs[0].address) as producer:
            sent = await producer.send(Message("orders", b"1"))
        async with AsyncAdmin(nameserver=programs[0].address) as admin:
            found = await admin.message_by_offset_id(sent.offset_msg_id)
    finally:
        await stop(programs)

    assert found.store_host.rpartition(":")[0].strip("[]") == host
    assert "cannot connect" not in caplog.text


async def test_a_broker_that_tells_clients_an_address_where_nothing_listens_says_so_at_its_start(tmp_path, caplog):
    found = settings()
    elsewhere = found._replace(broker=replace(found.broker, address="127.0.0.3"))
    programs = await both(elsewhere, tmp_path)
    await start(programs)
    await stop(programs)

    (said,) = [text for record in caplog.records if "cannot connect" in (text := record.getMessage())]
    assert f"clients are told 127.0.0.3:{programs[1].port}" in said
    assert "listening on 127.0.0.1, brokerIP1 (broker.address) must be" in said


def with_accounts(file="", **changes):
    found = settings()
    return found._replace(broker=replace(found.broker, acl_enable=True, acl_file=str(file), **changes))


ACCOUNTS = "accounts:\n- {accessKey: account1, secretKey: secret-1, admin: true}\n"


@pytest.mark.parametrize("place", ["given", "home", "data"])
async def test_accounts_are_in_the_file_that_is_given_or_in_rocketmqs_home_or_in_the_data_directory(tmp_path, monkeypatch, place):
    directory = tmp_path / place / "conf"
    write(tmp_path / place, ACCOUNTS)
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path / "home"))
    programs = await both(with_accounts(directory / "plain_acl.yml" if place == "given" else ""), tmp_path / "data")
    await start(programs)
    try:
        own = {"group": "P", "nameserver": programs[0].address, "retries_max": 0}
        async with AsyncProducer(**own, access_key="account1", secret_key="secret-1") as producer:
            await producer.send(Message("orders", b"1"))
        async with AsyncProducer(**own) as stranger:
            with pytest.raises(HalfmoonError, match="No accessKey is configured"):
                await stranger.send(Message("orders", b"2"))
    finally:
        await stop(programs)


@pytest.mark.parametrize("count", [1, 2])
async def test_beside_accounts_nobody_else_registers_a_broker_to_be_sent_signed_requests(tmp_path, count):
    rules = write(tmp_path, "accounts:\n- {accessKey: operator, secretKey: secret-1, admin: true}\n")
    programs = await cluster(with_accounts(rules), tmp_path / "data", count)
    await start(programs)
    names, stranger = programs[0], Connections()
    header = RegisterBroker(broker_name="broker-x", broker_addr="127.0.0.1:9", cluster_name="DefaultCluster", broker_id=0)
    try:
        refused = await stranger.call(names.address, header, to_json(RegisterBrokerBody()), 3000)
        async with AsyncAdmin(nameserver=names.address, access_key="operator", secret_key="secret-1") as admin:
            known = {each.name for each in await admin.brokers()}
            await admin.create_topic("orders", queue_count=1)
            await admin.delete_topic("orders")  # changes routes, as an administrator may
    finally:
        await stranger.close()
        await stop(programs)

    assert (refused.code, "needs the right to register" in (refused.remark or "")) == (1, True)
    assert known == {f"broker-{letter}" for letter in "ab"[:count]}


async def test_who_reads_accounts_with_certificates_that_nobody_asks_for_is_warned(tmp_path, caplog):
    (tmp_path / "given").mkdir()
    rules = tmp_path / "given" / "plain_acl.yml"
    rules.write_text(ACCOUNTS.replace("admin: true", "certificate: a service"))
    rules.chmod(0o600)
    await kill((await broker(with_accounts(rules), tmp_path / "data"),))

    assert "accounts have certificates: clients are not asked for one: set tls.server.need.client.auth" in caplog.text


async def test_a_name_server_that_takes_registrations_by_certificate_and_asks_for_none_does_not_start():
    found = settings()
    with pytest.raises(SettingError, match="register_certificates: clients are not asked for one"):
        await name_server(found._replace(nameserver=replace(found.nameserver, register_certificates="broker-a")), None)


async def test_a_broker_that_could_not_register_beside_it_for_want_of_a_certificate_does_not_start(tmp_path):
    authority = Authority(tmp_path / "certificates")
    server, mine = authority.pair("server"), authority.pair("broker")
    found = settings()._replace(
        tls=TlsSettings(
            server_mode=TlsMode.ENFORCING, server_cert=server.cert, server_key=server.key,
            server_client_auth=ClientCertificates.REQUIRE, server_trust=authority.ca,
        )
    )  # fmt: skip
    with pytest.raises(SettingError, match=r"give it a certificate \(tls.client.certPath"):
        await both(found, tmp_path / "data")

    await kill(await both(found._replace(tls=replace(found.tls, client_cert=mine.cert, client_key=mine.key)), tmp_path / "data"))


async def test_the_console_signs_only_what_goes_to_servers_of_its_own_process(tmp_path):
    rules = write(tmp_path, "accounts:\n- {accessKey: operator, secretKey: secret-1, admin: true}\n")
    programs = await cluster(with_accounts(rules), tmp_path / "data", 2)
    try:
        client = AsyncAdmin(**cluster_of(programs))
        assert all(client.signs(each.address) is not None for each in programs)
        assert client.signs("127.0.0.1:9") is None  # what a name server may call a broker
    finally:
        await kill(programs)


async def test_a_broker_signs_what_it_asks_others_with_the_account_of_its_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("HALFMOON_ACCESS_KEY", "account1")
    monkeypatch.setenv("HALFMOON_SECRET_KEY", "secret-1")
    alone = await broker(settings(), tmp_path)
    try:
        assert alone.connections.signs("127.0.0.1:1") == Credentials("account1", "secret-1")
    finally:
        await alone.kill()


async def test_without_its_file_of_accounts_a_broker_does_not_start_and_gives_its_port_back(tmp_path):
    with pytest.raises(SettingError, match=r"nowhere/plain_acl\.yml: there is no such file"):
        await both(with_accounts(tmp_path / "nowhere" / "plain_acl.yml"), tmp_path / "data")
    assert not (tmp_path / "nowhere").exists()
    await stop(await both(settings(), tmp_path / "data"))


async def test_a_broker_started_alone_registers_with_every_name_server_given(tmp_path):
    names = [await name_server(settings(), None) for _ in range(2)]
    await start(tuple(names))
    found = settings()
    addresses = ";".join(each.address for each in names)
    alone = await broker(found._replace(broker=replace(found.broker, nameserver=addresses, name="b")), tmp_path)
    try:
        await start((alone,))
        known = []
        for each in names:
            async with AsyncAdmin(nameserver=each.address) as admin:
                known.append((await admin.cluster()).broker_addr_table["b"].broker_addrs)
    finally:
        await stop((*names, alone))

    assert known == [{0: alone.address}] * 2


async def test_a_broker_starts_though_its_name_server_is_away(tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        found = settings()
        away = f"127.0.0.1:{nobody.getsockname()[1]}"
        alone = await broker(found._replace(broker=replace(found.broker, nameserver=away)), tmp_path)
        await start((alone,))
        await stop((alone,))

    assert not (tmp_path / "abort").exists()


async def test_a_directory_in_use_is_refused_and_the_ports_are_free_again(tmp_path):
    first = await both(settings(), tmp_path)
    await start(first)
    found = settings()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        with pytest.raises(StoreLocked):
            await both(found._replace(nameserver=replace(found.nameserver, port=port)), tmp_path)
        with socket.socket() as again:
            again.bind(("127.0.0.1", port))
    finally:
        await stop(first)


@contextmanager
def port_in_use() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


async def test_after_a_start_that_failed_the_same_directory_can_be_started(tmp_path):
    with port_in_use() as port:
        found = settings()
        with pytest.raises(PortTaken):
            await both(found._replace(broker=replace(found.broker, port=port)), tmp_path)
    programs = await both(settings(), tmp_path)
    await start(programs)
    await stop(programs)


async def test_a_port_in_use_is_refused_before_the_directory_is_made(tmp_path):
    with port_in_use() as port:
        found = settings()
        with pytest.raises(PortTaken, match=str(port)):
            await broker(found._replace(broker=replace(found.broker, port=port)), Path(tmp_path / "new"))

    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("busy_poll_us", [0, 700])
async def test_the_loop_of_a_broker_polls_as_long_as_its_settings_say(tmp_path, busy_poll_us):
    found = settings()
    program = await broker(found._replace(broker=replace(found.broker, busy_poll_us=busy_poll_us)), tmp_path)
    await start((program,))
    try:
        assert program.server.busy_poll_us == busy_poll_us
        program.server.busy_polling.answered()
        for _ in range(100):
            program.server.busy_polling.answered()
        assert program.server.busy_polling.is_polling is (busy_poll_us > 0)
    finally:
        await stop((program,))


# ---------------------------------------------------------------- the second port


@pytest.mark.parametrize("choice", [VipChannel.IF_FREE, VipChannel.ALWAYS])
async def test_clients_with_the_vip_channel_send_two_ports_below(tmp_path, choice, caplog):
    second, port = pair_of_ports()
    chosen = settings()
    programs = await both(chosen._replace(broker=replace(chosen.broker, port=port, vip_channel=choice)), tmp_path)
    await start(programs)
    try:
        async with AsyncProducer(group="P", nameserver=programs[0].address, vip_channel=True) as producer:
            await producer.send(Message("orders", b"1"))
        assert [bound[1] for bound in programs[1].server.bound] == [port, second]
        assert programs[1].broker is not None
        assert programs[1].broker.store.end_offset > 0
    finally:
        await stop(programs)

    assert not [entry for entry in caplog.records if "second port" in entry.getMessage()]
    with socket.socket() as again:
        again.bind(("127.0.0.1", second))


# ---------------------------------------------------------------- killed


async def test_what_is_killed_before_its_start_gives_port_and_directory_back(tmp_path):
    for make in (name_server, broker):
        program = await make(settings(), tmp_path / make.__name__)
        await program.kill()
        again = await make(settings(), tmp_path / make.__name__)
        with socket.socket() as other:
            other.bind(("127.0.0.1", program.port))
        await again.kill()


async def test_a_broker_whose_tables_do_not_read_gives_the_directory_back(tmp_path):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{")
    for _ in range(2):
        with pytest.raises(StoreError, match="a saved table cannot be read"):
            await broker(settings(), tmp_path)
