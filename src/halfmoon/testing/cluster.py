"""A whole cluster in virtual time: name servers, brokers with simulated disks, and a client beside them. Runs, never judges.

cluster = Cluster(seed=1, brokers=1)
sent = cluster.send("orders", b"paid")
cluster.run(ms=20)
assert sent.result().queue_offset == 0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import Call, Now, Op
from halfmoon.errors import NetworkError, broker_error
from halfmoon.model import StoredMessage
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.ports import Core, Disk
from halfmoon.store.settings import ASYNC_FLUSH, SYNC_FLUSH, StoreSettings
from halfmoon.testing.disk import SimDisk, Stopped
from halfmoon.testing.driver import Calls, Driver, Handler, Loss, Task
from halfmoon.testing.host import CoreHost
from halfmoon.testing.network import DELAY_US, Network
from halfmoon.testing.options import BrokerOptions, StoreOptions
from halfmoon.testing.requests import messages_of, pull_request, send_request
from halfmoon.testing.timeline import START_MS, Timeline
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.headers.topic import UpdateAndCreateTopic

T = TypeVar("T")

WORK_US = (50, 2_000)
"""Duration of a sync on an ordinary disk, microseconds."""

SMALL: StoreOptions = {
    "commit_log_file_bytes": 128 * 1024, "queue_file_bytes": 20 * 200, "hash_slots": 50, "index_entries_max": 600
}  # fmt: skip
"""Store settings that make files roll over often."""

NAMESERVER_PORT, BROKER_PORT = 9876, 10911


class BrokerNode:
    """One broker of the cluster: its machine, its disk, and the core that runs there (None: it does not run)."""

    def __init__(self, name: str, host: CoreHost, disk: SimDisk) -> None:
        self.name, self.host, self.disk = name, host, disk
        self.leaving = False
        self.left_locked = False

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self.host.core is not None

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self.host.address

    @property
    def core(self) -> Any:
        """The running core."""
        return self.host.core


class Cluster:
    """Name servers, brokers and one client, in one world.

    ``flush`` is ``sync`` or ``async``. ``make_broker`` builds a broker's core and ``wrap_disk`` what it gets for a disk: both are
    for planting faults. ``store`` and ``broker`` override settings. ``work_us`` is what a sync takes, ``delay_us`` what a piece of
    bytes takes, at least and at most. ``losses`` are requests of clients that will be lost.
    """

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 1,
        nameservers: int = 1,
        flush: str = "async",
        store: StoreOptions | None = None,
        broker: BrokerOptions | None = None,
        make_broker: Callable[..., Core] = Broker,
        wrap_disk: Callable[[SimDisk], Disk] = lambda disk: disk,
        work_us: tuple[int, int] = WORK_US,
        start_ms: int = START_MS,
        delay_us: tuple[int, int] = DELAY_US,
    ) -> None:
        self.timeline = Timeline(seed, start_ms=start_ms)
        self.network = Network(self.timeline, delay_us=delay_us)
        self.losses: list[Loss] = []
        self.flush, self.work_us = flush, work_us
        self._make_broker, self._wrap_disk = make_broker, wrap_disk
        flush_type = SYNC_FLUSH if flush == "sync" else ASYNC_FLUSH
        stored: dict[str, Any] = {**SMALL, "flush_disk_type": flush_type, **(store or {})}
        self._store_settings = StoreSettings(**stored)
        self._broker_overrides = broker or {}
        self.nameservers = [
            CoreHost(self.timeline, self.network, f"10.0.1.{i + 1}", [NAMESERVER_PORT], f"nameserver-{i}")
            for i in range(nameservers)
        ]
        for node in self.nameservers:
            self.start_nameserver(node)
        self.brokers = [self._node(i) for i in range(brokers)]
        self.on_stopped: Callable[[BrokerNode], None] = lambda broker: None
        self.client_hosts: list[str] = []
        self.client = self.driver("client")
        for each in self.brokers:
            self.restart(each)

    # ---------------------------------------------------------------- machines

    def _node(self, index: int) -> BrokerNode:
        name = f"broker-{'abcdefgh'[index]}"
        host = CoreHost(self.timeline, self.network, f"10.0.0.{index + 1}", [BROKER_PORT], name, work_us=self.work_us)
        broker = BrokerNode(name, host, SimDisk(self.timeline.split(f"disk {name}")))
        host.on_stopped = lambda: self._stopped(broker)
        return broker

    def join(self) -> BrokerNode:
        """Start one more broker, with a disk of its own."""
        broker = self._node(len(self.brokers))
        self.brokers.append(broker)
        self.restart(broker)
        return broker

    def _stopped(self, broker: BrokerNode) -> None:
        """End a process that was stopped in the middle of a write."""
        self.crash(broker)
        self.on_stopped(broker)

    def start_nameserver(self, node: CoreHost) -> None:
        """Start a name server; it knows nothing until brokers register."""
        node.boot(lambda now: NameServer(NameServerSettings()))

    def restart(self, broker: BrokerNode) -> None:
        """Start a broker's process on what its disk holds. Raises what the core raises when it cannot."""
        settings = BrokerSettings(
            name=broker.name, address=broker.host.host, port=BROKER_PORT,
            nameserver=";".join(node.address for node in self.nameservers), **self._broker_overrides,
        )  # fmt: skip
        chance = self.timeline.split(f"{broker.name} {broker.host.lives}")
        broker.disk.now_ms = broker.host.now()
        broker.leaving = False
        disk = self._wrap_disk(broker.disk)
        core: Any = broker.host.boot(lambda now: self._make_broker(settings, self._store_settings, disk, chance, now))
        broker.host.on_disconnected = core.registration.disconnected  # as the program does

    def crash(self, broker: BrokerNode, *, power: bool = False) -> None:
        """Kill a broker's process (kill -9), or take its machine's power: then what was not synced may be lost or torn."""
        broker.leaving = False
        broker.host.kill(power=power)
        broker.disk.crash(power=power)

    def begin_stop(self, broker: BrokerNode, left: Callable[[], None] = lambda: None) -> None:
        """Ask a broker to stop cleanly; ``left`` is called when it has."""
        broker.leaving = True
        core = broker.core

        def ended() -> None:
            broker.leaving = False
            try:
                core.close(broker.host.instant())  # as the program does once its server has stopped
            except Stopped as stopped:
                self.timeline.note(broker.name, f"is stopped in its last write, to {stopped}")
            broker.left_locked = bool(broker.disk.locks)
            broker.disk.crash(power=False)
            left()

        broker.host.stop(ended)

    def stop(self, broker: BrokerNode, within_ms: int = 60_000) -> None:
        """Stop a broker cleanly and run until it has left. Raises TimeoutError."""
        self.begin_stop(broker)
        if not self.timeline.run_until(lambda: not broker.running, within_ms):
            raise TimeoutError(f"{broker.name} did not stop within {within_ms} ms")

    def fail_sync(self, broker: BrokerNode) -> None:
        """Let the next sync of a broker's disk fail."""
        self.timeline.note(broker.name, "its next sync fails")
        broker.disk.fail_syncs += 1

    # ---------------------------------------------------------------- the client

    def run(self, ms: int) -> None:
        """Let virtual time pass."""
        self.timeline.run(ms)

    def driver(
        self,
        name: str,
        serialization: int = JSON,
        *,
        handler: Handler | None = None,
        opened: Callable[[str], None] = lambda address: None,
        lost: Callable[[str], None] = lambda address: None,
        clock: Callable[[], int] | None = None,
    ) -> Driver:
        """Return a new client machine that runs operations.

        ``handler`` is given requests of brokers, ``opened`` and ``lost`` addresses. ``clock`` is that machine's, in ms; None: the
        world's.
        """
        host = client_host(len(self.client_hosts) + 1)
        self.client_hosts.append(host)
        calls = Calls(
            self.timeline, self.network, host, handler=handler, opened=opened, lost=lost, serialization=serialization,
            losses=self.losses,
        )  # fmt: skip
        return Driver(self.timeline, calls, clock or (lambda: self.timeline.now), name)

    def call(self, request: Any, body: bytes = b"", *, broker: int = 0, timeout_ms: int = 30_000) -> Task[Any]:
        """Send any request to a broker; the result is the reply's `Command`, whatever its code."""
        return self.client.start(_call(self.brokers[broker].address, request, body, timeout_ms), type(request).__name__)

    def ask(self, operation: Op[T]) -> T:
        """Run an operation at the client and return its result. Raises what it raises, or StillRunning after 30 s."""
        task = self.client.start(operation, "asking")
        self.timeline.run_until(lambda: task.done, 30_000)
        return task.result()

    def request(self, address: str, request: Any) -> Command:
        """Send a request, up to four times, and return the reply, whatever its code. Raises NetworkError."""
        return self.ask(_patiently(address, request))

    def create_topic(self, topic: str, *, queues: int = 4, broker: int = 0) -> Task[Any]:
        """Make a topic at a broker; the result is the reply's `Command`."""
        return self.call(topic_request(topic, queues), broker=broker)

    def send(
        self, topic: str, body: bytes, *, queue_id: int = 0, tag: str | None = None, keys: str = "", broker: int = 0
    ) -> Task[SendMessageReply]:
        """Send a message; the result is the reply's header, or raises `BrokerError` or `NetworkError`."""
        return self.client.start(self._send(self.brokers[broker].address, topic, body, queue_id, tag, keys), f"send {topic}")

    def _send(self, address: str, topic: str, body: bytes, queue_id: int, tag: str | None, keys: str) -> Op[SendMessageReply]:
        now = yield Now()
        unique = f"{self.timeline.split(f'{self.timeline.steps}').getrandbits(128):032X}"
        reply = yield Call(address, send_request(topic, queue_id, tag, keys, unique, now, long=False), body, 10_000)
        if reply.code:
            raise broker_error(reply.code, reply.remark, address)
        found: SendMessageReply = reply.header(SendMessageReply)
        return found

    def pull(
        self, topic: str, *, queue_id: int = 0, offset: int = 0, wait_ms: int = 0, count: int = 32, expression: str = "*",
        group: str = "test", broker: int = 0,
    ) -> Task[list[StoredMessage]]:  # fmt: skip
        """Pull once; the result is the messages (none when there is nothing), or raises `BrokerError` or `NetworkError`."""
        request = pull_request(group, topic, queue_id, offset, count=count, wait_ms=wait_ms, expression=expression)
        return self.client.start(_pull(self.brokers[broker].address, request, wait_ms + 10_000), f"pull {topic}")


def client_host(number: int) -> str:
    """Return the name of a client's machine: an IPv4 address of its own, for 60,000 machines."""
    return f"10.0.{2 + number // 256}.{number % 256}"


def _call(address: str, request: Any, body: bytes, timeout_ms: int) -> Op[Command]:
    reply: Command = yield Call(address, request, body, timeout_ms)
    return reply


def _patiently(address: str, request: Any) -> Op[Command]:
    for _ in range(3):
        try:
            return (yield from _call(address, request, b"", 5000))
        except NetworkError:
            continue
    return (yield from _call(address, request, b"", 5000))


def topic_request(topic: str, queues: int) -> UpdateAndCreateTopic:
    """Return the header of a request that makes a topic, or changes it."""
    return UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
        topic_filter_type="SINGLE_TAG", order=False,
    )  # fmt: skip


def _pull(address: str, request: Any, timeout_ms: int) -> Op[list[StoredMessage]]:
    reply = yield Call(address, request, b"", timeout_ms)
    if reply.code in (19, 20, 21):
        return []
    if reply.code:
        raise broker_error(reply.code, reply.remark, address)
    return [message for message, _ in messages_of(reply)]
