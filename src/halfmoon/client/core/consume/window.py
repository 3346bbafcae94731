"""The messages of one queue that were pulled and are not finished yet, and from them the offset that may be committed. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from halfmoon.model import MessageQueue, StoredMessage


class Window:
    """Unfinished messages of one queue. Bounded by the flow control of whoever pulls.

    The commit offset is the smallest unfinished one, or the one behind the newest when all are finished: at least once, and one
    stuck message holds the commit back. Follows ProcessQueue (RocketMQ 4.9.8).
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.dropped = False
        self.size_bytes = 0
        self.last_pull_ms = 0
        self.pulled_at = 0
        """When that was by a clock that no setting moves."""
        self.last_consume_ms = 0
        self._messages: dict[int, StoredMessage] = {}
        self._started: dict[int, int] = {}
        self._kept_back: dict[int, StoredMessage] = {}
        self._order: deque[int] = deque()
        self._newest = -1

    def __len__(self) -> int:
        return len(self._messages)

    def __contains__(self, queue_offset: int) -> bool:
        return queue_offset in self._messages

    def add(self, messages: Iterable[StoredMessage]) -> list[StoredMessage]:
        """Take in pulled messages, in order; return those that were not held already."""
        added = []
        for message in messages:
            offset = message.queue_offset
            if offset in self._messages:
                continue
            self._messages[offset] = message
            self.size_bytes += message.held_bytes
            if offset > self._newest:
                self._order.append(offset)
                self._newest = offset
            else:
                self._order = deque(sorted({*self._order, offset}))  # a finished one may stand there still
            added.append(message)
        return added

    def remove(self, messages: Iterable[StoredMessage]) -> int:
        """Messages are finished; return the offset that may be committed now, -1 when nothing was ever held."""
        for message in messages:
            if self._messages.pop(message.queue_offset, None) is not None:
                self.size_bytes -= message.held_bytes
            self._started.pop(message.queue_offset, None)
            self._kept_back.pop(message.queue_offset, None)
        return self.commit_offset()

    def commit_offset(self) -> int:
        """Return the smallest unfinished offset, or the one behind the newest; -1 when nothing was ever held."""
        if self._newest < 0:
            return -1
        oldest = self.oldest()
        return self._newest + 1 if oldest is None else oldest.queue_offset

    def oldest(self) -> StoredMessage | None:
        """Return the unfinished message with the smallest offset."""
        while self._order:
            message = self._messages.get(self._order[0])
            if message is not None:
                return message
            self._order.popleft()
        return None

    def first(self, count: int) -> list[StoredMessage]:
        """Return at most ``count`` unfinished messages in order that are not kept back, those with the smallest offsets."""
        self.oldest()
        waiting = (offset for offset in self._order if offset in self._messages and offset not in self._kept_back)
        return list(islice((self._messages[offset] for offset in waiting), count))

    def keep_back(self, messages: Iterable[StoredMessage]) -> None:
        """Keep messages that the listener has consumed and not committed yet: unfinished, and not handed out meanwhile."""
        for message in messages:
            if message.queue_offset in self._messages:
                self._kept_back[message.queue_offset] = message

    def kept_back(self) -> list[StoredMessage]:
        """Return what is kept back, in the order in which it was consumed."""
        return list(self._kept_back.values())

    def take_up_again(self) -> None:
        """Have messages that are kept back handed out once more."""
        self._kept_back.clear()

    def span(self) -> int:
        """Return the distance between the newest and the oldest unfinished offset."""
        oldest = self.oldest()
        return 0 if oldest is None else self._newest - oldest.queue_offset

    def started(self, messages: Iterable[StoredMessage], now: int, steady: int) -> None:
        """Note that the listener was given messages: ``now`` is the date, ``steady`` the time by a clock that no setting moves."""
        self.last_consume_ms = now
        for message in messages:
            self._started[message.queue_offset] = steady

    def overdue(self, steady: int, timeout_ms: int) -> StoredMessage | None:
        """Return the oldest unfinished message when the listener has had it for longer than ``timeout_ms``."""
        oldest = next(iter(self.first(1)), None)
        if oldest is None:
            return None
        start = self._started.get(oldest.queue_offset)
        return oldest if start is not None and steady - start > timeout_ms else None

    def offsets(self) -> tuple[int, int]:
        """Return the smallest unfinished offset and the newest one; (0, 0) when empty."""
        oldest = self.oldest()
        return (0, 0) if oldest is None else (oldest.queue_offset, self._newest)

    def clear(self) -> None:
        """Forget all messages; what finishes later changes nothing."""
        self._messages.clear()
        self._started.clear()
        self._kept_back.clear()
        self._order.clear()
        self.size_bytes = 0
