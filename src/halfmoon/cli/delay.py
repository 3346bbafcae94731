"""`halfmoon delay`: lists and cancels delayed messages."""

from __future__ import annotations

from typing import Annotated

import halfmoon
from halfmoon.cli.shared.app import App, Argument
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, Limit, NameServer, OneTopic, Topic, Yes, confirm
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.shown.texts import facts_of, span_text, time_text

app = App(
    help="List and cancel delayed messages.\n\nExample: halfmoon delay list --topic orders",
)


@app.command("list", finds=True)
def list_(
    topic: OneTopic = None,
    limit: Limit = 100,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List delayed messages, the next one first, and count them.

    Example: halfmoon delay list --topic orders --limit 10
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        waiting = admin.delayed_messages(topic=topic, count_max=limit)
    if as_json:
        by_level = {str(level): count for level, count in waiting.by_level.items()}
        show_json({"messages": [facts_of(message) for message in waiting.messages], "by_level": by_level}, rows="messages")
        return len(waiting.messages)
    rows = [
        (
            time_text(message.due_ms), span_text(max(0, message.due_ms - waiting.now_ms)), message.level or "-", message.topic,
            message.tag, message.keys, message.msg_id or message.offset_msg_id, message.broker,
        )
        for message in waiting.messages
    ]  # fmt: skip
    show_table("waiting", ("due", "in", "level", "topic", "tag", "keys", "id", "broker"), rows)
    total = sum(waiting.by_level.values())
    say(f"{total:,} wait in all, {waiting.by_level.get(0, 0):,} of them for a point in time")
    return len(waiting.messages)


@app.command()
def cancel(
    name: Annotated[str, Argument(metavar="ID", help="The message id, or the recall handle from its send.")],
    topic: Topic,
    yes: Yes = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Cancel a message that is scheduled for a point in time; it is never delivered. Exit code 1 if there is none (any more).

    A message that waits on a delay level cannot be cancelled.

    Example: halfmoon delay cancel --topic orders 7F0000010A2B18B4AAC2...
    """
    confirm(f"cancel the delayed message {name} to topic {topic}, never to be delivered", yes=yes)
    with halfmoon.Admin(nameserver=nameserver) as admin:
        msg_id = admin.cancel_delayed(topic, name)
    if as_json:
        show_json({"cancelled": msg_id})
    else:
        say(f"cancelled {msg_id}")
