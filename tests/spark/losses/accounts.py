"""What a reader returned and what it said is lost, held against what a cluster really stored; and what it may not do in silence."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from tests.spark.losses.cluster import Cluster, Place, place_of

QUEUE = r"(?P<topic>\w+) (?P<broker>[\w-]+) queue (?P<queue>\d+)"
SAID = {
    "gone": re.compile(rf"{QUEUE}: offsets (?P<low>\d+) to (?P<high>\d+) are gone"),
    "shrunk": re.compile(rf"{QUEUE}: read up to \d+, but it ends at"),
    "unread": re.compile(rf"{QUEUE} is not read any more, and (?:has )?offsets (?P<low>\d+) to (?P<high>\d+)"),
    "away": re.compile(r"(?P<topic>\w+) is not at (?P<broker>[\w-]+) any more(?:, with (?P<count>.+?) messages unread)?"),
    "reborn": re.compile(r"(?P<topic>\w+) at (?P<broker>[\w-]+)(?=[,;.]| *$)"),
    "empty": re.compile(rf"offsets (?P<low>\d+) to (?P<high>\d+) of {QUEUE} \["),
    "count": re.compile(rf"range={QUEUE} \[(?P<begin>\d+), (?P<end>\d+)\) count=(?P<count>\d+)"),
    "without": re.compile(r"read without brokers that left.*topic=(?P<topic>\w+) brokers=(?P<brokers>\S+)"),
    "left": re.compile(r"(?P<brokers>[\w-]+(?:, [\w-]+)*) left the name servers with queues of topic (?P<topic>\w+)"),
}
FINAL = {"gone", "reborn", "empty"}
"""What nothing brings back; what else is said may pass."""


class Claim(NamedTuple):
    """One thing that a reader said: of which kind, and the numbers and names in it."""

    kind: str
    said: dict[str, str]

    @property
    def at(self) -> tuple[str, str]:
        """The topic and broker that it is about."""
        return self.said["topic"], self.said.get("broker", "")

    @property
    def offsets(self) -> range:
        """The offsets that it names."""
        return range(int(self.said["low"]), int(self.said["high"]) + 1)


def claims(texts: Iterable[str]) -> list[Claim]:
    """Return what texts say is lost, away, or another topic."""
    return [claim for text in texts for claim in _claims_of(text)]


@lru_cache(10_000)
def _claims_of(text: str) -> list[Claim]:
    patterns = [(kind, pattern) for kind, pattern in SAID.items() if kind != "reborn" or "created again" in text]
    return [Claim(kind, match.groupdict()) for kind, pattern in patterns for match in pattern.finditer(text)]


class Heard(logging.Handler):
    """Keeps the warnings of a source."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a text."""
        self.texts.append(record.getMessage())


