"""The tables of a name server: which broker serves which topic, under which addresses, and which brokers live.

Everything is memory only: a name server that restarts learns it again from the brokers' registrations. Knows no frames, no
JSON and no clock; answers nobody. Follows RouteInfoManager (RocketMQ 4.9.8), with the times to live of 5.x.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from halfmoon.instant import Steady
from halfmoon.limits import ADDRESS_LENGTH_MAX, NAME_LENGTH_MAX, ROUTE_BROKERS_MAX, ROUTE_QUEUES_MAX
from halfmoon.metrics import Metric, Samples
from halfmoon.wire.codes import Perm

ENTRIES_MAX = 2_000_000
"""Topics at a broker, in all: some 200 bytes each. A cluster of 50,000 topics on 20 masters has a million."""

NAMES_BYTES_MAX = 7 * 1024 * 1024
"""Bytes of all topics' names: a list of them is one frame, also where JSON doubles each of their characters."""

MASTER_ID = 0
UNIT, UNIT_SUB = 1, 2
"""Bits of a topic's system flag. Follows TopicSysFlag."""


class Queues(msgspec.Struct, frozen=True, gc=False):
    """Queues of one topic on one broker. There are as many as topics, and the garbage collector need not look at them."""

    read_count: int
    write_count: int
    perm: int
    sys_flag: int = 0

    @property
    def queue_count(self) -> int:
        """How many queues there are to read or to write."""
        return max(0, self.read_count, self.write_count)


class BrokerRegistration(NamedTuple):
    """Registration of one broker. ``version`` is compared as a whole; ``topics`` may be any part of the broker's topics."""

    cluster: str
    name: str
    address: str
    broker_id: int
    ha_address: str
    version: Any
    topics: Mapping[str, Queues]
    ttl_ms: int | None = None
    enable_acting_master: bool | None = None
    epoch: int = 0
    """Epoch of the master of a pair; 0: it is none."""


class MasterAddress(NamedTuple):
    """Where a slave finds its master."""

    address: str
    ha_address: str


def _overlong(sent: BrokerRegistration) -> str | None:
    """Return which name or address of a broker is longer than allowed; None: none is."""
    names = {"cluster name": sent.cluster, "broker name": sent.name}
    addresses = {"address": sent.address, "address for slaves": sent.ha_address}
    for texts, length_max in ((names, NAME_LENGTH_MAX), (addresses, ADDRESS_LENGTH_MAX)):
        for what, text in texts.items():
            if len(text) > length_max:
                return f"a {what} has at most {length_max} characters, not {len(text)}"
    return None


def _bytes_of(topics: Iterable[str]) -> int:
    return sum(len(topic.encode()) for topic in topics)


