"""Walks: which member of a producer group is asked about a half message, and which one after an answer NOT_MINE.

The members of a group form a ring, ordered by the hashes by which the transaction index remembers who was asked; so a restart of
the broker and reconnecting members change no order. A round asks the member that sent the half message; if that was the last one
asked, it goes on in the ring behind the last other one. So a member that never answers keeps no other from being asked. A walk is
one round of one half message and ends when all members have been asked. Walks are kept in memory, within bounds; a half message
whose walk was forgotten waits for the next round. Sends nothing, reads no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Container, MutableSequence, Sequence

import msgspec

from halfmoon.broker.consumers.clients import GroupMember
from halfmoon.broker.transactions.answers import Answer
from halfmoon.hot import Parts
from halfmoon.store.transactions.index import Check
from halfmoon.wire.properties import value_of

WALKS_MAX, ASKED_MAX = 4096, 256
"""Walks in memory, beyond which the oldest is forgotten, and members that one walk asks. Together they take 4 MiB."""
AGAIN = 4
"""After *still open* the same member is asked again, but for one check in four: its database may be away for itself alone."""
SENDER = b"PCLIENT"
"""Property of half messages: `GroupMember.short_hash` of their sender, in hexadecimal."""
_RING = 1 << 24


class Walk(msgspec.Struct, gc=False):
    """Hashes of the members that were asked about one half message in this round."""

    group_hash: int
    asked: MutableSequence[int]
    waits: bool = False
    """The last of them answered NOT_MINE, and the next is to be asked."""


class Walks:
    """The walks under way by half queue offset, and those among them where somebody is to be asked, by group."""

    walks_max = WALKS_MAX

    def __init__(self) -> None:
        self._walks: dict[int, Walk] = {}
        self._waiting: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._walks)

    def begin(self, index: int, group_hash: int) -> None:
        """Begin the walk of a half message, in place of the one before."""
        self.end(index)
        if len(self._walks) >= self.walks_max:
            self.end(next(iter(self._walks)))
        self._walks[index] = Walk(group_hash, array("I"))

    def end(self, index: int) -> None:
        """Forget the walk of a half message, if there is one."""
        self.take(index)
        self._walks.pop(index, None)

    def asked(self, index: int, member: GroupMember) -> None:
        """Remember that a member was asked."""
        self._walks[index].asked.append(member.short_hash)

    def go_on(self, index: int) -> bool:
        """Have the next member asked; return False when the walk is over or forgotten."""
        walk = self._walks.get(index)
        if walk is not None and not walk.waits:
            walk.waits = True
            self._waiting.setdefault(walk.group_hash, {})[index] = None
        return walk is not None

    def waits(self, index: int) -> bool:
        """Whether the next member is to be asked about a half message."""
        walk = self._walks.get(index)
        return walk is not None and walk.waits

    def groups(self) -> list[int]:
        """Return the hashes of the groups of which members are to be asked."""
        return list(self._waiting)

    def first(self, group_hash: int) -> int | None:
        """Return the half message of a group that waits longest; None: there is none."""
        return next(iter(self._waiting.get(group_hash, ())), None)

    def take(self, index: int) -> Sequence[int]:
        """Take a half message out of those that wait; return who was asked about it."""
        walk = self._walks.get(index)
        if walk is None:
            return ()
        if walk.waits:
            walk.waits = False
            waiting = self._waiting.pop(walk.group_hash)
            del waiting[index]
            if waiting:  # behind the other groups, which may be asked before it
                self._waiting[walk.group_hash] = waiting
        return walk.asked


def sender_of(parts: Parts, members: Collection[GroupMember]) -> GroupMember | None:
    """Return the member that sent a half message; None when it is not connected, or cannot be told.

    Halfmoon's clients name themselves in PCLIENT, so that they are known on every connection, also after a restart. For others the
    address of the connection tells, over which Java clients send all they send.
    """
    if SENDER in parts.properties and (name := value_of(parts.properties, SENDER)) is not None:
        return next((member for member in members if b"%06x" % member.short_hash == name), None)
    return next((member for member in members if member.peer.host == parts.born_host), None)


def first_asked(
    members: Collection[GroupMember], sender: GroupMember | None, sent: int, history: Sequence[Check], start: int
) -> GroupMember:
    """Return the member that a round asks, of at least one; ``start`` is where the ring begins while nobody was asked.

    After *still open* that is mostly the member that said so; else the sender, unless it was asked last; else the next in the ring.
    """
    last = history[-1] if history else None
    if last is not None and last.answer == Answer.OPEN and sent % AGAIN:
        for member in members:
            if member.short_hash == last.producer:
                return member
    if sender is not None and (last is None or last.producer != sender.short_hash):
        return sender
    found = next_asked(members, sender, history, (), start)
    assert found is not None
    return found


def next_asked(
    members: Collection[GroupMember], sender: GroupMember | None, history: Sequence[Check], asked: Container[int], start: int
) -> GroupMember | None:
    """Return the next member in the ring behind the last one asked, leaving out those in ``asked``; the sender comes last.

    None: all were asked. Costs a look at each member.
    """
    own = -1 if sender is None else sender.short_hash
    last = next((check.producer for check in reversed(history) if check.producer != own), start)
    others = [member for member in members if member.short_hash != own and member.short_hash not in asked]
    found = min(others, key=lambda member: (member.short_hash - last - 1) % _RING, default=None)
    return sender if found is None and own not in asked else found
