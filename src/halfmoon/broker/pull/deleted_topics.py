"""Stale offsets: clients that may still use offsets of a topic that was deleted and created again under the same name.

A client that runs meanwhile goes on at its old offset, and commits it. Clients that send the topic's birth with their offsets are
refused by that (`halfmoon.broker.topics.check_birth`). Of the others one thing is known: a connection that is older than the new
topic may have offsets of the old one. Its first pull of a queue is answered as Apache's brokers answer a pull behind the end,
unless it begins at an offset that this broker gave it; and it commits nothing behind the offsets that it got. After a restart of
the broker all connections are new, and none is suspected.
"""

from __future__ import annotations

import logging

from halfmoon.wire.peer import Peer, Peers

GIVEN_MAX = 10_000
"""Queues of groups that are remembered of one connection. A pull of a forgotten one is sent to its group's progress again."""

LOGGED_MAX = 10_000
"""Topics and groups that are known to have been logged."""

NOTHING = -1

log = logging.getLogger("halfmoon.broker")

Place = tuple[str, int, str]
"""Topic, queue, group; without a group: an end of the queue, which was asked for without one."""


class StaleOffsets:
    """The offsets that connections older than a recreated topic got from this broker since then: how far they may have come."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.newest_before: dict[str, int] = {}
        """By recreated topic: the number of the newest connection at that time. While it is empty, no connection is suspected."""
        self._given: dict[int, dict[Place, int]] = {}
        self._logged: set[tuple[str, str]] = set()

    def recreated(self, topic: str) -> None:
        """Suspect all present connections of offsets of the old topic, since one deleted after the start exists again."""
        self.newest_before[topic] = self._peers.newest
        for given in self._given.values():
            for place in [place for place in given if place[0] == topic]:
                del given[place]
        self._logged = {logged for logged in self._logged if logged[0] != topic}

    def deleted(self, topic: str) -> None:
        """Suspect no connection of a deleted topic until it exists again."""
        self.newest_before.pop(topic, None)

    def suspect(self, peer: Peer, topic: str) -> bool:
        """Whether a connection may have offsets of a deleted topic of this name."""
        return peer.number <= self.newest_before.get(topic, NOTHING)

    def give(self, peer: Peer, topic: str, queue_id: int, offset: int, group: str = "") -> None:
        """Note an offset of a topic that this broker gives to a connection; `NOTHING`: the group has none."""
        if self.suspect(peer, topic):
            given = self._given.setdefault(peer.number, {})
            place = (topic, queue_id, group)
            # Put in anew, at the end: beyond the bound the place that was given longest ago goes.
            given[place] = max(offset, given.pop(place, NOTHING))
            if len(given) > GIVEN_MAX:
                del given[next(iter(given))]

    def must_restart(self, peer: Peer, topic: str, queue_id: int, group: str, offset: int, begin: int) -> bool:
        """Whether the first pull of a queue uses an offset that its connection did not get here, and must restart at ``begin``.

        ``begin`` is where its group begins the queue. A client that asked for an end of the queue may begin anywhere before that.
        """
        if not self.suspect(peer, topic):
            return False
        given = self._given.get(peer.number, {})
        known = (topic, queue_id, group) in given or offset == begin or offset <= max(0, given.get((topic, queue_id, ""), NOTHING))
        self.give(peer, topic, queue_id, offset if known else begin, group)
        if not known:
            self._log_once(peer, topic, group)
        return not known

    def is_stale(self, peer: Peer, topic: str, queue_id: int, group: str, offset: int) -> bool:
        """Whether a group's progress lies behind all offsets that its connection got, and so belongs to the deleted topic."""
        if not self.suspect(peer, topic):
            return False
        given = self._given.get(peer.number, {})
        if offset <= max(0, *(given.get((topic, queue_id, whose), NOTHING) for whose in (group, ""))):
            return False
        self._log_once(peer, topic, group)
        return True

    def _log_once(self, peer: Peer, topic: str, group: str) -> None:
        """Log it once for each recreated topic and group."""
        if (topic, group) in self._logged:
            return
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged.add((topic, group))
        log.warning(
            "group %s at %s uses offsets of topic %s from before it was deleted: they are ignored, its queues start over",
            group, peer.remote, topic,
        )  # fmt: skip

    def lost(self, number: int) -> None:
        """Forget a lost connection."""
        self._given.pop(number, None)
