"""Permissions that a request needs where access control is on, on the topics and groups that it names.

Each request of the protocol table says so once (`halfmoon.wire.table.request`)::

    @request(11, "PULL_MESSAGE", needs=subscribe(topic="topic", group="consumer_group"))

A group is written as its retry topic, as the original keeps both in one table: ``%RETRY%`` in front of a resource makes it a group.
`Grants` are what an account holds, and whether that is enough. Who has which account stands in `halfmoon.broker.access`.

Differs: the original takes rights from the header alone. Here what decides is the object: the topic of the record that a request
names by its place, the queues that a lock is for, the group of a half message. ``rocketmq`` keeps what 4.9 asks, for
``acl_mode=ROCKETMQ``. Topics of the protocol hold messages of other topics, so that no default is a right to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from halfmoon.shown.names import is_users_topic

RETRY_PREFIX, DEAD_PREFIX, REPLY_SUFFIX = "%RETRY%", "%DLQ%", "_REPLY_TOPIC"

DENY, ANY, PUB, SUB = 1, 2, 4, 8
"""Bits of a permission. Follows Permission (RocketMQ 4.9.7)."""

PERMISSIONS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
"""Permissions as they are written."""

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
"""Every account may publish to it by ordinary sends, as the original lets its clients trace."""

NAME_SHOWN_MAX = 270
"""Characters of a topic or group that a refusal shows; a group with its prefix has 262 at most."""

Resource = tuple[str, int]
"""A topic, or a group as its retry topic; and `PUB` or `SUB`."""

InBody = Callable[[bytes | memoryview], list[Resource]]
"""Returns the resources that a body names. Raises PeerError for one that is none."""

TopicAt = Callable[[str], str | None]
"""Returns the topic of the message at a place of the log, given as a number or as the broker's id; None: there is no message."""


class Needs(NamedTuple):
    """Needs of a request. The fields are attributes of its header; one that the request does not have names no resource.

    Any permission is enough for the topics ``looks`` and the producer groups ``produces``, SUB for the groups ``members``; blank
    names in these stand for all. ``record`` is the place of a message whose topic counts, with what is needed of it. ``signed``: it
    must come from a known account at least, or from a white address; ``registers``: it changes what a name server tells. ``why`` is
    the reason why no more is asked. ``rocketmq`` is what 4.9 asks, where that is something else. ``operated``: operators send it,
    to change something or to see accounts, so that servers log it. ``traces``: an account is enough for the topic of traces.
    """

    publish: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    produces: tuple[str, ...] = ()
    record: tuple[str, int] | None = None
    admin: bool = False
    in_body: InBody | None = None
    signed: bool = True
    registers: bool = False
    why: str = ""
    rocketmq: Needs | None = None
    operated: bool = False
    traces: bool = False

    def of(
        self, fields: Mapping[str, str], body: bytes | memoryview, names: Mapping[str, str], topic_at: TopicAt | None = None
    ) -> list[Resource]:
        """Return the resources of one request; ``names`` gives the wire's name of each attribute. Raises PeerError.

        A message for a retry topic is one that a consumer gives back: it needs what consuming does. A place without a message
        names nothing: the request finds none either.
        """
        found = [(topic, SUB if topic.startswith(RETRY_PREFIX) else PUB) for topic in _given(self.publish, fields, names)]
        found += [(topic, PUB) for topic in _given(self.replies, fields, names) if not topic.endswith(REPLY_SUFFIX)]
        found += [(topic, SUB) for topic in _given(self.topics, fields, names)]
        found += [(RETRY_PREFIX + group, SUB) for group in _given(self.groups, fields, names)]
        found += [(topic, ANY) for topic in _given(self.looks, fields, names) if topic]
        found += [(RETRY_PREFIX + group, SUB) for group in _given(self.members, fields, names) if group]
        found += [(RETRY_PREFIX + group, ANY) for group in _given(self.produces, fields, names) if group]
        if self.record is not None and topic_at is not None:
            place, permission = self.record
            found += [(topic, permission) for text in _given((place,), fields, names) if (topic := topic_at(text)) is not None]
        return found + self.in_body(body) if self.in_body is not None else found

    def text(self, names: Mapping[str, str]) -> str:
        """Return what the reference page says."""
        parts = [f"PUB of the topic `{names[field]}`" for field in self.publish]
        parts += [f"PUB of the topic `{names[field]}`, but for reply topics" for field in self.replies]
        parts += [f"SUB of the topic `{names[field]}`" for field in self.topics]
        parts += [f"PUB or SUB of the topic `{names[field]}`" for field in self.looks]
        parts += [f"SUB of the group `{names[field]}`" for field in (*self.groups, *self.members)]
        parts += [f"PUB or SUB of the group `{names[field]}`" for field in self.produces]
        if self.record is not None:
            parts += [f"{permission_text(self.record[1])} of the topic of the message at `{names[self.record[0]]}`"]
        parts += ["SUB of each topic and group in the body"] if self.in_body is not None else []
        parts += ["admin"] if self.admin else []
        parts += ["the right to register"] if self.registers else []
        what = ", ".join(parts) or ("an account" if self.signed else "nothing")
        return f"{what}: {self.why}" if self.why else what

    def but_in(self, rocketmq: Needs) -> Needs:
        """Return the same needs, with those that 4.9 asks instead."""
        return self._replace(rocketmq=rocketmq)

    def by_operators(self) -> Needs:
        """Return the same needs, logged as what operators do."""
        return self._replace(operated=True)


