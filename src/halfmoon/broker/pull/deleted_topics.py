"""Offsets of a deleted topic in the hands of clients that tell no births: who may hold some, and what they were told since.

A client that runs while its topic is deleted and made anew goes on at its old offset, and commits it. Those that say which topic
they speak of are refused by that (`halfmoon.broker.topics.check_birth`). Of the others one thing is known: a connection that is
older than the topic may stand for offsets of the old one. Its first pull of a queue is answered as Apache's brokers answer a pull
behind the end, unless it begins where this broker has told it; and it commits nothing behind what it was told. After a restart of
the broker no connection is old: what is not known is not judged.
"""

from __future__ import annotations

import logging

from halfmoon.wire.peer import Peer, Peers

TOLD_MAX = 10_000
"""Queues of groups that are remembered of one connection. What is forgotten of it is sent to its group's progress once more."""

SAID_MAX = 10_000
"""Topics and groups that are known to have been logged."""

NOTHING = -1

log = logging.getLogger("halfmoon.broker")

Place = tuple[str, int, str]
"""Topic, queue, group; no group: the ends of a queue, which are told to no group."""


class StaleOffsets:
    """What connections that are older than a topic made anew were told of its queues since: how far they may have come."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.anew: dict[str, int] = {}
        """By topic the number of the newest connection when it was made anew. While it is empty, nobody is suspected."""
        self._told: dict[int, dict[Place, int]] = {}
        self._said: set[tuple[str, str]] = set()

    def made_anew(self, topic: str) -> None:
        """A topic that was deleted since the start is there again: whoever is connected may hold offsets of the old one."""
        self.anew[topic] = self._peers.newest
        for told in self._told.values():
            for place in [place for place in told if place[0] == topic]:
                del told[place]
        self._said = {said for said in self._said if said[0] != topic}

    def deleted(self, topic: str) -> None:
        """A topic is not there any more: nothing is judged until it is again."""
        self.anew.pop(topic, None)

    def suspect(self, peer: Peer, topic: str) -> bool:
        """Whether a connection may hold offsets of a topic of this name that was deleted."""
        return peer.number <= self.anew.get(topic, NOTHING)

    def told(self, peer: Peer, topic: str, queue_id: int, offset: int, group: str = "") -> None:
        """A connection is told an offset of a topic; `NOTHING`: that its group has none."""
        if self.suspect(peer, topic):
            told = self._told.setdefault(peer.number, {})
            place = (topic, queue_id, group)
            told[place] = max(offset, told.pop(place, NOTHING))
            if len(told) > TOLD_MAX:
                del told[next(iter(told))]

    def elsewhere(self, peer: Peer, topic: str, queue_id: int, group: str, offset: int, begin: int) -> bool:
        """Whether the first pull of a queue asks for an offset that its connection has from nobody here: it is to be sent to
        ``begin``, where its group begins the queue. Who asked for an end of the queue may begin anywhere before that.
        """
        if not self.suspect(peer, topic):
            return False
        told = self._told.get(peer.number, {})
        known = (topic, queue_id, group) in told or offset == begin or offset <= max(0, told.get((topic, queue_id, ""), NOTHING))
        self.told(peer, topic, queue_id, offset if known else begin, group)
        if not known:
            self._say(peer, topic, group)
        return not known

    def ignores(self, peer: Peer, topic: str, queue_id: int, group: str, offset: int) -> bool:
        """Whether progress lies behind all that its connection was told, and so is the old topic's."""
        if not self.suspect(peer, topic):
            return False
        told = self._told.get(peer.number, {})
        if offset <= max(0, *(told.get((topic, queue_id, of), NOTHING) for of in (group, ""))):
            return False
        self._say(peer, topic, group)
        return True

    def _say(self, peer: Peer, topic: str, group: str) -> None:
        """Say it once for each topic made anew and group."""
        if (topic, group) in self._said:
            return
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said.add((topic, group))
        log.warning(
            "group %s at %s comes with offsets of topic %s from before it was deleted: they are not taken, its queues begin anew",
            group, peer.remote, topic,
        )  # fmt: skip

    def lost(self, number: int) -> None:
        """A connection is gone."""
        self._told.pop(number, None)
