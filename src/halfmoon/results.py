"""Results of administration about brokers, clients, groups and messages, as plain values without behaviour."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from halfmoon.limits import STUCK_MS
from halfmoon.model import MessageQueue

DISK_WARNING = 0.90
"""A broker refuses sends from this share of its disk on. Follows diskSpaceWarningLevelRatio."""


class StatusLimits(msgspec.Struct, frozen=True):
    """Thresholds from which on a cluster counts as degraded; None: no threshold.

    ``certificate_ms``: how long the certificates of brokers must be valid, from now on.
    ``stuck_ms``: how long the progress of a group may stand still in a queue where messages wait; ``memberless_ms``: how long they
    may wait for a group without members; ``undecidable_ms``: how old a transaction may be whose producer group has no member.
    """

    lag: int | None = None
    pending_age_ms: int | None = None
    disk: float = DISK_WARNING
    stuck_ms: int = STUCK_MS
    memberless_ms: int = 300_000
    undecidable_ms: int = 300_000
    certificate_ms: int = 14 * 86_400_000


class BrokerStatus(msgspec.Struct, frozen=True):
    """Status of a broker. Rates are those of the last seconds, as it counts them; None: not reported, or none.

    ``native`` is the version of halfmoon-native; empty: a broker of Halfmoon without it; None: another broker.
    ``certificate_expires_ms`` is the end of its certificate, ms since the epoch; None: it has no TLS, or does not report it.
    ``state`` is reports, no access (it requires an account, or refuses ours), refuses (it answered with another error) or
    no answer; ``fault`` says why in the last three. ``pair`` is the role in a pair, its epoch, and who follows how far behind.
    ``behind_bytes`` is how much of its master's log a slave lacks, ``behind_ms`` for how long it has.
    """

    name: str
    id: int
    address: str
    cluster: str
    version: str | None
    native: str | None
    uptime_ms: int | None
    in_per_second: float
    out_per_second: float
    in_today: int
    out_today: int
    transactions_pending: int | None
    oldest_pending_ms: int | None
    requests_refused: int | None
    disk_used: float | None
    fault: str | None
    certificate_expires_ms: int | None = None
    state: str = "reports"
    behind_bytes: int | None = None
    behind_ms: int | None = None
    pair: str | None = None


class MasterSwitch(msgspec.Struct, frozen=True):
    """Change of the master of a pair: addresses, the epoch of the new one, and how long there was none that was registered."""

    broker: str
    was: str
    master: str
    epoch: int
    took_ms: int


class MasterTakeover(msgspec.Struct, frozen=True):
    """Takeover of a master by its slave: addresses, and how long it took. ``was`` is empty where no master was registered."""

    broker: str
    was: str
    master: str
    took_ms: int


class SlaveStatus(msgspec.Struct, frozen=True):
    """Progress of a slave, as its master knows it. ``address`` is where its connection comes from."""

    address: str
    behind_bytes: int
    behind_ms: int
    is_in_sync: bool


class Finding(msgspec.Struct, frozen=True):
    """Condition that needs attention, and the next step.

    ``severity`` is blocked (messages wait because of it), warning (the cluster is degraded) or note. ``offset`` is that of the
    message in question, ``since_ms`` the time when it began, ``tries`` how often its delivery failed, ``reason`` the last failure.
    """

    kind: str
    what: str
    do: str
    severity: str = "blocked"
    group: str | None = None
    queue: MessageQueue | None = None
    offset: int | None = None
    since_ms: int | None = None
    tries: int | None = None
    reason: str | None = None


class Backlog(msgspec.Struct, frozen=True):
    """Lag of a group: messages, and the age of the last one consumed if it has not consumed all.

    ``redelivery`` are those of the messages that wait to be delivered again, delayed ones included; ``members`` are the consumers
    that are online. None: not reported, and then ``messages`` has no delayed ones.
    """

    messages: int
    behind_ms: int | None
    redelivery: int | None = None
    members: int | None = None


class QueueProgress(msgspec.Struct, frozen=True):
    """Progress of a group in one queue. ``last_timestamp``: store time of the last consumed message; ``member``: its holder."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    member: str | None = None

    @property
    def lag(self) -> int:
        """Return how many messages are not consumed."""
        return max(0, self.broker_offset - self.consumer_offset)


class GroupMember(msgspec.Struct, frozen=True):
    """Consumer of a group that is online. ``queues`` and ``in_process`` (messages) are None if it does not report them."""

    client_id: str
    address: str
    language: str
    version: str
    since_ms: int | None = None
    subscriptions: list[str] = []
    queues: int | None = None
    in_process: int | None = None


