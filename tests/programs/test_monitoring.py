"""The pages of monitoring over sockets: what clients did is what they say, and who may not be ready says why."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from halfmoon import AsyncAdmin, AsyncProducer, HalfmoonError, Message
from halfmoon.programs.embedded import Programs, both, broker, start, stop
from halfmoon.programs.exposition import OPENMETRICS
from halfmoon.programs.monitoring import METRICS, Monitoring
from halfmoon.programs.ports import PortTaken
from halfmoon.settings.http import HttpSettings
from tests.programs.test_embedded import settings
from tests.runtime.server.test_http import ask, split


class Watched(NamedTuple):
    """Servers, and what watches them."""

    programs: Programs
    monitoring: Monitoring

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of a page."""
        lines = [f"GET {path} HTTP/1.1", "Host: x", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        return split(await ask(self.monitoring.server, "\r\n".join([*lines, "", ""]).encode()))

    async def values(self) -> Mapping[tuple[str, ...], float]:
        """Return the values of a fresh page by name and values of labels in the order of the text."""
        self.monitoring.shared_s = 0
        code, _, body = await self.get("/metrics")
        assert code == 200
        families = parse_plain(body.decode())
        return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


@asynccontextmanager
async def watched(path, **http: int) -> AsyncIterator[Watched]:
    watching = Monitoring(HttpSettings(http_port=0, **http))
    await watching.take()
    programs = await both(settings(), path)
    watching.watch([program.server for program in programs])
    await start(programs)
    await watching.server.start()
    try:
        yield Watched(programs, watching)
    finally:
        await watching.server.stop()
        await stop(programs)


async def test_what_clients_do_is_what_the_page_says(tmp_path):
    async with watched(tmp_path) as servers:
        [core] = [program.broker for program in servers.programs if program.broker]
        async with AsyncProducer(group="P", nameserver=servers.programs[0].address, retries_max=0) as producer:
            for number in range(7):
                await producer.send(Message("orders", b"%d" % number))
            core.store.maintenance.disk_full = "the disk is full"
            with pytest.raises(HalfmoonError, match="the disk is full"):
                await producer.send(Message("orders", b"no"))
            core.store.maintenance.disk_full = None
            found = await servers.values()

    assert found["halfmoon_messages_stored_total", "broker-a"] == 7
    assert found["rocketmq_producer_offset", "DefaultCluster", "broker-a", "orders"] == 7
    assert found["halfmoon_refused_requests_total", "broker-a", "14", "SERVICE_NOT_AVAILABLE"] == 1
    assert found["halfmoon_nameserver_brokers",] == 1
    assert found["halfmoon_nameservers_registered", "broker-a"] == 1
    assert found["halfmoon_connections", "broker-a"] == 1
    assert found["halfmoon_turn_seconds_count", "broker-a"] >= 7
    assert found["halfmoon_metrics_left_out", "series"] == 0
    assert found["process_resident_memory_bytes",] > 1e6


async def test_a_page_has_only_what_is_declared(tmp_path):
    async with watched(tmp_path) as servers:
        _, _, body = await servers.get("/metrics")
    names = {line.split()[2] for line in body.decode().splitlines() if line.startswith("# TYPE ")}
    assert {name for name in names if not name.startswith("process_")} <= {metric.name for metric in METRICS}
    assert len(names) > 100


async def test_a_scraper_that_asks_for_openmetrics_and_gzip_gets_them(tmp_path):
    async with watched(tmp_path) as servers:
        code, fields, body = await servers.get(
            "/metrics", Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5", Accept_Encoding="gzip"
        )
    assert (code, fields["Content-Type"], fields["Content-Encoding"]) == (200, OPENMETRICS, "gzip")
    families = {family.name: family for family in parse_openmetrics(gzip.decompress(body).decode())}
    assert families["halfmoon_messages_stored"].type == "counter"


async def test_those_who_ask_within_a_second_share_a_page(tmp_path):
    async with watched(tmp_path) as servers:
        answers = await asyncio.gather(*(servers.get("/metrics") for _ in range(8)))
        answers.append(await servers.get("/metrics"))
        assert {code for code, _, _ in answers} == {200}
        assert len({body for _, _, body in answers}) == 1
        servers.monitoring.shared_s = 0
        assert (await servers.get("/metrics"))[2] != answers[0][2]


async def test_a_round_that_fails_is_a_500_and_the_next_one_is_made_anew(tmp_path, monkeypatch):
    async with watched(tmp_path) as servers:
        with monkeypatch.context() as patched:
            patched.setattr(Monitoring, "_samples", lambda self: 1 / 0)
            assert (await servers.get("/metrics"))[0] == 500
        assert (await servers.get("/metrics"))[0] == 200


async def test_a_page_has_at_most_so_many_series_and_says_how_many_it_lacks(tmp_path):
    async with watched(tmp_path, http_series_max=1000) as servers:
        async with AsyncAdmin(nameserver=servers.programs[0].address) as admin:
            [core] = [program.broker for program in servers.programs if program.broker]
            for number in range(1100):
                core.topics.ensure(f"t{number}", 1, servers.programs[1].server.clock.now())
            assert admin
        found = await servers.values()
    topics = [name for name in found if name[0] == "rocketmq_producer_offset"]
    assert 0 < len(topics) < 1000
    assert found["halfmoon_metrics_left_out", "series"] > 0
    assert len([name for name in found if not name[0].startswith("process_")]) <= 1000 + 3


async def test_healthy_and_ready_servers_say_so_and_others_say_why(tmp_path):
    async with watched(tmp_path) as servers:
        for path in ("/healthz", "/readyz"):
            code, fields, body = await servers.get(path)
            assert (code, fields["Content-Type"], json.loads(body)) == (200, "application/json", {"ok": True, "reasons": []})
        [core] = [program.broker for program in servers.programs if program.broker]

        core.store.maintenance.disk_full = 'the disk is "full"'
        assert (await servers.get("/healthz"))[0] == 200
        code, _, body = await servers.get("/readyz")
        assert (code, json.loads(body)["reasons"]) == (503, ['broker broker-a: the disk is "full"'])
        assert (await servers.values())["halfmoon_store_writable", "broker-a"] == 0
        core.store.maintenance.disk_full = None

        [link] = core.registration.links
        link.is_up = False
        code, _, body = await servers.get("/readyz")
        assert code == 503
        assert json.loads(body)["reasons"] == [f"broker broker-a: not registered with a name server: {link.address}"]
        link.is_up = True

        core.store.health.failure = "a sync failed"
        for path in ("/healthz", "/readyz"):
            code, _, body = await servers.get(path)
            assert (code, json.loads(body)["reasons"]) == (503, ["broker broker-a: a sync failed"])
        core.store.health.failure = None


async def test_a_port_that_is_taken_is_said_in_words():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"cannot listen on 127.0.0.1:{port} \(http_port\): .*in use"):
            await Monitoring(HttpSettings(http_port=port)).take()


