"""Load on a pair that is killed again and again, and the account of what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import halfmoon
from halfmoon.errors import HalfmoonError
from halfmoon.model import LocalTransactionState, SendStatus
from tests.waiting import until

ROUTES_MS = 500
"""Interval at which the clients look for a new master."""


@dataclass
class Ledger:
    """What was acknowledged: by key, where it is, or None where that is decided later."""

    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    delayed: set[str] = field(default_factory=set)
    failures: Counter[str] = field(default_factory=Counter)
    gaps_s: list[float] = field(default_factory=list)
    """Longest times between two acknowledged sends, one for each that was over a second."""


class Load:
    """Sends, transactions and delays to topics ``sent``, ``decided`` and ``later``, until `stop`.

    ``timed``: half of the delays are points in time, which Apache's brokers before 5.0 do not know.
    """

    def __init__(self, nameserver: str, *, timed: bool = True) -> None:
        self._timed = timed
        self.ledger, self._nameserver, self._stopping = Ledger(), nameserver, threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._decide, self._delay)]

    def start(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> Ledger:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        return self.ledger

    def goes_on(self) -> None:
        """Wait until 200 more messages are acknowledged."""
        known = len(self.ledger.sent)
        until(lambda: len(self.ledger.sent) > known + 200, "the load to go on")

    def _send(self) -> None:
        settings = {"nameserver": self._nameserver, "route_refresh_ms": ROUTES_MS, "retries_max": 0, "send_timeout_ms": 1000}
        number, last = 0, time.monotonic()
        with halfmoon.Producer(group="P_sent", **settings) as producer:  # type: ignore[arg-type]
            while not self._stopping.is_set():
                number += 1
                key = f"s{number}"
                try:
                    result = producer.send(halfmoon.Message("sent", key.encode(), keys=[key]))
                except HalfmoonError as exc:
                    self.ledger.failures[type(exc).__name__] += 1
                    time.sleep(0.02)
                    continue
                if result.status is not SendStatus.SEND_OK:
                    self.ledger.failures[result.status.name] += 1
                    continue
                now = time.monotonic()
                if now - last > 1:
                    self.ledger.gaps_s.append(now - last)
                last = now
                self.ledger.sent[key] = result.queue.queue_id, result.queue_offset

    def _decide(self) -> None:
        settings = {"nameserver": self._nameserver, "route_refresh_ms": ROUTES_MS, "send_timeout_ms": 1000, "retries_max": 0}
        outcomes = (LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK)
        decided: dict[str, LocalTransactionState] = {}

        def check(message: halfmoon.StoredMessage) -> LocalTransactionState:
            return decided.get(bytes(message.body).decode(), LocalTransactionState.ROLLBACK)

        number = 0
        with halfmoon.TransactionProducer(group="P_decided", check=check, **settings) as producer:  # type: ignore[arg-type]
            while not self._stopping.is_set():
                number += 1
                key, outcome = f"t{number}", outcomes[number % 2]

                def execute(
                    message: halfmoon.Message, arg: object, key: str = key, outcome: LocalTransactionState = outcome
                ) -> LocalTransactionState:
                    decided[key] = outcome
                    return LocalTransactionState.UNKNOWN if len(decided) % 5 == 0 else outcome

                try:
                    producer.send_in_transaction(halfmoon.Message("decided", key.encode(), keys=[key]), executor=execute)
                except HalfmoonError as exc:
                    self.ledger.failures[type(exc).__name__] += 1
                    time.sleep(0.02)
                if key in decided:  # the half message was acknowledged, so the check decides at last
                    (self.ledger.committed if outcome is LocalTransactionState.COMMIT else self.ledger.rolled_back).add(key)
            end = time.monotonic() + 20  # for checks of those in doubt
            while time.monotonic() < end:
                time.sleep(0.2)

    def _delay(self) -> None:
        settings = {"nameserver": self._nameserver, "route_refresh_ms": ROUTES_MS, "retries_max": 0, "send_timeout_ms": 1000}
        number = 0
        with halfmoon.Producer(group="P_later", **settings) as producer:  # type: ignore[arg-type]
            while not self._stopping.is_set():
                number += 1
                key = f"d{number}"
                message = halfmoon.Message("later", key.encode(), keys=[key])
                if number % 2 or not self._timed:
                    message.delay_level = 1 + number % 3 // 2
                else:
                    message.delay = 1 + number % 4
                try:
                    if producer.send(message).status is SendStatus.SEND_OK:
                        self.ledger.delayed.add(key)
                except HalfmoonError as exc:
                    self.ledger.failures[type(exc).__name__] += 1
                time.sleep(0.01)


def check(nameserver: str, ledger: Ledger) -> None:
    """Compare what was acknowledged with what is there."""
    stored = everything(nameserver, "sent")
    lost = {key: place for key, place in ledger.sent.items() if stored.get(place) != key}
    assert not lost, f"{len(lost)} of {len(ledger.sent)} acknowledged messages are not where they were acknowledged"
    assert max(Counter(stored.values()).values()) == 1
    decided = Counter(everything(nameserver, "decided").values())
    assert not ledger.committed - set(decided)
    assert not ledger.rolled_back & set(decided)
    assert max(decided.values()) == 1
    until(lambda: not ledger.delayed - set(everything(nameserver, "later").values()), "delayed messages")
    assert max(Counter(everything(nameserver, "later").values()).values()) == 1


def everything(nameserver: str, topic: str) -> dict[tuple[int, int], str]:
    """Return the key at each queue and offset of a topic; no queue may have a gap."""
    found: dict[tuple[int, int], str] = {}
    with halfmoon.Admin(nameserver=nameserver) as admin:
        ends = {queue: (each.min_offset, each.max_offset) for queue, each in admin.topic_stats(topic).items()}
    total = sum(high - low for low, high in ends.values())
    with halfmoon.PullConsumer(group=f"C_{topic}", nameserver=nameserver) as consumer:
        consumer.assign(list(ends))
        for queue in ends:
            consumer.seek_to_begin(queue)
        end = time.monotonic() + 60
        while len(found) < total and time.monotonic() < end:
            for message in consumer.poll(timeout_ms=500):
                found[message.queue_id, message.queue_offset] = bytes(message.body).decode()
    assert len(found) == total, f"{topic}: {len(found)} of {total} can be read"
    return found
