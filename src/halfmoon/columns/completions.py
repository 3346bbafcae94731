"""`Completions`: what producers decided in one turn. `HalfMessageCache`: the newest half messages, and which of them are decided.

Most half messages are decided within milliseconds of their send. The cache is bounded by number and bytes; everything in it is in
the log and in the transaction index too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from halfmoon.columns.messages import Group, Messages
from halfmoon.columns.record import ENTRY

Caller = tuple[int, int, int]
"""connection, opaque, serialization: who waits for a reply."""
CompletionFields = tuple[Caller | None, int, str, int, int, bool, str]
"""Caller that waits, connection, producer group, index and physical offset of the half message, is it committed, message id."""
Tally = tuple[list[Caller], list[tuple[str, int, int]]]
"""Callers that wait for a reply; the producer groups, each with its number of commits and of rollbacks."""
Decided = tuple[list[Group], list[list[int]], list[int], list[int], list[int]]
"""Messages of commits by queue, and the completions of each; completions that roll back; indexes of the half messages of all these,
in this order; completions of half messages that are not in the cache."""


class Completions:
    """The columns. A completion is addressed by its number, from 0 on in order of arrival."""

    __slots__ = ("checks", "rows")

    def __init__(self) -> None:
        self.rows: list[CompletionFields] = []
        self.checks: list[int] = []
        """Those that answer a check of a broker's."""

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self, caller: Caller | None, peer: int, group: str, index: int, place: int, committed: bool, key: str, *,
        check: bool = False,
    ) -> None:  # fmt: skip
        """Add one; ``check``: it answers a check of a broker's."""
        if check:
            self.checks.append(len(self.rows))
        self.rows.append((caller, peer, group, index, place, committed, key))

    def at(self, number: int) -> CompletionFields:
        """Return one."""
        return self.rows[number]

    def tally(self, committed: Iterable[int], rolled_back: Iterable[int]) -> Tally:
        """Return who of these waits for a reply, and the commits and rollbacks by producer group."""
        callers: list[Caller] = []
        counts: dict[str, list[int]] = {}
        for kind, numbers in enumerate((committed, rolled_back)):
            for number in numbers:
                caller, _, group, *_ = self.rows[number]
                if caller is not None:
                    callers.append(caller)
                counts.setdefault(group, [0, 0])[kind] += 1
        return callers, [(group, commits, rollbacks) for group, (commits, rollbacks) in counts.items()]


class HalfMessageCache:
    """Pending half messages by index, which is their queue offset. Whoever decides one removes it."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._halves: OrderedDict[int, tuple[int, int, str, int, str, Messages]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, index: int, entries: bytes, topic: str, queue_id: int, group: str, messages: Messages) -> None:
        """Add half messages of one queue, at indexes from ``index`` on, with their queue entries; evict the oldest over a bound."""
        for number, ((place, size, _), message) in enumerate(zip(ENTRY.iter_unpack(entries), messages.kept()), index):
            self._halves[number] = place, size, topic, queue_id, group, message
            self._bytes += size
        while self._halves and (self._bytes > self._bytes_max or len(self._halves) > self._count_max):
            self._bytes -= self._halves.popitem(last=False)[1][1]

    def get(self, index: int) -> Messages | None:
        """Return one by itself; None: it is not in the cache."""
        half = self._halves.get(index)
        return None if half is None else half[5]

    def drop(self, indexes: Iterable[int]) -> None:
        """Remove those that are in the cache."""
        for index in indexes:
            if (half := self._halves.pop(index, None)) is not None:
                self._bytes -= half[1]

    def decide(self, completions: Completions, chosen: Sequence[int] | None = None) -> Decided:
        """Return what completions, all or the chosen ones, decide of the half messages in the cache.

        Only the first completion of a half message decides. A second is returned with the others: its answer depends on what became
        of the first.
        """
        queues: dict[tuple[str, int], tuple[list[tuple[Messages, int]], list[int], list[int]]] = {}
        rolled_back: list[int] = []
        others: list[int] = []
        seen: dict[int, int] = {}
        for number in range(len(completions)) if chosen is None else chosen:
            _, _, group, index, place, committed, _ = completions.at(number)
            half = self._halves.get(index)
            if half is None or half[0] != place or half[4] != group or index in seen:
                others.append(number)
                continue
            seen[index] = number
            if not committed:
                rolled_back.append(number)
                continue
            queue = queues.get(half[2:4])
            if queue is None:
                queue = queues[half[2:4]] = [], [], []
            queue[0].append((half[5], place))
            queue[1].append(number)
            queue[2].append(index)
        groups = [(topic, queue_id, "", Messages.committed(halves)) for (topic, queue_id), (halves, _, _) in queues.items()]
        indexes = [index for _, _, of_queue in queues.values() for index in of_queue]
        indexes += [completions.at(number)[3] for number in rolled_back]
        return groups, [numbers for _, numbers, _ in queues.values()], rolled_back, indexes, others
