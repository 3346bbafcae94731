"""`Endings`: what producers decided in one turn; `Recent`: half messages that came lately, and what endings make of them.

Most half messages are decided within milliseconds of their send. The recent ones are bounded by number and bytes; everything here
is in the log and in the transaction index too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from halfmoon.columns.messages import Group, Messages
from halfmoon.columns.record import ENTRY

Asked = tuple[int, int, int]
"""connection, opaque, serialisation: who waits for an answer."""
EndingFields = tuple[Asked | None, int, str, int, int, bool, str]
"""Who waits, connection, producer group, index and physical offset of the half message, whether it is committed, message id."""
Told = tuple[list[Asked], list[tuple[str, int, int]]]
"""Who waits for an answer; producer groups, and how many commits and rollbacks there are of each."""
Found = tuple[list[Group], list[list[int]], list[int], list[int], list[int]]
"""What commits store, by queue, and the endings of each; endings that roll back; indexes of the half messages of all these, in this
order; endings about others."""


class Endings:
    """The columns; an ending is meant by its number, from 0 on in the order they came."""

    __slots__ = ("checks", "rows")

    def __init__(self) -> None:
        self.rows: list[EndingFields] = []
        self.checks: list[int] = []
        """Those that a broker had asked for."""

    def __len__(self) -> int:
        return len(self.rows)

    def add(
        self, asked: Asked | None, peer: int, group: str, index: int, place: int, committed: bool, key: str, *, check: bool = False
    ) -> None:
        """Add one; ``check``: a broker had asked for it."""
        if check:
            self.checks.append(len(self.rows))
        self.rows.append((asked, peer, group, index, place, committed, key))

    def at(self, number: int) -> EndingFields:
        """Return one."""
        return self.rows[number]

    def told(self, committed: Iterable[int], rolled_back: Iterable[int]) -> Told:
        """Return who of these waits for an answer, and how many commits and rollbacks there are of which producer group."""
        asked: list[Asked] = []
        counts: dict[str, list[int]] = {}
        for kind, numbers in enumerate((committed, rolled_back)):
            for number in numbers:
                one, _, group, *_ = self.rows[number]
                if one is not None:
                    asked.append(one)
                counts.setdefault(group, [0, 0])[kind] += 1
        return asked, [(group, commits, rollbacks) for group, (commits, rollbacks) in counts.items()]


class Recent:
    """Pending half messages by index, which is their queue offset. Whoever decides one drops it."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._halves: OrderedDict[int, tuple[int, int, str, int, str, Messages]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, index: int, entries: bytes, topic: str, queue_id: int, group: str, messages: Messages) -> None:
        """Keep half messages for one queue, at indexes from ``index`` on, with their queue entries; the first go when there are
        too many.
        """
        for number, ((place, size, _), message) in enumerate(zip(ENTRY.iter_unpack(entries), messages.kept()), index):
            self._halves[number] = place, size, topic, queue_id, group, message
            self._bytes += size
        while self._halves and (self._bytes > self._bytes_max or len(self._halves) > self._count_max):
            self._bytes -= self._halves.popitem(last=False)[1][1]

    def get(self, index: int) -> Messages | None:
        """Return one by itself, when it is here."""
        half = self._halves.get(index)
        return None if half is None else half[5]

    def drop(self, indexes: Iterable[int]) -> None:
        """Let those go that are here."""
        for index in indexes:
            if (half := self._halves.pop(index, None)) is not None:
                self._bytes -= half[1]

    def decided(self, endings: Endings, chosen: Sequence[int] | None = None) -> Found:
        """Return what endings, all or the chosen ones, make of the half messages here; a second about one is about others."""
        queues: dict[tuple[str, int], tuple[list[tuple[Messages, int]], list[int], list[int]]] = {}
        rolled_back: list[int] = []
        others: list[int] = []
        seen: dict[int, int] = {}
        for number in range(len(endings)) if chosen is None else chosen:
            _, _, group, index, place, committed, _ = endings.at(number)
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
        indexes += [endings.at(number)[3] for number in rolled_back]
        return groups, [numbers for _, numbers, _ in queues.values()], rolled_back, indexes, others