class Accounts:
    """The account of one checkpoint or table: of each queue, in each life of its topic, how far it is read."""

    def __init__(self, cluster: Cluster, problems: list[str], heard: Heard) -> None:
        self.cluster, self.problems, self.heard = cluster, problems, heard
        self.next: dict[Place, int] = {}
        self.lives: dict[tuple[str, str], int] = {}
        """Which life of a topic is read, by topic and broker."""
        self.seen: dict[Place, int] = {}
        """The ends that were last reported of queues."""
        self.planned: dict[Place, int] = {}
        """Where the batch ends that is planned, and of which life of topics it is."""
        self.returned = self.lost = 0
        self._gone_since: dict[Place, int] = {}
        self._told_from: dict[tuple[str, str], int] = {}
        """Which texts are of the life that is read: those from a number on."""

    # ------------------------------------------------------------ what happens

    def look(self) -> None:
        """Note which queues cannot be read from now on, and which can be again. Call it after each event."""
        readable = set(self.cluster.readable())
        for place in self.next:
            if place in readable:
                self._gone_since.pop(place, None)
            else:
                self._gone_since.setdefault(place, len(self.heard.texts))

    def answered(self) -> None:
        """Brokers reported the ends of all queues that can be read."""
        for place in self.cluster.readable():
            self.seen[place] = self.cluster.brokers[place.broker].topics[place.topic].queue(place.queue).high

    def batch(self, spans: Sequence[tuple[Place, int, int]], rows: Sequence[str], gaps: dict[tuple[str, str, int], int]) -> None:
        """Enter a batch: [begin, end) of queues, the rows that came, and how many offsets of each queue are said to be gone."""
        by_place: dict[Place, list[int]] = {}
        for row in rows:
            place, offset = place_of(row)
            by_place.setdefault(place, []).append(offset)
        for place, begin, end in spans:
            came = by_place.pop(place, [])
            if came != sorted(set(came)) or (came and not begin <= came[0] <= came[-1] < end):
                self.problems.append(f"order: of {place} [{begin}, {end}) came {came}")
            self._enter(place, begin, end)
            missing = sorted(set(range(begin, end)) - set(came))
            if len(missing) != (said := gaps.get((place.topic, place.broker, place.queue), 0)):
                self.problems.append(f"count: of {place} [{begin}, {end}) {missing} are missing, and {said} are reported")
            self.problems += [f"lost: {place} has {offset} still" for offset in missing if not self._is_gone(place, offset)]
            self.returned, self.lost = self.returned + len(came), self.lost + len(missing)
            self.next[place] = end
        self.planned = dict(self.next)
        self.problems += [f"foreign: of {place} came {came}" for place, came in by_place.items()]

    def _enter(self, place: Place, begin: int, end: int) -> None:
        """Judge where a batch begins, of which the messages before were read or are reported."""
        at = (place.topic, place.broker)
        if at not in self.lives:
            self.lives[at], self._told_from[at] = place.birth, 0
        if self.lives[at] != place.birth:
            self._reborn(at, place.birth)
        if place not in self.next:
            return
        passed = range(self.next[place], begin)
        said = {
            offset for claim in self._told(at) if claim.kind == "gone"
            for offset in claim.offsets if int(claim.said["queue"]) == place.queue
        }  # fmt: skip
        if begin < self.next[place]:
            self.problems.append(f"twice: {place} is read from {begin} on, and was read up to {self.next[place]}")
        if silent := [offset for offset in passed if offset not in said]:
            self.problems.append(f"silent: {place} passes over {silent} up to {end}")
        self.problems += [f"lost: {place} has {offset} still" for offset in passed if not self._is_gone(place, offset)]
        self.lost += len(passed)

    def _reborn(self, at: tuple[str, str], birth: int) -> None:
        told = any(claim.kind == "reborn" for claim in self._told(at))
        for place in [place for place in self.next if (place.topic, place.broker) == at and place.birth != birth]:
            unread = self.cluster.stored.get(place, 0) - self.next.pop(place)
            self._gone_since.pop(place, None)
            if unread > 0 and not told:
                self.problems.append(f"silent: {unread} messages of {place} are passed over with the topic")
            self.lost += max(0, unread)
        self.lives[at], self._told_from[at] = birth, len(self.heard.texts)

    def _told(self, at: tuple[str, str]) -> list[Claim]:
        """Return what was said of a topic at a broker since this life of it is read."""
        return [claim for claim in claims(self.heard.texts[self._told_from[at] :]) if claim.at == at]

    # ------------------------------------------------------------ what is so

    def _is_gone(self, place: Place, offset: int) -> bool:
        held, topic = self.cluster.held(place), self.cluster.brokers[place.broker].topics.get(place.topic)
        return held is None or topic is None or offset < held.low or place.queue >= topic.reads

    def unread(self) -> dict[Place, range]:
        """Return what queues hold behind what was read of them that cannot be read now."""
        ranges = {place: range(self.next[place], self.cluster.stored.get(place, 0)) for place in self._gone_since}
        return {place: unread for place, unread in ranges.items() if unread}

    def judge_silence(self, *, strict: bool) -> None:
        """Find what cannot be read now, and nobody says so."""
        for place, unread in self.unread().items():
            topic = self.cluster.brokers[place.broker].topics.get(place.topic)
            said = claims(self.heard.texts[self._gone_since[place] :])
            about = [claim for claim in said if claim.at == (place.topic, place.broker)]
            there = topic is not None and self.cluster.brokers[place.broker].alive
            if there and topic is not None and topic.birth == place.birth:
                ok = not strict and any(
                    claim.kind == "unread"
                    and int(claim.said["queue"]) == place.queue
                    and claim.offsets.start == unread.start
                    and 2 * len(claim.offsets) > len(unread)
                    for claim in about
                )
            elif there:
                ok = not topic or not topic.reads or (not strict and any(claim.kind == "reborn" for claim in about))
            else:
                ok = any(claim.kind in ("away", "reborn") for claim in about) or any(
                    claim.kind == "without" and place.broker in claim.said["brokers"] and claim.said["topic"] == place.topic
                    for claim in said
                )
            if not ok:
                self.problems.append(f"silent: {unread} of {place} cannot be read, and nobody says so: {self.heard.texts[-3:]}")

    def judge_claims(self, texts: Iterable[str]) -> list[Claim]:
        """Find what is said and is not so; return what is said."""
        said = claims(texts)
        self.problems += [f"untrue: {claim}" for claim in said if not self._is_true(claim)]
        return said

    def _is_true(self, claim: Claim) -> bool:
        if claim.kind == "count":
            return True  # held against the rows of the batch
        if claim.kind in ("without", "left"):
            return all(
                self._is_away(claim.said["topic"], name) for name in re.split(r",\s*", claim.said["brokers"]) if name != "all"
            )
        if claim.kind == "shrunk":
            return False  # a store that lost its end has topics of another birth
        topic, broker = claim.at
        there = self.cluster.brokers[broker].topics.get(topic)
        if claim.kind == "reborn":
            known = {place.birth for place in self.planned if (place.topic, place.broker) == claim.at} | {self.lives.get(claim.at)}
            return there is None or known != {there.birth}  # it may be deleted since
        if claim.kind == "away":
            return self._is_away(topic, broker) and self._counts(claim)
        births = {place.birth for place in self.planned if (place.topic, place.broker) == claim.at} | {self.lives.get(claim.at, 0)}
        return any(self._is_lost(Place(topic, broker, int(claim.said["queue"]), birth), claim) for birth in births)

    def _is_lost(self, place: Place, claim: Claim) -> bool:
        if claim.kind != "unread":
            begins = {at.get(place) for at in (self.next, self.planned)}
            return (claim.kind == "empty" or claim.offsets.start in begins) and all(
                self._is_gone(place, offset) for offset in claim.offsets
            )
        end = self.cluster.stored.get(place, 0)
        return claim.offsets in [range(at.get(place, 0), end) for at in (self.next, self.planned)] and self._is_gone(place, end)

    def _is_away(self, topic: str, broker: str) -> bool:
        found = self.cluster.brokers[broker]
        return not found.alive or topic not in found.topics or not found.topics[topic].reads

    def _counts(self, claim: Claim) -> bool:
        """Whether as many messages are said to be unread as were when the broker was last seen."""
        count = claim.said["count"]
        if count is None or not count.isdigit():
            return True
        ends = [
            {place: offset for place, offset in at.items() if (place.topic, place.broker) == claim.at}
            for at in (self.next, self.planned)
        ]
        return int(count) in [sum(self.seen[place] - offset for place, offset in at.items()) for at in ends]
