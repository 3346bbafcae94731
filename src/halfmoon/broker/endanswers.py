"""Answers to the second phase: told at once, or with sync flush once what they tell of is durable. Decides nothing."""

from __future__ import annotations

from collections import deque

from halfmoon.broker.acks import Sender, reply_to
from halfmoon.broker.request import Reply
from halfmoon.errors import BrokerError, SystemBusy
from halfmoon.store.store import Store
from halfmoon.wire.command import encode
from halfmoon.wire.peer import Peers

ANSWERS_MAX = 100_000
"""Successes that wait for the log to be durable: repeats cost no bytes of the log, and so nothing else bounds them."""


class Answers:
    """The answers that wait, and the way out for all. A sender of None wants none."""

    def __init__(self, store: Store, peers: Peers) -> None:
        self._store, self._peers = store, peers
        self._answers: deque[tuple[int, Sender]] = deque()
        """Successes to be told once the log is durable up to an offset."""

    def succeed(self, sender: Sender | None) -> None:
        """Tell success: at once, or with sync flush once everything until now is durable."""
        if sender is None:
            return
        if self._store.sync_flush and self._store.durable_offset < self._store.end_offset:
            if len(self._answers) >= ANSWERS_MAX:
                self.refuse(sender, SystemBusy("[OVERLOAD]system busy, start flow control for a while: the disk does not keep up"))
                return
            self._answers.append((self._store.end_offset, sender))
        else:
            self._answer(sender, Reply())

    def waiting(self) -> int:
        """How many wait for the log to be durable."""
        return len(self._answers)

    def durable(self, offset: int) -> None:
        """The log is durable up to an offset: tell those who waited for it."""
        while self._answers and self._answers[0][0] <= offset:
            self._answer(self._answers.popleft()[1], Reply())

    def failed(self, reason: str) -> None:
        """The log will not become durable: tell those who waited."""
        while self._answers:
            self.refuse(self._answers.popleft()[1], BrokerError(reason))

    def refuse(self, sender: Sender | None, refusal: BrokerError) -> None:
        """Tell a refusal."""
        if sender is not None:
            self._answer(sender, Reply(refusal.code, refusal.remark))

    def _answer(self, sender: Sender, reply: Reply) -> None:
        peer, opaque, serialization = sender
        if not peer.closing:
            self._peers.answer(peer, encode(reply_to(opaque, serialization, reply)))
