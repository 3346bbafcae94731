"""What an account needs to send a request, where access control is on: permissions on the topics and groups that it names.

Each request of the protocol table says so once (`halfmoon.wire.table.request`)::

    @request(11, "PULL_MESSAGE", needs=subscribe(topic="topic", group="consumer_group"))

A group is written as its retry topic, as the original keeps both in one table: ``%RETRY%`` in front of a resource makes it a group.
`Grants` are what an account holds, and whether that is enough. Who has which account stands in `halfmoon.broker.access`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

RETRY_PREFIX, REPLY_SUFFIX = "%RETRY%", "_REPLY_TOPIC"

DENY, ANY, PUB, SUB = 1, 2, 4, 8
"""Bits of a permission. Follows Permission (RocketMQ 4.9.7)."""

PERMISSIONS = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}
"""Permissions as they are written."""

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SENDS = frozenset((10, 310, 320))
"""Whoever has an account may publish to it by these requests, as the original lets its clients trace."""

NAME_SHOWN_MAX = 270
"""Characters of a topic or group that a refusal shows; a group with its prefix has 262 at most."""

Resource = tuple[str, int]
"""A topic, or a group as its retry topic; and `PUB` or `SUB`."""

InBody = Callable[[bytes | memoryview], list[Resource]]
"""Returns the resources that a body names. Raises PeerError for one that is none."""


class Needs(NamedTuple):
    """What a request needs. The fields are attributes of its header; one that the request does not have names no resource.

    ``signed``: it must come from a known account at least, or from a white address. ``why`` is the reason why no more is asked.
    """

    publish: tuple[str, ...] = ()
    replies: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    admin: bool = False
    in_body: InBody | None = None
    signed: bool = True
    why: str = ""

    def of(self, fields: Mapping[str, str], body: bytes | memoryview, names: Mapping[str, str]) -> list[Resource]:
        """Return the resources of one request; ``names`` gives the wire's name of each attribute. Raises PeerError.

        A message for a retry topic is one that a consumer gives back: it needs what consuming does.
        """
        found = [(topic, SUB if topic.startswith(RETRY_PREFIX) else PUB) for topic in _given(self.publish, fields, names)]
        found += [(topic, PUB) for topic in _given(self.replies, fields, names) if not topic.endswith(REPLY_SUFFIX)]
        found += [(topic, SUB) for topic in _given(self.topics, fields, names)]
        found += [(RETRY_PREFIX + group, SUB) for group in _given(self.groups, fields, names)]
        return found + self.in_body(body) if self.in_body is not None else found

    def text(self, names: Mapping[str, str]) -> str:
        """Return what the reference page says."""
        parts = [f"PUB of the topic `{names[field]}`" for field in self.publish]
        parts += [f"PUB of the topic `{names[field]}`, but for reply topics" for field in self.replies]
        parts += [f"SUB of the topic `{names[field]}`" for field in self.topics]
        parts += [f"SUB of the group `{names[field]}`" for field in self.groups]
        parts += ["SUB of each topic and group in the body"] if self.in_body is not None else []
        parts += ["admin"] if self.admin else []
        what = ", ".join(parts) or ("an account" if self.signed else "nothing")
        return f"{what}: {self.why}" if self.why else what


def _given(attributes: tuple[str, ...], fields: Mapping[str, str], names: Mapping[str, str]) -> list[str]:
    return [fields[names[attribute]] for attribute in attributes if names[attribute] in fields]


class Grants(msgspec.Struct, frozen=True, kw_only=True):
    """What an account may do. ``permissions`` are by topic, and by retry topic for groups; the defaults are for all others."""

    access_key: str
    admin: bool = False
    topic_default: int = DENY
    group_default: int = DENY
    permissions: dict[str, int] = {}

    def refusal(self, code: int, needs: Needs, resources: list[Resource]) -> str | None:
        """Return why this account may not send a request, in the original's words; None: it may.

        An administrator may use everything, unless permissions for single topics or groups are given: those then count for
        administrators too, and the defaults for all the others.
        """
        if code in SENDS and (TRACE_TOPIC, PUB) in resources:
            return None
        if needs.admin and not self.admin:
            return f"Need admin permission for request code={code}, but accessKey={self.access_key} is not"
        for name, permission in resources:
            if not self.holds(name, permission):
                return f"No default permission for {resource_text(name)}"
        return None

    def holds(self, name: str, permission: int) -> bool:
        """Whether it has a permission for a topic or group."""
        if self.admin and not self.permissions:
            return True
        own = self.permissions.get(name, self.default(name))
        if own & DENY:
            return False
        return own & (PUB | SUB) != 0 if permission & ANY else own & permission != 0

    def default(self, name: str) -> int:
        """Return the permission for topics, or groups, of which nothing else is said."""
        return self.group_default if name.startswith(RETRY_PREFIX) else self.topic_default

    def reason(self, name: str) -> str:
        """Return in words what decides about a topic or group."""
        if self.admin and not self.permissions:
            return "the account is an administrator"
        kind = "group" if name.startswith(RETRY_PREFIX) else "topic"
        if name in self.permissions:
            return f"{kind} {name.removeprefix(RETRY_PREFIX)} has {permission_text(self.permissions[name])}"
        return f"{kind} {name.removeprefix(RETRY_PREFIX)} is not named, and {kind}s have {permission_text(self.default(name))}"


def resource_text(name: str) -> str:
    """Return how the original names a topic or group."""
    name = name[:NAME_SHOWN_MAX]
    return f"group:{name[len(RETRY_PREFIX) :]}" if name.startswith(RETRY_PREFIX) else f"topic:{name}"


def permission_text(permission: int) -> str:
    """Return a permission as it is written."""
    return next(text for text, bits in PERMISSIONS.items() if bits == permission)


ADMIN = Needs(admin=True)
"""An account that is an administrator."""


def publish(topic: str, *, why: str = "") -> Needs:
    """Permission to publish to the topic in a field."""
    return Needs(publish=(topic,), why=why)


def reply(topic: str) -> Needs:
    """Nothing but an account for a reply topic, and permission to publish to any other topic in a field."""
    return Needs(replies=(topic,), why="as in 4.9, who is asked may reply")


def subscribe(*, topic: str | None = None, group: str | None = None, in_body: InBody | None = None, why: str = "") -> Needs:
    """Permission to subscribe to the topic in a field, in the group in another one, or to what a body names."""
    return Needs(topics=(topic,) if topic else (), groups=(group,) if group else (), in_body=in_body, why=why)


def account(why: str) -> Needs:
    """Any account, and the reason why that is enough."""
    return Needs(why=why)


def nothing(why: str) -> Needs:
    """Nothing at all, and the reason: no broker answers it."""
    return Needs(signed=False, why=why)


# ---------------------------------------------------------------- reasons that several requests share

LOOK = "as in 4.9, who has an account may look"
OPERATED = "as in 4.9, an operator's account need not be an administrator's"
WHOLE_LOG = "as in 4.9, an id says nothing of the topic"
LOCKED = "as in 4.9; a lock gives no message, and pulling needs SUB"
DECIDED = "as in 4.9; the half message needed PUB, but any account may decide it that names its group and places"
TO_CLIENTS = "brokers send it, and clients answer"
NAME_SERVER = "name servers know no accounts"
