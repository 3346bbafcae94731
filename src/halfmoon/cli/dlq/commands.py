"""`halfmoon dlq`: list dead letters, count them by reason, show one in full, and send them again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click

import halfmoon
from halfmoon.cli.dlq.report import report
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.bodies import BodyBudget
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, Limit, NameServer, OneGroup, Yes, check_terminal, confirm, time_ms
from halfmoon.cli.shared.output import body_text, show_json, show_table
from halfmoon.errors import HalfmoonError, text_of
from halfmoon.model import DeadLetter
from halfmoon.shown.texts import TIME_FORMS, count_text, time_text

app = App(
    help="List, show and replay dead letters.\n\nExample: halfmoon dlq list --since 1d",
)

ALL_MAX = 100_000
"""Dead letters that one `replay` sends."""
BODY_WHOLE = 4000

To = Annotated[
    str | None,
    Option("--to", metavar="TOPIC", help="Send to this topic and all its groups; default: to its consumer group only."),
]
Edits = Annotated[
    list[str] | None,
    Option(
        "--edit", metavar="NAME=VALUE", help="Change tag, keys, body (@FILE: from a file) or a property; an empty value removes it."
    ),
]


@dataclass(frozen=True, kw_only=True)
class DeadLetterSelection:
    """Selection of dead letters by options. ``group`` is not counted as narrowing."""

    group: OneGroup = None
    since: Annotated[str | None, Option("--since", metavar="TIME", help=f"Dead-lettered at or after this time: {TIME_FORMS}.")] = (
        None
    )
    until: Annotated[str | None, Option("--until", metavar="TIME", help="Dead-lettered before this time.")] = None
    key: Annotated[str | None, Option("--key", "-k", metavar="KEY", help="Only with this key or message id.")] = None
    reason: Annotated[
        str | None, Option("--reason", metavar="TEXT", help="Only if the reason contains this text, ignoring case.")
    ] = None
    tags: Annotated[str, Option("--filter", metavar="TAGS", help="Tags separated by '||'; * for all.")] = "*"
    sql: Annotated[str | None, Option("--sql", metavar="EXPRESSION", help="An SQL92 expression over the properties.")] = None

    def check_beside(self, names: list[str]) -> None:
        """Raise click.BadParameter unless either ids or options select dead letters."""
        if (names and self.narrows) or not (names or self.narrows or self.group):
            raise click.BadParameter("give IDs, or choose by --group, --since, --until, --key, --reason, --filter or --sql")

    @property
    def narrows(self) -> bool:
        """Whether any option but the group was given."""
        return self.tags != "*" or any(text is not None for text in (self.since, self.until, self.key, self.reason, self.sql))

    def of(self, admin: halfmoon.Admin, count_max: int) -> list[DeadLetter]:
        """Ask for the dead letters."""
        if self.sql is not None and self.tags != "*":
            raise click.BadParameter("give --filter or --sql, not both")
        return admin.dead_letters(
            self.group,
            begin_ms=time_ms(self.since) if self.since else 0,
            end_ms=time_ms(self.until) if self.until else None,
            key=self.key,
            reason=self.reason,
            expression=self.tags if self.sql is None else self.sql,
            expression_type="TAG" if self.sql is None else "SQL92",
            count_max=count_max,
        )


@app.command("list", finds=True)
def list_(
    selection: DeadLetterSelection,
    limit: Limit = 100,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List dead letters, oldest first, and whether they were replayed.

    Example: halfmoon dlq list --group C_mail --since 1d --reason timeout
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        letters = selection.of(admin, limit + 1)
        shown, more = letters[:limit], len(letters) > limit
        facts = [_facts(admin, letter) for letter in shown]
    if as_json:
        show_json({"dead_letters": facts, "more": more}, rows="dead_letters")
    else:
        names = ("dead-lettered", "group", "topic", "tag", "keys", "tries", "reason", "replayed", "id")
        show_table("dead letters", names, [_row(letter, of_letter) for letter, of_letter in zip(shown, facts)])
        if more:
            say(f"there are more than these {limit:,}: give --limit, or --since")
    return len(shown)


@app.command()
def show(
    name: Annotated[str, Argument(metavar="ID", help="The id that `dlq list` shows; with --group, also the message id.")],
    group: OneGroup = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show one dead letter in full.

    Example: halfmoon dlq show 7F00000100002A9F0000000000001000
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        letter = admin.dead_letter(name, group)
        facts = _facts(admin, letter)
    if as_json:
        show_json({**facts, "message": BodyBudget().facts(letter.message)})
        return
    for line in ("dead_lettered_ms", "born_ms"):
        facts[line] = time_text(facts[line])
    facts["tries"] = "not known: it was skipped" if letter.tries is None else letter.tries
    facts["replayed_to"] = ", ".join(facts["replayed_to"]) or "nowhere"
    facts["properties"] = " ".join(f"{name}={value}" for name, value in letter.message.properties.items())
    facts["body"] = body_text(letter.message.beginning(4 * BODY_WHOLE), BODY_WHOLE)
    for line, value in facts.items():
        say(f"{line.removesuffix('_ms').replace('_', ' '):<16} {value!s}".rstrip())


@app.command(finds=True)
def replay(
    names: Annotated[
        list[str] | None, Argument(metavar="[ID]...", help="Ids that `dlq list` shows; without any, the options select.")
    ] = None,
    *,
    selection: DeadLetterSelection,
    to: To = None,
    edit: Edits = None,
    again: Annotated[bool, Option("--again", help="Also those that were already replayed to that topic.")] = False,
    rate: Annotated[float | None, Option("--rate", min=0.001, metavar="N", help="Send at most N messages a second.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    yes: Yes = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """Send dead letters again, each once: those already replayed are skipped. Exit code 1 if one could not be sent.

    Example: halfmoon dlq replay --group C_mail --reason timeout --dry-run
    """
    selection.check_beside(names or [])
    changes = _changes(edit or [])
    check_terminal("send dead letters again", yes=yes or dry_run)
    with halfmoon.Admin(nameserver=nameserver) as admin:
        named = [admin.dead_letter(name, selection.group) for name in dict.fromkeys(names or ())]
        letters = named or selection.of(admin, ALL_MAX)
        if letters:
            where = f"topic {to} and all its groups" if to else "the groups that gave them up"
            confirm(f"send {count_text(len(letters), 'dead letter')} again, to {where}", yes=yes or dry_run)
        rows = [
            _replayed(admin, letter, to, changes, again=again, dry_run=dry_run)
            for letter in paced(letters, None if dry_run else rate)
        ]
    if as_json:
        show_json({"dry_run": dry_run, "replays": rows}, rows="replays")
    else:
        _show_replays(rows)
    if any(row["outcome"].startswith("failed") for row in rows):
        raise click.exceptions.Exit(1)
    return len(rows)


app.command(finds=True)(report)


def _facts(admin: halfmoon.Admin, letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.offset_msg_id,
        "group": letter.group,
        "topic": letter.topic,
        "msg_id": letter.message.msg_id,
        "origin_id": letter.origin_msg_id,
        "tag": letter.message.tag or "",
        "keys": " ".join(letter.message.keys),
        "tries": letter.tries,
        "reason": letter.reason,
        "dead_lettered_ms": letter.dead_lettered_ms,
        "born_ms": letter.message.born_ms,
        "broker": letter.message.broker_name,
        "replayed_to": [topic for topic in letter.targets() if admin.replays(letter, topic)],
        "replay_of": letter.replay_of,
    }


def _row(letter: DeadLetter, facts: dict[str, Any]) -> list[object]:
    replayed = " ".join("group" if topic.startswith("%RETRY%") else topic for topic in facts["replayed_to"]) or "no"
    tries = "skipped" if letter.tries is None else letter.tries
    why = body_text(letter.reason.encode(), 60) or "not reported"
    return [
        time_text(letter.dead_lettered_ms), letter.group, letter.topic, facts["tag"], facts["keys"], tries, why, replayed,
        letter.offset_msg_id,
    ]  # fmt: skip


# ---------------------------------------------------------------- replaying


def paced(letters: Iterable[DeadLetter], rate: float | None) -> Iterator[DeadLetter]:
    """Yield dead letters, at most ``rate`` a second. Time that a send lost is not made up for, so that the rate stays a maximum."""
    due = 0.0
    for letter in letters:
        if rate is not None:
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + 1 / rate
        yield letter


def _changes(texts: list[str]) -> dict[str, Any]:
    """Return the changes of ``NAME=VALUE`` texts, as `Admin.replay_dead_letter` takes it. Raises click.BadParameter."""
    changes: dict[str, Any] = {"properties": {}}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"--edit {text}: must be of the form NAME=VALUE")
        if name in ("tag", "keys"):
            changes[name] = value
        elif name == "body":
            changes["body"] = _body(value)
        else:
            changes["properties"][name] = value or None
    return changes


def _body(value: str) -> bytes:
    if not value.startswith("@"):
        return value.encode()
    try:
        return Path(value[1:]).read_bytes()
    except OSError as exc:
        raise click.BadParameter(f"--edit body: {value[1:]} cannot be read: {exc.strerror}") from None


def _show_replays(rows: list[dict[str, Any]]) -> None:
    if len(rows) == ALL_MAX:
        say(f"there may be more than these {ALL_MAX:,}: give --since")
    show_table("replays", ("id", "group", "keys", "to", "outcome"), [list(row.values())[:5] for row in rows])


def _replayed(
    admin: halfmoon.Admin, letter: DeadLetter, to: str | None, changes: dict[str, Any], *, again: bool, dry_run: bool
) -> dict[str, Any]:
    """Replay a dead letter and return the outcome: one that fails stops no other."""
    facts = {"id": letter.offset_msg_id, "group": letter.group, "keys": " ".join(letter.message.keys), "to": ""}
    try:
        replayed = admin.replay_dead_letter(letter, to=to, again=again, dry_run=dry_run, **changes)
    except HalfmoonError as exc:
        return {**facts, "outcome": f"failed: {text_of(exc)}", "copy": None}
    outcome = "replayed before" if replayed.already else "would be sent" if dry_run else "sent"
    return {**facts, "to": replayed.topic, "outcome": outcome, "copy": replayed.offset_msg_id or None}
