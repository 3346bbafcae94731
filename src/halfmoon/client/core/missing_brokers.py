"""Brokers that hold a topic but are missing in a name server's answer, because it has just started and they have yet to register.

Holds when each was missed first. The broker itself is the witness: one that answers for the topic is kept, for a bounded time;
one that says that the topic is gone, or says nothing, is given up as the name server wants it.
"""

from __future__ import annotations

from halfmoon.client.core.ask import call
from halfmoon.client.core.route import Route
from halfmoon.effects import Op, gather, steady
from halfmoon.errors import NetworkError, RequestNotSupported, TopicNotFound
from halfmoon.limits import ROUTE_BROKERS_MAX, ROUTE_QUEUES_MAX
from halfmoon.wire.headers.topic import GetTopicStatsInfo

KEPT_MS = 90_000
"""How long a client keeps a broker that no name server names. Brokers of RocketMQ register every 30 s, 60 s at most."""
ANSWER_MS = 1_000
"""How long a missing broker may take to answer."""
GONE = frozenset({TopicNotFound.code, RequestNotSupported.code})
"""Codes that mean: this broker does not have the topic, or this is no broker any more. Any other refusal proves that it runs."""
SILENT_MS = 10_000
"""How long a broker that did not answer is not asked again, for any topic."""


class MissingBrokers:
    """The brokers that name servers no longer name, by topic; no more than the routes of these topics name."""

    def __init__(self) -> None:
        self._since: dict[str, dict[str, int]] = {}
        """By topic and address: when it was missed first."""
        self._silent: dict[str, int] = {}
        """By address: when it did not answer."""

    def completed(self, topic: str, known: Route, answer: Route) -> Op[Route]:
        """Return a name server's answer, with those brokers of the known route that are missing there and hold the topic still.

        Where the answer has no broker and none of them says anything, all are kept: a broker that restarts is away for a while.
        Until one answers, the route names those as absent.
        """
        addresses = _missing(known, answer)
        if not addresses:
            self.forget(topic)
            return answer
        at = yield from steady()
        before = self._since.get(topic, {})
        since = self._since[topic] = {address: before.get(address, at) for address in addresses}
        recent = [address for address in addresses if at - since[address] < KEPT_MS]
        holds = yield from self._ask(topic, recent, at)
        kept, silent = {address for address in recent if holds[address]}, set[str]()
        if not answer.brokers and not any(said is not None for said in holds.values()):
            silent = set(recent)
        return _merged(known, answer, kept, silent)

    def forget(self, topic: str) -> None:
        """Forget which brokers were missing for a topic."""
        self._since.pop(topic, None)

    def _ask(self, topic: str, addresses: list[str], at: int) -> Op[dict[str, bool | None]]:
        """Return whether each broker says that it holds the topic; None: it says nothing."""
        self._silent = {address: since for address, since in self._silent.items() if at - since < SILENT_MS}
        asked = [address for address in addresses if address not in self._silent]
        replies = yield from gather([call(address, GetTopicStatsInfo(topic=topic), b"", ANSWER_MS) for address in asked])
        holds: dict[str, bool | None] = dict.fromkeys(addresses)
        for address, reply in zip(asked, replies):
            if isinstance(reply, NetworkError):
                self._silent[address] = at
            elif isinstance(reply, Exception):
                raise reply
            else:
                holds[address] = reply.code not in GONE
        return holds


def _missing(known: Route, answer: Route) -> list[str]:
    """Return the addresses that an answer neither names nor replaces by others."""
    named = {address for addresses in answer.brokers.values() for address in addresses.values()}
    missing = {
        address: None
        for name, addresses in known.brokers.items()
        for broker_id, address in addresses.items()
        if address not in named and broker_id not in answer.brokers.get(name, ())
    }
    return list(missing)


def _merged(known: Route, answer: Route, kept: set[str], silent: set[str]) -> Route:
    """Return an answer with what is kept of the known route, unless that is more than one answer might name.

    ``kept`` are the addresses of brokers that answer, ``silent`` those that are kept all the same: their brokers are absent.
    """
    brokers = {name: dict(addresses) for name, addresses in answer.brokers.items()}
    for name, addresses in known.brokers.items():
        for broker_id, address in addresses.items():
            if address in kept or address in silent:
                brokers.setdefault(name, {}).setdefault(broker_id, address)
    queues = [row for row in known.queues if row[0] in brokers.keys() - answer.brokers.keys()]
    order = answer.order_conf or (known.order_conf if brokers else "")
    absent = {*answer.absent, *brokers} - {name for name, those in brokers.items() if not silent.issuperset(those.values())}
    whole = Route(brokers, tuple(sorted([*answer.queues, *queues])), order, tuple(sorted(absent)))
    fits = whole.queue_count <= ROUTE_QUEUES_MAX and sum(map(len, brokers.values())) <= ROUTE_BROKERS_MAX
    return whole if fits else answer
