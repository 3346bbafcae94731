"""Connected clients: producers and consumers by group, and the subscriptions of each consumer group.

Learns from heartbeats, unregistering and lost connections. A client says itself who it is: while it is connected, its id belongs to
its account, and no other account may go by it. Follows ConsumerManager, ConsumerGroupInfo and ProducerManager
(RocketMQ 4.9.8). Saves nothing and sends nothing: it returns the groups whose members are to be notified (code 40).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from zlib import crc32

import msgspec

from halfmoon.broker.names import RETRY_PREFIX
from halfmoon.errors import BrokerError, SystemBusy
from halfmoon.hot import tag_hash
from halfmoon.instant import Steady
from halfmoon.model import ConsumeType, MessageModel, Subscription
from halfmoon.wire.bodies import ConsumeFromWhere
from halfmoon.wire.codes import UNLIKE
from halfmoon.wire.peer import Peer

MEMBERS_MAX = 10_000
"""Members of one group, so that heartbeats cannot fill the memory; one over it is refused."""
GROUPS_OF_PEER_MAX = 1_000
"""Groups that one connection may belong to, for the same reason."""
SUBSCRIPTION_BYTES_MAX = 32 * 1024 * 1024
"""Memory of all subscriptions together, for the same reason; an ordinary one takes some 300 bytes."""

_SHOWN_MAX, _EXAMPLES = 200, 4


class GroupMember(msgspec.Struct):
    """One connection in one group."""

    peer: Peer
    client_id: str
    language: int
    version: int
    heard_at: Steady
    account: str = ""
    """The access key of its account; empty: it needs none."""
    short_hash: int = 0
    """24 bits of the hash of the client id: the transaction index remembers by them who was asked."""

    def __post_init__(self) -> None:
        self.short_hash = tag_hash(self.client_id.encode()) & 0xFFFFFF


class ConsumerGroup(msgspec.Struct):
    """The present members of a consumer group, and the subscriptions of the newest heartbeat."""

    name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    members: dict[int, GroupMember] = {}
    subscriptions: dict[str, Subscription] = {}
    size_bytes: int = 0
    """About how much memory the subscriptions take."""
    wanted: dict[int, str] = {}
    """Subscriptions of each member as text (`_shown`), by connection."""
    alike: dict[str, int] = {}
    """How many members subscribe to each of these."""
    warned: bool = False

    def told(self, number: int, shown: str | None) -> None:
        """Note what a member subscribes to; None: it leaves."""
        before = self.wanted.pop(number, None)
        if before is not None and self.alike.get(before, 0) > 1:
            self.alike[before] -= 1
        elif before is not None:
            self.alike.pop(before, None)
        if shown is not None:
            self.wanted[number] = shown
            self.alike[shown] = self.alike.get(shown, 0) + 1

    def difference(self) -> str:
        """Return members that do not subscribe alike, one of each kind up to four, and to what; empty where all do."""
        if len(self.alike) < 2:
            return ""
        examples: dict[str, str] = {}
        for number, shown in self.wanted.items():
            if shown not in examples and number in self.members:
                examples[shown] = self.members[number].client_id
                if len(examples) == min(len(self.alike), _EXAMPLES):
                    break
        listed = "; ".join(f"{client_id} to {shown}" for shown, client_id in examples.items())
        return f"members of group {self.name} {UNLIKE}, but subscribe {listed}"

    def client_ids(self) -> list[str]:
        """Return the ids of the members, each once."""
        return sorted({member.client_id for member in self.members.values()})


class Clients:
    """Producers and consumers of one broker."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[int, GroupMember]] = {}
        self.epoch = 0
        """Counts changes of membership and subscriptions, so that what was derived from them can be checked cheaply."""
        self._subscription_bytes = 0
        self._producers_by_id: dict[str, GroupMember] = {}
        self._ids: dict[str, dict[int, str]] = {}
        """The accounts of the connections that go by a client id, by connection."""
        self._ids_of_peer: dict[int, set[str]] = {}
        self._of_peer: dict[int, set[tuple[str, str]]] = {}  # peer number -> ("producer" or "consumer", group)

    # ------------------------------------------------------------ client ids

    def claim(self, member: GroupMember, *, produces: bool) -> None:
        """Let a connection go by its client id; where it ``produces``, replies to that id's requests are pushed to it.

        Raises BrokerError: the id belongs to another account; SystemBusy: the connection goes by too many.
        """
        self.check_id(member.client_id, member.account, member.peer.number)
        ids = self._ids_of_peer.setdefault(member.peer.number, set())
        if member.client_id not in ids and len(ids) >= GROUPS_OF_PEER_MAX:
            raise SystemBusy(f"one connection goes by at most {GROUPS_OF_PEER_MAX} client ids")
        ids.add(member.client_id)
        self._ids.setdefault(member.client_id, {})[member.peer.number] = member.account
        if produces:
            self._producers_by_id[member.client_id] = member

    def check_id(self, client_id: str, account: str, peer: int) -> None:
        """Raise BrokerError (1) for a client id by which a connected client of another account goes."""
        if any(other != account for number, other in self._ids.get(client_id, {}).items() if number != peer):
            raise BrokerError(f"the client id {client_id:.200} belongs to a connected client of another account")

    def _release(self, peer: int) -> None:
        for client_id in self._ids_of_peer.pop(peer, ()):
            self._ids[client_id].pop(peer, None)
            if not self._ids[client_id]:
                del self._ids[client_id]
            self._forget_producer(client_id, peer)

    def _forget_producer(self, client_id: str, peer: int) -> None:
        known = self._producers_by_id.get(client_id)
        if known is not None and known.peer.number == peer:  # else the client has connected anew
            del self._producers_by_id[client_id]

    # ------------------------------------------------------------ joining

    def producer(self, group: str, member: GroupMember) -> bool:
        """Add or refresh a producer; return False when a bound is reached."""
        if not self._admit(self.producers.get(group, {}), member.peer.number, ("producer", group)):
            return False
        self.producers.setdefault(group, {})[member.peer.number] = member
        return True

    def consumer(
        self, group: str, member: GroupMember, consume_type: ConsumeType, model: MessageModel, consume_from: ConsumeFromWhere,
        subscriptions: Iterable[Subscription],
    ) -> bool:  # fmt: skip
        """Add or refresh a consumer with all its subscriptions; return whether the group changed in a way that members must know.

        A new connection, a new topic and a topic left out count as changes; a newer version of a known subscription does not.
        Topics that this heartbeat leaves out are dropped from the group, even when another member still names them: members of
        one group must subscribe alike. Follows ConsumerGroupInfo.updateSubscription.

        Raises:
            SystemBusy: the group, the connection or all subscriptions together are at their bound; nothing changed.
        """
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        info = self.consumers.get(group) or ConsumerGroup(group)
        size_bytes = sum(map(_size_bytes, wanted.values()))
        if self._subscription_bytes + size_bytes - info.size_bytes > SUBSCRIPTION_BYTES_MAX:
            raise SystemBusy(f"all subscriptions together would be over {SUBSCRIPTION_BYTES_MAX} bytes")
        if not self._admit(info.members, member.peer.number, ("consumer", group)):
            raise SystemBusy(f"consumer group {group} or its connection is at its bound of members")
        self._subscription_bytes += size_bytes - info.size_bytes
        info.size_bytes = size_bytes
        self.consumers[group] = info
        changed = member.peer.number not in info.members
        info.members[member.peer.number] = member
        info.told(member.peer.number, _shown(wanted.values()))
        info.consume_type, info.model, info.consume_from = consume_type, model, consume_from
        for topic, subscription in wanted.items():
            known = info.subscriptions.get(topic)
            if known is None:
                info.subscriptions[topic] = subscription
                changed = True
            elif subscription.version > known.version:
                info.subscriptions[topic] = subscription
                self.epoch += 1
        for topic in [topic for topic in info.subscriptions if topic not in wanted]:
            del info.subscriptions[topic]
            changed = True
        if changed:
            self.epoch += 1
        return changed

    def _admit(self, members: dict[int, GroupMember], number: int, place: tuple[str, str]) -> bool:
        places = self._of_peer.setdefault(number, set())
        if place not in places and (len(places) >= GROUPS_OF_PEER_MAX or len(members) >= MEMBERS_MAX):
            return False
        places.add(place)
        return True

    # ------------------------------------------------------------ leaving

    def lost(self, peer: int) -> list[str]:
        """Forget a connection; return the consumer groups whose members changed."""
        self._release(peer)
        return [group for kind, group in sorted(self._of_peer.pop(peer, ())) if self._leave(kind, group, peer)]

    def unregister(self, peer: int, producer_group: str | None, consumer_group: str | None) -> list[str]:
        """Take a connection out of the groups named; return the consumer groups whose members changed."""
        changed = []
        for kind, group in (("producer", producer_group), ("consumer", consumer_group)):
            if group and (kind, group) in self._of_peer.get(peer, ()):
                self._of_peer[peer].discard((kind, group))
                if self._leave(kind, group, peer):
                    changed.append(group)
        return changed

    def expire(self, before: Steady) -> tuple[list[str], list[Peer]]:
        """Forget members not heard from since ``before``; return the groups that changed and the connections to close."""
        changed: list[str] = []
        silent: dict[int, Peer] = {}
        for kind, group, member in list(self._all_members()):
            if member.heard_at < before:
                silent[member.peer.number] = member.peer
                self._of_peer.get(member.peer.number, set()).discard((kind, group))
                if self._leave(kind, group, member.peer.number):
                    changed.append(group)
        return changed, list(silent.values())

    def _all_members(self) -> Iterator[tuple[str, str, GroupMember]]:
        for group, members in self.producers.items():
            for member in members.values():
                yield "producer", group, member
        for group, info in self.consumers.items():
            for member in info.members.values():
                yield "consumer", group, member

    def _leave(self, kind: str, group: str, peer: int) -> bool:
        if kind == "producer":
            members = self.producers.get(group, {})
            left = members.pop(peer, None)
            if left is not None and not self._produces(peer):
                self._forget_producer(left.client_id, peer)
            if not members:
                self.producers.pop(group, None)
            return False
        info = self.consumers.get(group)
        if info is None or info.members.pop(peer, None) is None:
            return False
        info.told(peer, None)
        if not info.members:
            del self.consumers[group]
            self._subscription_bytes -= info.size_bytes
        self.epoch += 1
        return True

    def _produces(self, peer: int) -> bool:
        """Whether a connection is still in a producer group. `lost` has forgotten all of them before it leaves the first."""
        return any(kind == "producer" for kind, _ in self._of_peer.get(peer, ()))

    # ------------------------------------------------------------ asking

    def producer_by_id(self, client_id: str) -> GroupMember | None:
        """Return the newest connection of a producer's client, whatever its groups."""
        return self._producers_by_id.get(client_id)

    def group(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group that has members now."""
        return self.consumers.get(group)

    def member(self, group: str, client_id: str) -> GroupMember | None:
        """Return the member of a consumer group with this client id."""
        info = self.consumers.get(group)
        return next((m for m in info.members.values() if m.client_id == client_id), None) if info is not None else None

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the consumer groups that subscribe to a topic now."""
        return sorted(name for name, info in self.consumers.items() if topic in info.subscriptions)


def _shown(wanted: Iterable[Subscription]) -> str:
    """Return subscriptions for people, the retry topic left out; long ones are cut, and told apart by their sum."""
    texts = sorted(f"{each.topic} ({each.expression})" for each in wanted if not each.topic.startswith(RETRY_PREFIX))
    shown = ", ".join(texts) or "nothing"
    return shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}… (sum {crc32(shown.encode()):08x})"


def _size_bytes(subscription: Subscription) -> int:
    texts = sum(map(len, subscription.tags)) + len(subscription.expression) + len(subscription.topic)
    return 300 + texts + 100 * (len(subscription.tags) + len(subscription.codes))
