"""Answers of the HTTP port: the metrics of the servers of this process, whether they live, and whether they are ready.

Runs on their event loop and so reads them without locks. A page of metrics is gathered in slices, between which others go on, at
most once a second, and shared by all who ask meanwhile.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from time import perf_counter
from typing import Protocol

from halfmoon import __version__
from halfmoon.broker.broker import Broker
from halfmoon.broker.copies.serving import Serving
from halfmoon.broker.metrics.declared import DIFFERENCE
from halfmoon.broker.metrics.declared import METRICS as OF_BROKERS
from halfmoon.broker.metrics.figures import Figures
from halfmoon.errors import ResponseCode
from halfmoon.hot import NATIVE
from halfmoon.metrics import Metric, Samples, TurnTimes
from halfmoon.nameserver import routes
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.programs.exposition import OPENMETRICS, PLAIN, MetricsPage, of_process
from halfmoon.programs.ports import PortTaken
from halfmoon.runtime.server.http import HttpAnswer, HttpServer
from halfmoon.runtime.server.server import Server
from halfmoon.settings.http import HttpSettings

SLICE_S = 0.001
"""About how long gathering holds the event loop before others go on."""

SHARED_S = 1.0
"""How long a page is given to whoever asks."""

BUILD = Metric("halfmoon_build_info", "gauge", ("version", "native", "python"), "1; its labels say what runs here.")
UPTIME = Metric("halfmoon_uptime_seconds", "gauge", (), "How long the servers of this process have been running.")
CONNECTIONS = Metric("halfmoon_connections", "gauge", ("server",), "Open connections.")
CONNECTIONS_MAX = Metric("halfmoon_connections_max", "gauge", ("server",), "How many may be open.")
TURNS = Metric("halfmoon_turn_seconds", "histogram", ("server",), "How long turns of the event loop took, replies included.")
REFUSED = Metric(
    "halfmoon_refused_requests_total", "counter", ("server", "code", "name"), "Requests that were refused, by response code."
)
GATHERED = Metric("halfmoon_metrics_gather_seconds", "gauge", (), "How long this page took, with what went on between.")
LEFT_OUT = Metric(
    "halfmoon_metrics_left_out", "gauge", ("what",),
    "What this page lacks: `series` beyond http_series_max, and `ages` of messages, of which a round reads a bounded number.",
)  # fmt: skip

METRICS = [
    BUILD, UPTIME, CONNECTIONS, CONNECTIONS_MAX, TURNS, REFUSED, GATHERED, LEFT_OUT, *OF_BROKERS, *routes.METRICS
]  # fmt: skip
"""All that a page may have, besides ``process_…``."""


class Member(Protocol):
    """A member of a pair: `halfmoon.programs.pairs.member.Member`."""

    name: str
    failure: str | None
    """Why it takes part no more until its process is started again; None: it does."""

    def unready(self) -> str | None:
        """Return why it neither follows nor serves now; None: it does."""


class Monitoring:
    """Answers for servers, once `watch` has told it which. ``server`` has the port: started after them, stopped before."""

    shared_s = SHARED_S

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        names = frozenset(settings.http_names.split(","))
        self.server = HttpServer({"/metrics": self.metrics, "/healthz": self.healthy, "/readyz": self.ready}, names)
        self.members: list[Member] = []
        """Members of pairs in this process, whose servers change with their roles."""
        self._servers: list[Server] = []
        self._figures: list[Figures] = []
        self._began_s = 0.0
        self._page: tuple[float, MetricsPage] | None = None
        self._gathering: asyncio.Task[MetricsPage] | None = None

    async def take(self) -> None:
        """Bind the port. Raises PortTaken."""
        host, port = self._settings.http_host, self._settings.http_port or 0
        try:
            await self.server.take(host, port)
        except OSError as exc:
            raise PortTaken(f"cannot listen on {host}:{port} (http_port): {exc.strerror or exc}") from None

    def watch(self, servers: Sequence[Server]) -> None:
        """Answer for these servers, whose cores are there, and count how long their turns take."""
        self._servers, self._began_s = list(servers), asyncio.get_running_loop().time()
        self._figures = [Figures(server.core) for server in servers if isinstance(server.core, Broker)]
        self.server.certificates = servers[0].certificates
        for server in servers:
            server.turn_times = TurnTimes()

    # ------------------------------------------------------------ pages

    async def metrics(self, headers: Mapping[str, str]) -> HttpAnswer:
        """Answer the metrics, in OpenMetrics and compressed where that is asked for."""
        page = await self._fresh_page()
        content_type = OPENMETRICS if "application/openmetrics-text" in headers.get("accept", "") else PLAIN
        body: list[bytes] = []
        held = perf_counter()
        for piece in page.pieces(content_type):
            body.append(piece)
            if perf_counter() - held > SLICE_S:
                await asyncio.sleep(0)
                held = perf_counter()
        if "gzip" not in headers.get("accept-encoding", ""):
            return HttpAnswer(HTTPStatus.OK, content_type, body, {"Vary": "Accept, Accept-Encoding"})
        packed = await asyncio.get_running_loop().run_in_executor(None, _packed, body)
        return HttpAnswer(HTTPStatus.OK, content_type, [packed], {"Vary": "Accept, Accept-Encoding", "Content-Encoding": "gzip"})

    async def healthy(self, _headers: Mapping[str, str]) -> HttpAnswer:
        """Answer whether the servers live: that there is an answer says that the loop turns."""
        failures = [(f"broker {broker.settings.name}", broker.store.failure) for broker in self._brokers]
        failures += [(f"slave of {slave.settings.name}", slave.store.failure) for slave in self._slaves]
        failures += [(f"member of the pair {each.name}", each.failure) for each in self.members]
        return _verdict([f"{name}: {failure}" for name, failure in failures if failure])

    async def ready(self, _headers: Mapping[str, str]) -> HttpAnswer:
        """Answer whether the servers take what clients send, and whether a slave copies."""
        reasons = [f"broker {broker.settings.name}: {why}" for broker in self._brokers for why in _unready(broker)]
        slaves = () if self.members else self._slaves
        reasons += [f"slave of {slave.settings.name}: {why}" for slave in slaves if (why := slave.standby.unready()) is not None]
        reasons += [f"member of the pair {each.name}: {why}" for each in self.members if (why := each.unready()) is not None]
        return _verdict(reasons)

    @property
    def _brokers(self) -> list[Broker]:
        return [server.core for server in self._servers if isinstance(server.core, Broker)]

    @property
    def _slaves(self) -> list[Serving]:
        return [server.core for server in self._servers if isinstance(server.core, Serving)]

    # ------------------------------------------------------------ gathering

    async def _fresh_page(self) -> MetricsPage:
        loop = asyncio.get_running_loop()
        if self._page is not None and loop.time() - self._page[0] < self.shared_s:
            return self._page[1]
        if self._gathering is None:
            self._gathering = loop.create_task(self._gather())
            self._gathering.add_done_callback(self._gathered)
        return await asyncio.shield(self._gathering)  # who is cut meanwhile takes it from nobody

    def _gathered(self, task: asyncio.Task[MetricsPage]) -> None:
        self._gathering = None
        if not task.cancelled() and task.exception() is None:
            self._page = asyncio.get_running_loop().time(), task.result()

    async def _gather(self) -> MetricsPage:
        began = perf_counter()
        page = MetricsPage(self._settings.http_series_max, await asyncio.get_running_loop().run_in_executor(None, of_process))
        held = perf_counter()
        for sample in self._samples():
            if sample is not None:
                page.add(sample)
            if perf_counter() - held > SLICE_S:
                await asyncio.sleep(0)
                held = perf_counter()
        page.close([
            (GATHERED, (), perf_counter() - began),
            (LEFT_OUT, ("series",), page.left_out),
            (LEFT_OUT, ("ages",), sum(figures.oldest.left_out for figures in self._figures)),
        ])  # fmt: skip
        return page

    def _samples(self) -> Samples:
        yield BUILD, (__version__, NATIVE or "", platform.python_version()), 1
        yield UPTIME, (), asyncio.get_running_loop().time() - self._began_s
        for server in self._servers:
            yield from _of_server(server)
            if isinstance(server.core, NameServer):
                yield from routes.samples(server.core.routes)
            if isinstance(server.core, Serving):
                yield from server.core.services.samples((server.core.settings.name,), server.clock.instant())
        differences: dict[tuple[str, tuple[str, ...]], tuple[Metric, float]] = {}
        for figures, server in zip(self._figures, (server for server in self._servers if isinstance(server.core, Broker))):
            for sample in figures.samples(server.clock.instant()):
                if sample is None or sample[0].labels is not DIFFERENCE.labels:
                    yield sample
                else:  # of no broker: they are of all of this process together
                    metric, labels, behind = sample
                    assert not isinstance(behind, TurnTimes)
                    key = metric.name, labels
                    differences[key] = metric, behind + (differences[key][1] if key in differences else 0)
        for (_, labels), (metric, behind) in differences.items():
            yield metric, labels, behind


def _of_server(server: Server) -> Samples:
    core = server.core
    name = core.settings.name if isinstance(core, Broker | Serving) else "nameserver"
    yield CONNECTIONS, (name,), server.connection_count
    yield CONNECTIONS_MAX, (name,), server.connections_max
    if server.turn_times is not None:
        yield TURNS, (name,), server.turn_times
    if isinstance(core, Broker | NameServer | Serving):
        for code, count in sorted(core.peers.refusals.items()):
            yield REFUSED, (name, str(code), _name_of(code)), count


def _name_of(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return "UNKNOWN"


def _unready(broker: Broker) -> Iterator[str]:
    """Yield why a broker is not ready to take messages."""
    if (refusal := broker.store.refusal) is not None:
        yield refusal
    registration = broker.registration
    if registration.name_servers and not registration.registered:
        yield f"not registered with a name server: {', '.join(registration.name_servers)}"


def _verdict(reasons: list[str]) -> HttpAnswer:
    body = json.dumps({"ok": not reasons, "reasons": reasons}).encode() + b"\n"
    return HttpAnswer(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, "application/json", [body])


def _packed(body: list[bytes]) -> bytes:
    return gzip.compress(b"".join(body), compresslevel=1, mtime=0)
