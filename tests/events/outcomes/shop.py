"""A shop for the tables of outcomes: orders in a real database, events over a real broker, a real consumer; and who lost what.

`Shop.order` places an order and publishes its event in one transaction. `Shop.seen` and `Shop.orders` are what the two sides have
in the end; `Shop.state` is what the broker says of an event. Nothing here pretends: the network between publisher and broker loses
what a test tells it to lose (`tests.events.outcomes.network`).
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from sqlalchemy import Engine, String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from halfmoon import Admin
from halfmoon.errors import TopicNotFound
from halfmoon.events import Consumers, Event, Published, Publisher
from halfmoon.events.consuming.on import Handler
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.bodies.transactions import Transaction
from halfmoon.wire.command import Command
from tests.events.outcomes.network import END_TRANSACTION, Network
from tests.interop.pairs import Pair
from tests.waiting import until

CODE = "EC_PAID"
WAIT_S = 60
CHECKS = {"transactionTimeOut": 200, "transactionCheckInterval": 100}
"""Brokers of these tests ask soon, and often."""
PROPORTIONS = {
    "transactionTimeOut": 6_000 // 60,
    "transactionCheckInterval": 60_000 // 60,
    "transactionCheckMax": 15,
    "transaction_undecided_max_ms": 72 * 3_600_000 // 60,
}
"""Of the defaults: a broker for which a minute takes a second."""


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order, and the id of the event that tells of it."""

    __tablename__ = "orders"
    number: Mapped[str] = mapped_column(String(64), primary_key=True)
    event_id: Mapped[str] = mapped_column(String(64))


class NoStock(Exception):
    """Why an order is not placed: the transaction rolls back."""


def decision(command: Command) -> bool:
    """Whether an END_TRANSACTION is a second phase, and not the answer to a check."""
    return command.fields.get("fromTransactionCheck", "false") != "true"


class Shop:
    """One shop with a topic and groups of its own, on one broker or on a pair. Close it."""

    def __init__(
        self, cluster: LocalCluster | Pair, url: str, name: str, *, engine: Engine | None = None, **publisher: Any
    ) -> None:
        self.cluster = cluster
        self.topic, self.producers, self.group = f"TP_{name}", f"P_{name}", f"S_{name}"
        self.engine = engine or create_engine(url)
        self.Session = sessionmaker(self.engine)
        Base.metadata.create_all(self.engine)
        self.network = Network(cluster.nameserver, *(cluster.brokers if isinstance(cluster, Pair) else [cluster.broker]))
        self.network.__enter__()
        self.admin = Admin(nameserver=cluster.nameserver)
        self.admin.start()
        self.admin.create_topic(self.topic, queue_count=2)
        self._lock = threading.Lock()
        self._consumed: list[str] = []
        self.consumers: Consumers | None = None
        self.events = self.publisher(**publisher)

    def publisher(self, **settings: Any) -> Publisher:
        """Return a publisher of the shop's group, behind the network that loses things."""
        given = {"session": self.Session, "tries_max": 0, "timeout_ms": 1_500, "heartbeat_ms": 300, **settings}
        made = Publisher(self.producers, self.network.nameserver, topics=[self.topic], **given)
        made.create_tables()
        return made

    def consume(self) -> None:
        """Start the consumer; it is not behind the network."""
        mine = Handler(group=self.group, topic=self.topic, code=CODE, function=self._consume)
        self.consumers = Consumers(mine, nameserver=self.cluster.nameserver, rebalance_ms=200, route_refresh_ms=200)
        self.consumers.start()

    def _consume(self, event: Event, context: object) -> None:
        with self._lock:
            self._consumed.append(event.id)

    def close(self) -> None:
        """End everything."""
        self.network.heal()
        self.events.close(flush_ms=500)
        if self.consumers is not None:
            self.consumers.close()
        self.admin.close()
        self.network.close()
        self.engine.dispose()

    # ------------------------------------------------------------ what a service does

    def event(self, *, transactional: bool = True) -> Event:
        """Return a new event of the shop."""
        return self.events.event(self.topic, CODE, {"paid": 42}, transactional=transactional)

    def place(self, session: Session, event: Event) -> Published:
        """Write an order and publish its event, in the session's transaction."""
        session.add(Order(number=f"o-{event.id}", event_id=event.id))
        session.flush()
        return self.events.publish(event)

    def order(self, *, transactional: bool = True, stock: bool = True) -> Event:
        """Place an order in a transaction of its own; without stock it rolls back. Returns its event."""
        event = self.event(transactional=transactional)
        try:
            with self.Session.begin() as session:
                self.place(session, event)
                if not stock:
                    raise NoStock(event.id)
        except NoStock:
            assert not stock
        return event

    def lose_second_phase(self) -> None:
        """From now on no decision reaches the broker; answers to checks do, and decisions after a check, which are like them."""
        self.network.lose("request", END_TRANSACTION, decision)

    # ------------------------------------------------------------ what became of it

    def orders(self) -> set[str]:
        """The ids of the events whose orders are in the database."""
        with Session(self.engine) as session:
            return set(session.scalars(select(Order.event_id)))

    def seen(self) -> Counter[str]:
        """The ids of the events that the consumer was given, and how often."""
        if self.consumers is None:
            self.consume()
        with self._lock:
            return Counter(self._consumed)

    def visible(self) -> int:
        """How many messages of the topic consumers can ever get: what the broker holds for them."""
        try:
            return sum(one.max_offset for one in self.admin.topic_stats(self.topic).values())
        except TopicNotFound:  # a broker that was killed at once after the topic was made may have forgotten it
            return 0

    def pending(self, event: Event) -> list[Transaction]:
        """Undecided half messages at the broker under the event's id."""
        found = self.admin.pending_transactions(group=self.producers, count_max=1000)
        return [one for one in found if one.msg_id == event.id]

    def state(self, event: Event) -> str:
        """``PREPARED``, ``COMMITTED`` or ``ROLLED_BACK``, as the broker says of an event."""
        return self.state_of(event.id)

    def state_of(self, event_id: str) -> str:
        """As `state`, by id."""
        return str(self.admin.transaction(event_id).state)

    def wait_for(self, event: Event, state: str) -> None:
        """Wait until the broker says so of an event's half message."""
        until(lambda: self.state(event) == state, f"{event} {state}")

    def went(self, event: Event, commits: bool) -> None:
        """Wait until the broker has decided an event the way of its transaction, and check order, consumer and broker."""
        self.wait_for(event, "COMMITTED" if commits else "ROLLED_BACK")
        assert self.orders() == ({event.id} if commits else set())
        if commits:
            self.received(event)
        else:
            self.nothing_received()

    def received(self, *events: Event) -> None:
        """Check that the consumer gets just these events, each once, and that there is no other message for it."""
        expected = Counter(one.id for one in events)
        until(lambda: sum(self.seen().values()) >= len(events), f"{len(events)} events")
        assert self.seen() == expected
        assert self.visible() == len(events)

    def nothing_received(self) -> None:
        """Check that the broker holds no message that the consumer could get, and that it got none."""
        assert self.visible() == 0
        assert not self.seen()
