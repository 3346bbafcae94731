"""Our own client in a simulated world: the cores of producers and consumers, driven in virtual time instead of on asyncio.

What `halfmoon.client.aio` does around the cores is done here in the same way; nothing of the cores is replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import isgenerator
from typing import Any, Generic, TypeVar

from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets
from halfmoon.client.core.consume.orderly import push_core
from halfmoon.client.core.consume.pull_consumer import PullConsumerCore
from halfmoon.client.core.consume.push_consumer import PushConsumerCore
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.transaction import Transactions
from halfmoon.client.core.produce.transaction_check import CheckFunction, TransactionListener
from halfmoon.client.settings import ClientSettings, ProducerSettings, PullSettings, PushSettings, TransactionSettings, settings_of
from halfmoon.effects import Op
from halfmoon.model import Message, MessageQueue, SendResult
from halfmoon.testing.cluster import Cluster, client_host
from halfmoon.testing.driver import Answer, Driver, Task
from halfmoon.wire.command import Command
from halfmoon.wire.ids import UniqueIds, pack_ip
from halfmoon.wire.table import request_text


class SimClient:
    """Client in virtual time: a machine of their own, an instance, and what runs beside the work."""

    def __init__(self, cluster: Cluster, settings: ClientSettings, name: str, *, clock: Callable[[], int] | None = None) -> None:
        self.name = name
        self.instance = Instance(settings, f"{name}@1", cluster.timeline.split(f"client {name}"))
        self.ids = UniqueIds(pack_ip(client_host(len(cluster.client_hosts) + 1)), 1, cluster.timeline.split(f"ids {name}"))
        self.driver: Driver = cluster.driver(
            name, handler=self._asked, opened=self.instance.connected, lost=self.instance.disconnected, clock=clock
        )
        self.host = cluster.client_hosts[-1]

    def kill(self) -> None:
        """End the client's process: nothing of it goes on, nobody is told."""
        self.driver.kill()

    def _asked(self, address: str, command: Command, answer: Answer) -> None:
        reply = self.instance.asked(address, command)
        if isgenerator(reply):
            task: Task[Any] = self.driver.start(reply, f"{self.name} answers {request_text(command.code)}")
            task.then(lambda: self._answer(task.result() if task.error is None else None, answer))
        else:
            self._answer(reply, answer)

    def _answer(self, reply: Command | None, answer: Answer) -> None:
        if reply is not None:
            answer(reply)

    def start_all(self, operations: Iterable[Op[Any]]) -> None:
        """Start what runs beside the work."""
        for operation in operations:
            self.driver.start(operation, self.name)


class SimProducer(SimClient):
    """A producer in virtual time. ``values`` are `ProducerSettings`."""

    def __init__(self, cluster: Cluster, name: str = "producer", **values: Any) -> None:
        settings = settings_of(ProducerSettings, {"group": "P_test", "nameserver": nameservers(cluster), **values})
        super().__init__(cluster, settings, name)
        self.sender = Sender(settings, self.instance.routes, self.ids)
        self.instance.producer_group = self.sender.group
        self.sender.running = True
        self.start_all(self.instance.background_work())

    def send(self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None) -> Task[SendResult]:
        """Send; the task's result is where the message went, or raises what `Producer.send` raises."""
        return self.driver.start(self.sender.send(message, queue=queue, timeout_ms=timeout_ms), f"{self.name} sends")


class SimTransactionProducer(SimClient):
    """A transactional producer in virtual time; ``transactions`` has its operations. ``values`` are `TransactionSettings`."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        listener: TransactionListener | None,
        *,
        check: CheckFunction | None = None,
        clock: Callable[[], int] | None = None,
        **values: Any,
    ) -> None:
        settings = settings_of(TransactionSettings, {"group": "P_test", "nameserver": nameservers(cluster), **values})
        super().__init__(cluster, settings, name, clock=clock)
        self._network = cluster.network
        self.sender = Sender(settings, self.instance.routes, self.ids)
        self.instance.producer_group = self.sender.group
        self.transactions = Transactions(settings, self.sender, self.instance, listener, check)
        self.sender.running = True
        self.start_all((*self.instance.background_work(), self.transactions.meet_brokers()))

    def kill(self) -> None:
        """End the producer's process; its system closes the connections."""
        super().kill()
        self._network.kill(self.host)


C = TypeVar("C", PushConsumerCore, PullConsumerCore)


class SimConsumer(SimClient, Generic[C]):
    """A consumer in virtual time that begins at once; ``core`` has its operations."""

    def begin(self, core: C, subscriptions: Mapping[str, str], now: int) -> None:
        """Subscribe a core, and start it with what runs beside it."""
        self.core: C = core
        for topic, expression in subscriptions.items():
            core.subscribe(topic, expression, version=now)
        self.started = self.driver.start(core.start(), f"{self.name} starts")
        self.started.then(lambda: self.start_all(core.background_work() if self.started.error is None else ()))

    def stop(self) -> Task[None]:
        """Stop cleanly: finish what is in hand, keep the offsets, leave the group."""
        return self.driver.start(self.core.stop(), f"{self.name} stops")


MakeOffsets = Callable[..., RemoteOffsets | LocalOffsets]


class SimPushConsumer(SimConsumer[PushConsumerCore]):
    """A push consumer in virtual time, of one topic or of several with an expression each.

    ``listener(messages)`` is called as the messages come. ``values`` are `PushSettings`.
    """

    def __init__(
        self, cluster: Cluster, topic: str | Mapping[str, str], listener: Callable[..., Any], *, expression: str = "*",
        name: str = "consumer",
        make_offsets: MakeOffsets = RemoteOffsets, clock: Callable[[], int] | None = None, **values: Any,
    ) -> None:  # fmt: skip
        settings = settings_of(PushSettings, {"group": "C_test", "nameserver": nameservers(cluster), **values})
        super().__init__(cluster, settings, name, clock=clock)
        offsets = make_offsets(self.instance.wire(settings.group), self.instance.routes, settings.request_timeout_ms)
        core = push_core(settings, self.instance, offsets, self.ids)
        core.on_message(listener)
        self.begin(core, {topic: expression} if isinstance(topic, str) else topic, cluster.timeline.now)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are this consumer's now, sorted."""
        return sorted(self.core.user_queue(queue) for queue in self.core.held)


class SimPullConsumer(SimConsumer[PullConsumerCore]):
    """A pull consumer in virtual time. ``values`` are `PullSettings`."""

    def __init__(
        self, cluster: Cluster, topic: str, *, expression: str = "*", name: str = "consumer",
        make_core: Callable[..., PullConsumerCore] = PullConsumerCore, make_offsets: MakeOffsets = RemoteOffsets, **values: Any,
    ) -> None:  # fmt: skip
        settings = settings_of(PullSettings, {"group": "C_test", "nameserver": nameservers(cluster), **values})
        super().__init__(cluster, settings, name)
        offsets = make_offsets(self.instance.wire(settings.group), self.instance.routes, settings.request_timeout_ms)
        self.begin(make_core(settings, self.instance, offsets), {topic: expression}, cluster.timeline.now)


def nameservers(cluster: Cluster) -> str:
    """Return the addresses of a cluster's name servers as clients are given them."""
    return ";".join(node.address for node in cluster.nameservers)
