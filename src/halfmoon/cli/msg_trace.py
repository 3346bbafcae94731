"""How `halfmoon msg trace` shows a message's life to people. Asks nobody."""

from __future__ import annotations

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_table, time_text
from halfmoon.results import MessageTrace


def show_trace(found: MessageTrace) -> None:
    """Write what happened in the order of time, how far each group is, and what nobody keeps."""
    head = [f"message {found.msg_id}", f"topic {found.topic}"]
    head += [f"tag {found.tag}"] * bool(found.tag) + [f"keys {found.keys}"] * bool(found.keys)
    say(", ".join(head))
    rows = [
        (
            time_text(event.at_ms) or "?",
            event.what,
            event.who,
            event.where,
            event.detail,
            "client" if event.told_by == "client" else "",
        )
        for event in found.events
    ]
    show_table("", ("when", "what", "who", "where", "detail", "told by"), rows)
    groups = [
        (each.group, each.state, each.retries, each.where, "" if each.progress < 0 else each.progress, each.behind or "")
        for each in found.groups
    ]
    show_table("groups", ("group", "state", "given back", "where", "progress", "before it"), groups)
    for text in dict.fromkeys(found.not_told):
        say(f"not told: {text}")