def _given(attributes: tuple[str, ...], fields: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    return [fields[names[attribute]] for attribute in attributes if names[attribute] in fields]


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of an account. ``permissions`` are by topic, and by retry topic for groups; the defaults are for all others."""

    access_key: str
    admin: bool = False
    topic_default: int = DENY
    group_default: int = DENY
    permissions: dict[str, int] = {}

    def refusal(self, code: int, needs: Needs, resources: list[Resource], *, rocketmq: bool = False) -> str | None:
        """Return why this account may not send a request, in the original's words; None: it may. ``rocketmq``: by 4.9's rules.

        An administrator may use everything, unless permissions for single topics or groups are given: those then count for
        administrators too, and the defaults for all the others.
        """
        if needs.traces and (TRACE_TOPIC, PUB) in resources:
            return None
        if needs.admin and not self.admin:
            return f"Need admin permission for request code={code}, but accessKey={self.access_key} is not"
        for name, permission in resources:
            if not self.holds(name, permission, rocketmq=rocketmq):
                return f"No default permission for {resource_text(name)}"
        return None

    def holds(self, name: str, permission: int, *, rocketmq: bool = False) -> bool:
        """Whether it has a permission for a topic or group."""
        if self.admin and not self.permissions:
            return True
        own = self.permissions.get(name)
        if own is None:
            own = self.default(name) if rocketmq else self.unnamed(name)
        if own & DENY:
            return False
        return own & (PUB | SUB) != 0 if permission & ANY else own & permission != 0

    def default(self, name: str) -> int:
        """Return the permission for topics, or groups, of which nothing else is said."""
        return self.group_default if name.startswith(RETRY_PREFIX) else self.topic_default

    def unnamed(self, name: str) -> int:
        """Return the permission for a topic or group that has none of its own: the default's, but for topics of the protocol.

        The topic of a group's dead letters is the group's, as its retry topic is. All others need a permission by name.
        """
        if name.startswith(DEAD_PREFIX):
            retry = RETRY_PREFIX + name[len(DEAD_PREFIX) :]
            return self.permissions.get(retry, self.group_default)
        return self.default(name) if name.startswith(RETRY_PREFIX) or is_users_topic(name) else DENY

    def reason(self, name: str) -> str:
        """Return in words what decides about a topic or group."""
        if self.admin and not self.permissions:
            return "the account is an administrator"
        kind, shown = "group" if name.startswith(RETRY_PREFIX) else "topic", name.removeprefix(RETRY_PREFIX)
        if name in self.permissions:
            return f"{kind} {shown} has {permission_text(self.permissions[name])}"
        if name.startswith(DEAD_PREFIX):
            return f"topic {name} is not named: {self.reason(RETRY_PREFIX + name[len(DEAD_PREFIX) :])}"
        if self.unnamed(name) != self.default(name):
            return f"topic {name} is not named, and topics of the protocol need that (but for acl_mode=ROCKETMQ)"
        return f"{kind} {shown} is not named, and {kind}s have {permission_text(self.default(name))}"


def resource_text(name: str) -> str:
    """Return how the original names a topic or group."""
    name = name[:NAME_SHOWN_MAX]
    return f"group:{name[len(RETRY_PREFIX) :]}" if name.startswith(RETRY_PREFIX) else f"topic:{name}"


def permission_text(permission: int) -> str:
    """Return a permission as it is written."""
    return next(text for text, bits in PERMISSIONS.items() if bits == permission)


ADMIN = Needs(admin=True, operated=True)
"""An account that is an administrator."""

ADMIN_LOOKS = Needs(admin=True)
"""The same, for what changes nothing."""


def publish(topic: str, *, why: str = "", traces: bool = False) -> Needs:
    """Permission to publish to the topic in a field."""
    return Needs(publish=(topic,), why=why, traces=traces)


def reply(topic: str) -> Needs:
    """Nothing but an account for a reply topic, and permission to publish to any other topic in a field."""
    return Needs(replies=(topic,), why="as in 4.9, who is asked may reply")


def subscribe(*, topic: str | None = None, group: str | None = None, in_body: InBody | None = None, why: str = "") -> Needs:
    """Permission to subscribe to the topic in a field, in the group in another one, or to what a body names."""
    return Needs(topics=(topic,) if topic else (), groups=(group,) if group else (), in_body=in_body, why=why)


def look(*, topic: str | None = None, group: str | None = None, produces: str | None = None) -> Needs:
    """Permission to publish or to subscribe to the topic in a field, to subscribe in the group in another one.

    For what tells figures and names, but no message. 4.9 asks for an account alone.
    """
    topics, groups, produced = ((field,) if field else () for field in (topic, group, produces))
    return Needs(looks=topics, members=groups, produces=produced).but_in(account(LOOK))


def stored(place: str, permission: int, *, group: str | None = None, produces: str | None = None) -> Needs:
    """Permission for the topic of the message whose place is in a field, and in the group in another one."""
    return Needs(record=(place, permission), groups=(group,) if group else (), produces=(produces,) if produces else ())


def account(why: str) -> Needs:
    """Any account, and the reason why that is enough."""
    return Needs(why=why)


def nothing(why: str) -> Needs:
    """Nothing at all, and the reason: no broker answers it."""
    return Needs(signed=False, why=why)


# ---------------------------------------------------------------- reasons that several requests share

LOOK = "figures and names, and no message"
OPERATED = "an operator's account need not be an administrator's"
WHOLE_LOG = "an id says nothing of the topic"
LOCKED = "a lock gives no message, and pulling needs SUB"
DECIDED = "any account decides that names the group and the places"
BY_ACCOUNT = Needs(why=OPERATED)
TO_CLIENTS = "brokers send it, and clients answer"
NAME_SERVER = "routes and names are no secrets"
REGISTERS = Needs(signed=False, registers=True)
"""Needs of a request that changes what a name server tells."""
ROUTES_OPERATED = REGISTERS.by_operators()
"""The same, for what brokers do not send by themselves every few seconds."""