class GroupHealth(msgspec.Struct, frozen=True):
    """Members and progress of a group, and what needs attention. ``unasked`` members were not asked for their state.

    ``lag``, ``behind_ms`` and ``redelivery`` are those of `Backlog`. ``unmoved_ms`` is the longest time for which the progress has
    stood still in a queue where messages wait (0: there is none; None: not reported). ``dead_letters``: None if not asked for.
    """

    group: str
    model: str
    members: list[GroupMember]
    unasked: int
    queues: list[QueueProgress]
    lag: int
    unmoved_ms: int | None
    behind_ms: int | None
    redelivery: int | None
    dead_letters: int | None
    findings: list[Finding]

    @property
    def has_consumed(self) -> bool:
        """Whether the group has progress in any queue."""
        return any(queue.consumer_offset > 0 for queue in self.queues)


class ClusterStatus(msgspec.Struct, frozen=True):
    """Status of a cluster at one moment. ``health`` is healthy, degraded, down, or no access: it answers, and shows us nothing.

    ``faults`` are the texts of those ``findings`` that make it so, and the reasons why a part is not reported.
    """

    at_ms: int
    health: str
    faults: list[str]
    brokers: list[BrokerStatus]
    backlog: dict[str, Backlog]
    findings: list[Finding] = []


class TopicOverview(msgspec.Struct, frozen=True):
    """Figures of a topic at all its brokers that answered; None: one of them does not report it, or none has the topic.

    ``in_per_second`` is the mean of the last minute. ``size_bytes`` is exact up to 256 messages a queue, otherwise from a sample of
    as many. ``groups`` consume it now or have progress in it.
    """

    name: str
    messages: int | None = None
    in_per_second: float | None = None
    size_bytes: int | None = None
    groups: list[str] | None = None


class QueueTrim(msgspec.Struct, frozen=True):
    """Trim of a queue: its lowest offset before, and after."""

    queue: MessageQueue
    before: int
    then: int


class ConnectedClient(msgspec.Struct):
    """Connected client, in one of its groups. ``kind`` is producer or consumer; ``brokers`` are addresses.

    ``address`` is that of its connection to the first of them; ``version`` what RocketMQ calls the number that it sends.
    """

    kind: str
    group: str
    client_id: str
    address: str
    language: str
    version: str
    brokers: list[str]


class ClientList(msgspec.Struct):
    """Connected clients by kind, group and id, and the addresses of brokers that list the producers of a group only."""

    clients: list[ConnectedClient]
    without_producers: list[str]


class OffsetMove(msgspec.Struct, frozen=True):
    """Move of one queue of a group. ``now`` is its progress (None: it has none), ``then`` what it becomes.

    ``members`` are the consumers of the group that are online; 0: the group sleeps.
    """

    queue: MessageQueue
    now: int | None
    then: int
    members: int = 0

    @property
    def difference(self) -> int | None:
        """How many messages are skipped; below 0: how many are consumed again. None without progress."""
        return None if self.now is None else self.then - self.now


def sums_of(moves: Sequence[OffsetMove]) -> dict[str, int]:
    """Return how many messages are consumed ``again`` by moves, how many are ``skipped``, and how many members are ``online``."""
    differences = [move.difference or 0 for move in moves]
    again, skipped = -sum(min(0, each) for each in differences), sum(max(0, each) for each in differences)
    return {"again": again, "skipped": skipped, "online": max((move.members for move in moves), default=0)}


class TraceEvent(msgspec.Struct):
    """Event of a trace.

    ``at_ms``: -1, nobody kept when. ``who`` is a client, a group or a broker, ``where`` a place in a broker; ``reported_by`` is
    broker or client (a trace record that a client sent).
    """

    at_ms: int = -1
    what: str = ""
    who: str = ""
    where: str = ""
    detail: str = ""
    reported_by: str = "broker"


class GroupTrace(msgspec.Struct):
    """Progress of a consumer group with the message.

    ``state``: waits (``behind`` messages before it in its queue), consumed (progress is beyond it), waits again (given back, not
    consumed yet), dead letter, not begun (no progress in that queue). ``retries``: how often it was given back.
    """

    group: str = ""
    state: str = ""
    retries: int = 0
    progress: int = -1
    behind: int = 0
    where: str = ""


class MessageTrace(msgspec.Struct):
    """History of a message: its events in the order of time, the progress of each group, and facts that nobody keeps."""

    msg_id: str = ""
    topic: str = ""
    tag: str = ""
    keys: str = ""
    transaction: str = ""
    events: list[TraceEvent] = msgspec.field(default_factory=list)
    groups: list[GroupTrace] = msgspec.field(default_factory=list)
    not_reported: list[str] = msgspec.field(default_factory=list)
