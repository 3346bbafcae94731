"""A mixed load for a broker that is killed under it, and the ledger of what it was told: sends, batches, transactions, delayed
messages, a consumer group, and decisions by hand. Users' clients with their default settings."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random

from halfmoon import Admin, HalfmoonError, LocalTransactionState, Message, Producer, PushConsumer, SendResult, TransactionProducer
from halfmoon.cli.shared.reading import FIRST, read, starts_and_ends
from halfmoon.model import ConsumeFrom, StoredMessage
from tests.waiting import until

PLAIN, BATCHES, PAID, DELAYED, BY_HAND = TOPICS = ("plain", "batches", "paid", "delayed", "by-hand")
BATCH = 5
DELAY_S = 1.0

Place = tuple[int, int]
"""Queue and offset."""


def place_of(result: SendResult) -> Place:
    """Where a message went."""
    return result.queue.queue_id, result.queue_offset


class Load:
    """The threads that make the load, and what each of them was told. ``seed`` draws what transactions end in."""

    def __init__(self, nameserver: str, seed: int) -> None:
        self.nameserver, self._random = nameserver, Random(seed)
        self.acknowledged: dict[str, Place] = {}
        """Bodies of messages that are visible at once, and where."""
        self.delayed: set[str] = set()
        self.outcomes: dict[str, LocalTransactionState] = {}
        """What local transactions ended in: each is asked for by checks."""
        self.by_hand: dict[str, bool] = {}
        """Decisions that an operator was told are made: whether to commit."""
        self.consumed: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._count = 0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def running(self) -> Iterator[Load]:
        """Make the load until the block ends. Half messages that are undecided then are left to checks."""
        with ExitStack() as clients:
            producer = clients.enter_context(Producer(group="P_mixed", nameserver=self.nameserver))
            orders = TransactionProducer(group="P_orders", nameserver=self.nameserver, check=self._check)
            clients.enter_context(orders)
            held = TransactionProducer(
                group="P_by_hand", nameserver=self.nameserver, check=lambda message: LocalTransactionState.UNKNOWN
            )
            clients.enter_context(held)
            admin = clients.enter_context(Admin(nameserver=self.nameserver))
            for number in range(2):
                clients.enter_context(self._consumer(f"member-{number}"))
            works: list[Callable[[], None]] = [
                lambda: self._send(producer), lambda: self._send_batch(producer), lambda: self._send_delayed(producer),
                lambda: self._order(orders), lambda: self._hold(held), lambda: self._decide(admin),
            ]  # fmt: skip
            self._threads = [threading.Thread(target=self._repeat, args=(work,), daemon=True) for work in works]
            for thread in self._threads:
                thread.start()
            try:
                yield self
            finally:
                self._ended.set()
                for thread in self._threads:
                    thread.join(60)
                assert not any(thread.is_alive() for thread in self._threads), "a client did not come back"
            until(lambda: self.missing() == [], "consumers, checks and delays to catch up")

    def more(self, count: int) -> None:
        """Wait until so many more messages are acknowledged, delayed ones and transactions included."""
        wanted = self._told() + count
        until(lambda: self._told() >= wanted, "acknowledgements")

    def missing(self) -> list[str]:
        """Return what must be consumed and is not yet."""
        committed = {body for body, outcome in self.outcomes.items() if outcome is LocalTransactionState.COMMIT}
        return sorted((self.acknowledged.keys() | self.delayed | committed) - self.consumed.keys())

    def _told(self) -> int:
        return len(self.acknowledged) + len(self.delayed) + len(self.outcomes) + len(self.by_hand)

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._ended.is_set():
            try:
                work()
            except HalfmoonError as exc:
                self.errors[type(exc).__name__] += 1
                time.sleep(0.01)

    def _body(self, topic: str) -> str:
        self._count += 1
        return f"{topic}-{threading.get_ident()}-{self._count}"

    # ------------------------------------------------------------ what users do

    def _send(self, producer: Producer) -> None:
        body = self._body(PLAIN)
        self.acknowledged[body] = place_of(producer.send(Message(PLAIN, body.encode(), keys=[body])))

    def _send_batch(self, producer: Producer) -> None:
        bodies = [self._body(BATCHES) for _ in range(BATCH)]
        queue, offset = place_of(producer.send_batch([Message(BATCHES, body.encode()) for body in bodies]))
        self.acknowledged |= {body: (queue, offset + at) for at, body in enumerate(bodies)}

    def _send_delayed(self, producer: Producer) -> None:
        body = self._body(DELAYED)
        producer.send(Message(DELAYED, body.encode(), delay=DELAY_S))
        self.delayed.add(body)
        time.sleep(0.01)

    def _order(self, producer: TransactionProducer) -> None:
        body = self._body(PAID)
        outcome = self._random.choice([LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK])

        def local(message: Message, arg: object) -> LocalTransactionState:
            self.outcomes[body] = outcome
            return outcome if len(self.outcomes) % 5 else LocalTransactionState.UNKNOWN  # then a check has to ask

        producer.send_in_transaction(Message(PAID, body.encode()), executor=local)

    def _check(self, message: StoredMessage) -> LocalTransactionState:
        return self.outcomes.get(message.body.decode(), LocalTransactionState.ROLLBACK)

    def _hold(self, producer: TransactionProducer) -> None:
        producer.prepare(Message(BY_HAND, self._body(BY_HAND).encode())).leave()
        time.sleep(0.02)

    def _decide(self, admin: Admin) -> None:
        for transaction in admin.pending_transactions(group="P_by_hand", count_max=20):
            body = admin.message_by_offset_id(transaction.offset_msg_id).body.decode()
            commit = self._random.random() < 0.5
            try:
                admin.decide_transaction(transaction.offset_msg_id, commit=commit, operator="a test")
            except HalfmoonError:  # it may be decided: the same again, so that the ledger knows
                admin.decide_transaction(transaction.offset_msg_id, commit=commit, operator="a test")
            self.by_hand[body] = commit
        time.sleep(0.02)

    def _consumer(self, name: str) -> PushConsumer:
        consumer = PushConsumer(
            group="C_mixed",
            nameserver=self.nameserver,
            instance_name=name,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            pull_pause_ms=100,
        )
        for topic in TOPICS:
            consumer.subscribe(topic)

        @consumer.on_message
        def handle(messages: list[StoredMessage]) -> None:
            self.consumed.update(message.body.decode() for message in messages)

        return consumer

    # ------------------------------------------------------------ what must hold

    def problems(self) -> list[str]:
        """Compare all that the broker holds with what was told; return what disagrees."""
        places: dict[str, list[Place]] = {}
        for topic in TOPICS:
            for message in read(self.nameserver, starts_and_ends(self.nameserver, topic, FIRST)):
                places.setdefault(message.body.decode(), []).append((message.queue_id, message.queue_offset))
        found = [
            f"{body} is at {places.get(body)}, was acknowledged at {at}"
            for body, at in self.acknowledged.items()
            if at not in places.get(body, [])
        ]
        found += [f"{body} was to be delivered later and is not there" for body in self.delayed if body not in places]
        for body, outcome in self.outcomes.items():
            count = len(places.get(body, []))
            if count != (outcome is LocalTransactionState.COMMIT):
                found.append(f"{body} ended in {outcome.name} and is there {count} times")
        for body, commit in self.by_hand.items():
            if len(places.get(body, [])) != commit:
                found.append(f"{body} was decided by hand, commit: {commit}, and is at {places.get(body)}")
        found += [f"{body} was never consumed" for body in self.missing()]
        return found
