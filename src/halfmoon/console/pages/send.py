"""Message as a form: empty or filled in from a stored one, read back, and sent."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import Any

from halfmoon import AsyncProducer, Message
from halfmoon.client.admin import AsyncAdmin
from halfmoon.console.page import Asked, Change, Done, Facts, Page
from halfmoon.console.pages.bodies import unpacking
from halfmoon.console.render import at
from halfmoon.errors import UsageError
from halfmoon.model import DEAD_LETTER_ID, DEAD_LETTER_TOPIC, RECONSUME_REASON, RESERVED_PROPERTIES, StoredMessage
from halfmoon.shown.names import is_users_topic
from halfmoon.shown.texts import read_span

GROUP = "HALFMOON_CONSOLE"
"""Producer group of the console."""
PROPERTIES_CHARS = 64 * 1024
EDITED_BYTES_MAX = 4 * 1024 * 1024
"""Largest body that a form has to edit: what brokers store by default."""
_PROTOCOL = RESERVED_PROPERTIES | {DEAD_LETTER_ID, DEAD_LETTER_TOPIC, RECONSUME_REASON}


def editable(message: StoredMessage) -> dict[str, str]:
    """Return the fields that a form can change, as it shows them.

    A body that is not text or over `EDITED_BYTES_MAX`, and properties that no line can hold, are left out.
    """
    shown = []
    for name, value in message.properties.items():
        if name not in _PROTOCOL and "=" not in name and f"{name}{value}".isprintable() and name == name.strip() != "":
            shown.append(f"{name}={value}")
    found = {"tag": message.tag or "", "keys": " ".join(message.keys), "properties": "\n".join(shown)}
    if len(message.beginning(EDITED_BYTES_MAX + 1)) > EDITED_BYTES_MAX:
        return found
    with suppress(UnicodeDecodeError):
        body = lines(message.body.decode())
        if body.replace("\n", "").replace("\t", "").isprintable():
            found["body"] = body
    return found


def lines(text: str) -> str:
    """Return a text with the line ends of forms."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def properties_of(text: str) -> dict[str, str]:
    """Return the properties that a form holds, a line each. Raises UsageError."""
    pairs = [line.split("=", 1) for line in text.split("\n") if line.strip()]
    if any(len(pair) != 2 or not pair[0].strip() for pair in pairs):
        raise UsageError("properties are lines of the form NAME=VALUE")
    return {name.strip(): value for name, value in pairs}


# ---------------------------------------------------------------- sending


async def form(asked: Asked) -> Facts:
    """Return what the form is filled in with: a topic, or the message that the query names."""
    topic, name = asked.text("topic", ""), asked.text("from", "")
    topics = [each for each in await asked.admin.topics() if is_users_topic(each)]
    facts: Facts = {"topic": topic, "origin": name, "edit": {"tag": "", "keys": "", "properties": "", "body": ""}, "topics": topics}
    if not name:
        return facts
    message = await asked.admin.find_message(name, topic or None)
    return facts | {"topic": message.topic, "edit": await unpacking(editable, message)}


async def send(asked: Asked) -> Done:
    """Send a message. A body that the form could not show is that of the message it was filled in from."""
    topic, values = asked.text("topic"), asked.values
    if not is_users_topic(topic):
        raise UsageError(f"{topic} belongs to RocketMQ itself; no message is sent to it here")
    delay_ms = read_span(delay) if (delay := asked.text("delay", "")) else 0
    if delay_ms is None:
        raise UsageError(f"delay: {delay} is not a duration (examples: 10s, 5m, 2h)")
    message = Message(
        topic, await _body(asked), tag=asked.text("tag", "") or None, keys=values.get("keys", "").split(),
        properties=properties_of(lines(asked.text("properties", "", length_max=PROPERTIES_CHARS))), delay=delay_ms / 1000 or None,
    )  # fmt: skip
    async with AsyncProducer(group=GROUP, **await _settings(asked.admin, topic)) as producer:
        sent = await producer.send(message)
    when = f", to be delivered in {delay}" if delay else ""
    return Done(f"The message is stored in {topic}{when}: {sent.msg_id}", at("/messages", topic=topic))


async def _settings(admin: AsyncAdmin, topic: str) -> dict[str, Any]:
    """Return the settings of the console's client for a producer. Raises UsageError: it would sign for other brokers."""
    settings = {field.name: getattr(admin.settings, field.name) for field in fields(admin.settings)}
    if signed := settings.pop("signed_addresses"):
        route = await admin.topic_route(topic)
        brokers = {address for data in route.broker_datas for address in data.broker_addrs.values()}
        if others := sorted(brokers.difference(signed.split(";"))):
            raise UsageError(f"the console signs for its own broker only, and {topic} is also at {others[0]}: use halfmoon produce")
    return settings


async def _body(asked: Asked) -> bytes:
    if "body" in asked.values:
        return lines(asked.values["body"]).encode()
    message = await asked.admin.find_message(asked.text("from"), asked.text("origin_topic"))
    return await unpacking(lambda: message.body)


PAGES = (
    Page("/messages/send", "Send a message", "send.html", form, under="/messages", operators=True),
    Change("/messages/send", send, ("topic", "from", "tag", "keys", "delay")),
)