class BrokerGroup:
    """All brokers of one name: a master and its slaves.

    ``enable_acting_master`` is passed on only, as a 5.x broker sent it: False where none was sent, as the Rust client reads no
    route without it. ``rivals`` are the last two addresses that were registered with one id while both lived. ``epoch`` is the
    highest of a master of a pair.
    """

    __slots__ = ("addresses", "cluster", "enable_acting_master", "epoch", "name", "rivals")

    def __init__(self, cluster: str, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.addresses: dict[int, str] = {}
        self.enable_acting_master, self.epoch = False, 0
        self.rivals: frozenset[str] = frozenset()


class LiveBroker:
    """One broker that was heard lately."""

    __slots__ = ("broker_id", "cluster", "ha_address", "heard_at", "name", "peer", "ttl_ms", "version")

    def __init__(self, sent: BrokerRegistration, peer: int, ttl_ms: int, now: Steady) -> None:
        self.cluster, self.name, self.broker_id, self.ha_address = sent.cluster, sent.name, sent.broker_id, sent.ha_address
        self.version, self.peer, self.ttl_ms, self.heard_at = sent.version, peer, ttl_ms, now


class TableFull(Exception):
    """A broker more than the bound wants to register."""


class Superseded(Exception):
    """A broker wants to register as the master of a pair that has had a newer one."""


class Routes:
    """The tables. ``expiry_ms`` is the time to live of a broker that names none."""

    entries_max = ENTRIES_MAX
    names_bytes_max = NAMES_BYTES_MAX

    def __init__(self, *, expiry_ms: int = 120_000, brokers_max: int = 10_000, topics_max: int = 200_000) -> None:
        self.expiry_ms, self._brokers_max, self._topics_max = expiry_ms, brokers_max, topics_max
        self._topics: dict[str, dict[str, Queues]] = {}
        self._topics_of: dict[str, set[str]] = {}  # broker name → its topics, so that a broker leaves without a look at all topics
        self._groups: dict[str, BrokerGroup] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[tuple[str, str], LiveBroker] = {}
        self._brokers_of: dict[int, set[tuple[str, str]]] = {}
        self._absent: dict[str, tuple[str, set[str]]] = {}
        """Brokers that left: name → cluster, and the topics that could be read there. Beyond a bound the first go."""
        self.left_out = 0
        """Topics that a registration brought and a bound kept out, in all."""
        self.last_left_out = ""
        self.entries = self.names_bytes = self._absent_bytes = 0

    # ------------------------------------------------------------ brokers come

    def wants_topics(self, sent: BrokerRegistration) -> bool:
        """Whether `register` would take the topics: a master's, when its version is not the one known, or its id is new."""
        if sent.broker_id != MASTER_ID:
            return False
        known, group = self._live.get((sent.cluster, sent.address)), self._groups.get(sent.name)
        return known is None or known.version != sent.version or group is None or sent.broker_id not in group.addresses

    def rival(self, sent: BrokerRegistration) -> str | None:
        """Return the address of another live broker with the same name and id; None: there is none, or it was told already."""
        group = self._groups.get(sent.name)
        address = group.addresses.get(sent.broker_id) if group is not None else None
        if group is None or address is None or address == sent.address or (group.cluster, address) not in self._live:
            return None
        known, group.rivals = group.rivals, frozenset((address, sent.address))
        return address if known != group.rivals else None

    def register(self, sent: BrokerRegistration, peer: int, now: Steady) -> MasterAddress | None:
        """Take in a broker with its topics; return its master when it is a slave whose master lives.

        Only a master changes topics, and only when its version is not the one known, or its id is new. Topics that it no longer
        names stay (delete them by `delete_topic`). Topics beyond the bound are left out and counted.

        Raises:
            TableFull: the bound on brokers, or on the members of one, is reached, or a name or address is too long.
            Superseded: it is the master of a lower epoch, or of none while the master of a pair lives.

        Differs: the original has no bounds.
        """
        key = (sent.cluster, sent.address)
        known = self._live.get(key)
        if known is None and len(self._live) >= self._brokers_max:
            raise TableFull(f"{len(self._live)} brokers are registered, the bound")
        if (reason := _overlong(sent)) is not None:
            raise TableFull(reason)
        group = self._groups.get(sent.name)
        if group is not None and sent.broker_id not in group.addresses and len(group.addresses) >= ROUTE_BROKERS_MAX:
            raise TableFull(f"{len(group.addresses)} members of {sent.name} are registered, the bound")
        self._check_epoch(sent, group)
        if group is None:
            group = self._groups[sent.name] = BrokerGroup(sent.cluster, sent.name)
            self._is_back(sent.name)
        group.enable_acting_master = bool(sent.enable_acting_master)
        group.epoch = max(group.epoch, sent.epoch)
        self._clusters.setdefault(sent.cluster, {})[sent.name] = None
        for other_id, address in list(group.addresses.items()):
            if address == sent.address and other_id != sent.broker_id:  # a slave that became master
                del group.addresses[other_id]
        if self.wants_topics(sent):
            self.take_topics(sent)
        group.addresses[sent.broker_id] = sent.address
        self._hear(key, sent, peer, now)
        return self.master_of(sent)

    def _check_epoch(self, sent: BrokerRegistration, group: BrokerGroup | None) -> None:
        if group is None or sent.broker_id != MASTER_ID or sent.epoch >= group.epoch:
            return
        address = group.addresses.get(MASTER_ID)
        if sent.epoch or (address not in (None, sent.address) and (group.cluster, address) in self._live):
            raise Superseded(f"{sent.name} has had a master of epoch {group.epoch} ({address}), and this is epoch {sent.epoch}")

    def take_topics(self, sent: BrokerRegistration) -> None:
        """Enter topics of a broker; those beyond the bound are left out and counted."""
        for topic, queues in sent.topics.items():
            self._enter(topic, sent.name, queues)

    def _enter(self, topic: str, name: str, queues: Queues) -> None:
        """Enter what a broker holds of a topic, or leave it out and count it: a bound says so, and what was known of it stays."""
        by_broker = self._topics.get(topic, {})
        known = by_broker.get(name)
        if known == queues:
            return
        if not self._fits(topic, by_broker, name, queues):
            self.left_out += 1
            self.last_left_out = topic[:NAME_LENGTH_MAX]
            return
        if not by_broker:
            self._topics[topic] = by_broker
            self.names_bytes += len(topic.encode())
        self.entries += known is None
        by_broker[name] = queues
        self._topics_of.setdefault(name, set()).add(topic)

    def _fits(self, topic: str, by_broker: Mapping[str, Queues], name: str, queues: Queues) -> bool:
        if not by_broker:
            size = self.names_bytes + len(topic.encode())
            if len(topic) > NAME_LENGTH_MAX or not topic.isprintable():
                return False
            if len(self._topics) >= self._topics_max or size > self.names_bytes_max:
                return False
        if name not in by_broker and (self.entries >= self.entries_max or len(by_broker) >= ROUTE_BROKERS_MAX):
            return False
        others = sum(each.queue_count for broker, each in by_broker.items() if broker != name)
        return others + queues.queue_count <= ROUTE_QUEUES_MAX

    def _hear(self, key: tuple[str, str], sent: BrokerRegistration, peer: int, now: Steady) -> None:
        before = self._live.get(key)
        if before is not None and before.peer != peer:
            self._forget_peer(before.peer, key)
        self._live[key] = LiveBroker(sent, peer, sent.ttl_ms or self.expiry_ms, now)
        self._brokers_of.setdefault(peer, set()).add(key)

    def master_of(self, sent: BrokerRegistration) -> MasterAddress | None:
        """Return the master of a slave while it lives; None for a master."""
        group = self._groups.get(sent.name)
        address = group.addresses.get(MASTER_ID) if group is not None and sent.broker_id != MASTER_ID else None
        live = self._live.get((group.cluster, address)) if group is not None and address is not None else None
        return MasterAddress(address, live.ha_address) if address is not None and live is not None else None

    def version(self, cluster: str, address: str) -> Any:
        """Return the version of a live broker's topics as last registered, or None."""
        live = self._live.get((cluster, address))
        return live.version if live is not None else None

    def heard(self, cluster: str, address: str, now: Steady) -> bool:
        """Note that a broker lives, without a registration; return whether it is known."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.heard_at = now
        return live is not None

    # ------------------------------------------------------------ brokers go

    def unregister(self, cluster: str, name: str, address: str, broker_id: int) -> None:
        """Forget one broker; with the last of its name go the topics only it held. An unknown one is no error."""
        live = self._live.pop((cluster, address), None)
        if live is not None:
            self._forget_peer(live.peer, (cluster, address))
        group = self._groups.get(name)
        if group is not None and group.addresses.get(broker_id) == address:
            self._remove_address(group, broker_id)

    def lost(self, peer: int) -> list[str]:
        """Forget every broker that registered last over this connection; return their addresses."""
        return [address for _, address in self._remove(sorted(self._brokers_of.get(peer, ())))]

    def expire(self, now: Steady) -> list[tuple[str, int]]:
        """Forget every broker not heard for its time to live; return their addresses and the connections they used."""
        silent = [key for key, live in self._live.items() if live.heard_at + live.ttl_ms < now]
        peers = [self._live[key].peer for key in silent]
        return [(address, peer) for (_, address), peer in zip(self._remove(silent), peers)]

    def _remove(self, keys: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
        removed = list(keys)
        for key in removed:
            live = self._live.pop(key)
            self._forget_peer(live.peer, key)
            group = self._groups.get(live.name)
            if group is not None and group.addresses.get(live.broker_id) == key[1]:
                self._remove_address(group, live.broker_id)
        return removed

    def _remove_address(self, group: BrokerGroup, broker_id: int) -> None:
        del group.addresses[broker_id]
        if group.addresses:
            return
        del self._groups[group.name]
        for cluster in [cluster for cluster, names in self._clusters.items() if group.name in names]:
            del self._clusters[cluster][group.name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        topics = self._topics_of.pop(group.name, set())
        read = {topic for topic in topics if self._remove_queues(topic, group.name)} - {group.name}  # that of its own is no user's
        if read:
            self._absent[group.name] = (group.cluster, read)
            self._absent_bytes += _bytes_of(read)
        while len(self._absent) > self._brokers_max or self._absent_bytes > self.names_bytes_max:
            self._is_back(next(iter(self._absent)))

    def _is_back(self, name: str) -> None:
        """Note that a broker is absent no more."""
        _, topics = self._absent.pop(name, ("", ()))
        self._absent_bytes -= _bytes_of(topics)

    def _remove_queues(self, topic: str, name: str) -> bool:
        """Forget what a broker holds of a topic; return whether it could be read there."""
        by_broker = self._topics.get(topic, {})
        queues = by_broker.pop(name, None)
        if queues is None:
            return False
        self.entries -= 1
        if not by_broker:
            del self._topics[topic]
            self.names_bytes -= len(topic.encode())
        return queues.read_count > 0 and bool(queues.perm & Perm.READ)

    def _forget_peer(self, peer: int, key: tuple[str, str]) -> None:
        keys = self._brokers_of.get(peer)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._brokers_of[peer]

    # ------------------------------------------------------------ topics

    def route(self, topic: str) -> tuple[list[BrokerGroup], dict[str, Queues]] | None:
        """Return the brokers of a topic and its queues by broker name, brokers that are gone left out; None when there is none."""
        by_broker = self._topics.get(topic)
        if not by_broker:
            return None
        groups = [self._groups[name] for name in by_broker if name in self._groups]
        return (groups, by_broker) if groups else None

    def absent(self, topic: str) -> list[str]:
        """Return the names of brokers that left with queues of a topic that were read: their messages may come back with them.

        Differs: the original forgets a broker that leaves, so that readers take the rest of a topic for the whole.
        """
        return sorted(name for name, (_, topics) in self._absent.items() if topic in topics)

    def set_permission(self, name: str, *, writable: bool) -> int:
        """Give or take the write permission of all topics of a broker name; return how many topics it has.

        Holds until the broker registers another version. Giving makes it read and write, as the original does.
        """
        topics = self._topics_of.get(name, set())
        for topic in topics:
            queues = self._topics[topic][name]
            perm = int(Perm.READ | Perm.WRITE) if writable else queues.perm & ~Perm.WRITE
            self._topics[topic][name] = msgspec.structs.replace(queues, perm=int(perm))
        return len(topics)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, of all brokers or of one cluster's."""
        for name in list(self._topics.get(topic, ())):
            if cluster is None or name in self._clusters.get(cluster, ()):
                self._topics_of.get(name, set()).discard(topic)
                self._remove_queues(topic, name)
        for left, topics in self._absent.values():
            if cluster in (None, left) and topic in topics:
                topics.remove(topic)
                self._absent_bytes -= len(topic.encode())

    def add_topic(self, topic: str, queues: Mapping[str, Queues]) -> None:
        """Enter queues of brokers that are registered; others, and what is known already, are left alone. Follows 5.x."""
        for name, counts in queues.items():
            by_broker = self._topics.get(topic)
            if name in self._groups and name not in (by_broker or {}):
                self._enter(topic, name, counts)

    # ------------------------------------------------------------ lists

    def topics(self, *, absent: bool = False) -> list[str]:
        """Return all topics; ``absent``: also those of which all brokers left."""
        return list(dict.fromkeys(chain(self._topics, *(sorted(left) for _, left in self._absent.values() if absent))))

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster's brokers, each once."""
        topics: dict[str, None] = {}
        for name in self._clusters.get(cluster, ()):
            topics |= dict.fromkeys(sorted(self._topics_of.get(name, ())))
        return list(topics)

    def topics_with_flag(self, *, unit: bool | None = None, unit_sub: bool | None = None) -> list[str]:
        """Return the topics whose first broker's flag has (or has not) the bits asked for."""
        topics = []
        for topic, by_broker in self._topics.items():
            flag = next(iter(by_broker.values())).sys_flag
            if unit in (None, bool(flag & UNIT)) and unit_sub in (None, bool(flag & UNIT_SUB)):
                topics.append(topic)
        return topics

    def clusters(self) -> dict[str, list[str]]:
        """Return broker names by cluster."""
        return {cluster: list(names) for cluster, names in self._clusters.items()}

    def groups(self) -> list[BrokerGroup]:
        """Return all brokers."""
        return list(self._groups.values())

    def group(self, name: str) -> BrokerGroup | None:
        """Return the brokers of one name."""
        return self._groups.get(name)

    @property
    def topic_count(self) -> int:
        """How many topics are known."""
        return len(self._topics)

    @property
    def live_count(self) -> int:
        """How many brokers live."""
        return len(self._live)


# ---------------------------------------------------------------- metrics

BROKERS = Metric("halfmoon_nameserver_brokers", "gauge", (), "Brokers that are registered.")
TOPICS = Metric("halfmoon_nameserver_topics", "gauge", (), "Topics that they registered.")
TOPICS_LEFT_OUT = Metric("halfmoon_nameserver_topics_left_out_total", "counter", (), "Topics beyond topics_max, left out.")
METRICS = [BROKERS, TOPICS, TOPICS_LEFT_OUT]


def samples(routes: Routes) -> Samples:
    """Yield the metrics of a name server with their values."""
    yield BROKERS, (), routes.live_count
    yield TOPICS, (), routes.topic_count
    yield TOPICS_LEFT_OUT, (), routes.left_out
