"""What must hold of pull consumers: functions from what applications were given and confirmed to the list of what is wrong.

An application is given messages and confirms them: by its next poll or step with auto commit, by a commit without. A group's stored
progress speaks of confirmed messages only; what was not confirmed is given again, to whoever comes next, and nothing is skipped.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from halfmoon.model import MessageQueue
from simulation.verdict import by_checker


@dataclass(eq=False)
class Tenure:
    """The time in which one member has one queue: from where it was begun, or sought in, until it goes or is sought in again.

    ``stored`` is the lowest offset that the broker had of the group shortly before the tenure began (None: not known), ``sought``
    the offset that was asked for; ``given`` are offsets in the order in which the application was given them.
    """

    member: str
    queue: MessageQueue
    stored: int | None = None
    sought: int | None = None
    given: list[int] = field(default_factory=list)


@dataclass
class PollLedger:
    """What a history of pull consumers writes down.

    ``wanted``: acknowledged messages that the group's filter takes, by queue and offset. ``confirmed``: by any application.
    ``passed``: up to where somebody has sought in a queue, so that what lies before may stay unread. ``ahead``: progress that was
    seen at a broker before the messages in front of it were confirmed. ``closed``: queue, what was confirmed, what was stored, of
    members that closed in peace.
    """

    wanted: defaultdict[MessageQueue, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    confirmed: defaultdict[MessageQueue, set[int]] = field(default_factory=lambda: defaultdict(set))
    open: defaultdict[MessageQueue, set[int]] = field(default_factory=lambda: defaultdict(set))
    passed: defaultdict[MessageQueue, int] = field(default_factory=lambda: defaultdict(int))
    tenures: list[Tenure] = field(default_factory=list)
    ahead: dict[tuple[MessageQueue, int], str] = field(default_factory=dict)
    closed: list[tuple[str, MessageQueue, int, int]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def acknowledged(self, queue: MessageQueue, offset: int, body: bytes) -> None:
        """A message that the group wants is in a queue."""
        self.wanted[queue][offset] = body
        if offset not in self.confirmed[queue]:
            self.open[queue].add(offset)

    def confirm(self, queue: MessageQueue, offset: int) -> None:
        """An application has finished a message."""
        self.confirmed[queue].add(offset)
        self.open[queue].discard(offset)

    def seen(self, queue: MessageQueue, stored: int, at_ms: int) -> None:
        """A broker holds a group's progress in a queue."""
        for offset in self.open[queue]:
            if self.passed[queue] <= offset < stored and (queue, offset) not in self.ahead:
                self.ahead[queue, offset] = f"{queue}@{offset} was not confirmed at {at_ms}, when the progress stored was {stored}"

    def unread(self) -> list[tuple[MessageQueue, int]]:
        """Return what somebody must still be given."""
        return sorted((queue, offset) for queue, found in self.open.items() for offset in found if offset >= self.passed[queue])


def check_polls(ledger: PollLedger) -> list[str]:
    """Return everything that is wrong with a history: each checker's problems with its name before them."""
    problems = {
        "lost": [f"{queue}@{offset} was confirmed by nobody" for queue, offset in ledger.unread()],
        "ahead": list(ledger.ahead.values()),
        "again": given_once(ledger),
        "skipped": nothing_is_skipped(ledger),
        "begun": begun_where_it_was_left(ledger),
        "kept": closes_keep_what_was_confirmed(ledger),
        "unexpected": ledger.unexpected,
    }
    return by_checker(problems)


def given_once(ledger: PollLedger) -> list[str]:
    """While a member has a queue its application is given each message once, in order, and nothing from before a seek."""
    return [
        f"{tenure.member} was given {tenure.queue}@{later} after {earlier}"
        for tenure in ledger.tenures
        for earlier, later in zip([-1 if tenure.sought is None else tenure.sought - 1, *tenure.given], tenure.given)
        if later <= earlier
    ]


def nothing_is_skipped(ledger: PollLedger) -> list[str]:
    """Between two messages that follow each other, and between a seek and the first one, lies none that is wanted."""
    problems = []
    for tenure in ledger.tenures:
        begin = tenure.given[:1] if tenure.sought is None else [tenure.sought - 1]
        for earlier, later in zip([*begin, *tenure.given], tenure.given):
            missed = [offset for offset in range(earlier + 1, later) if offset in ledger.wanted[tenure.queue]]
            problems += [f"{tenure.member} was given {tenure.queue}@{later} after {earlier}, without {missed}"] if missed else []
    return problems


def begun_where_it_was_left(ledger: PollLedger) -> list[str]:
    """A member begins a queue at the progress stored: what was confirmed and committed does not come again."""
    return [
        f"{tenure.member} began {tenure.queue} at {tenure.given[0]}, where {tenure.stored} was stored"
        for tenure in ledger.tenures
        if tenure.stored is not None and tenure.sought is None and tenure.given and tenure.given[0] < tenure.stored
    ]


def closes_keep_what_was_confirmed(ledger: PollLedger) -> list[str]:
    """A member with auto commit that closes in peace stores all that its application confirmed."""
    return [
        f"{member} closed after it had confirmed {queue} up to {confirmed}, and {stored} was stored"
        for member, queue, confirmed, stored in ledger.closed
        if stored < confirmed
    ]