async def test_what_names_no_broker_is_of_all_brokers_of_the_process_and_no_series_comes_twice(tmp_path):
    watching, own = Monitoring(HttpSettings(http_port=0)), settings()
    await watching.take()
    programs = tuple([
        await broker(own._replace(broker=replace(own.broker, name=name)), tmp_path / name) for name in ("broker-a", "broker-b")
    ])  # fmt: skip
    watching.watch([program.server for program in programs])
    await start(programs)
    await watching.server.start()
    now = programs[0].server.clock.now()
    for count, program in enumerate(programs, 1):
        program.broker.topics.ensure("orders", 1, now)
        program.broker.store.append("orders", 0, [(b"x", b"", 0, 0, now, bytes(8), 0, 0, 0)] * count, now)
        program.broker.offsets.put("G", "orders", 0, 0)
    _, _, body = await Watched(programs, watching).get("/metrics")
    await watching.server.stop()
    await stop(programs)

    series = [line.rpartition(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    assert 'rocketmq_group_diff{group="G",topic="orders",countOfOnlineConsumers="0",msgModel="1"} 3\n' in body.decode()
    for name, count in (("broker-a", 1), ("broker-b", 2)):
        assert f'halfmoon_messages_stored_total{{broker="{name}"}}' in body.decode()
        assert f'rocketmq_message_accumulation{{cluster="DefaultCluster",broker="{name}",topic="orders",group="G"}} {count}\n' in (
            body.decode()
        )
