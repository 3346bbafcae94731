"""`halfmoon outbox`: sends the events of an outbox, shows waiting and failed ones, and resends or drops them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import click
import msgspec

from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import plain, say
from halfmoon.cli.shared.options import LOCAL, Json, Limit, NameServer, OneTopic, Yes, confirm, duration_ms, time_ms
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.errors import UsageError
from halfmoon.events.checks.tokens import check_table, create_tables
from halfmoon.events.databases.database import Provider
from halfmoon.events.outbox import sent as outbox_sent
from halfmoon.events.outbox import status as outbox_status
from halfmoon.events.outbox.relay import Relay, RelaySettings
from halfmoon.events.outbox.schemas import EVERY, Shares
from halfmoon.events.publishing.client_transport import ClientTransport
from halfmoon.model import LocalTransactionState, StoredMessage
from halfmoon.shown.texts import TIME_FORMS, count_text, span_text, time_text

app = App(
    help="Relay, list, retry, drop and resend events of a database outbox.\n\nExample: halfmoon outbox status --database sqlite:///shop.db",
)

T = TypeVar("T")

VARIABLE = "HALFMOON_DATABASE"
RELAY_GROUP = "P_outbox_relay"

Database = Annotated[
    str,
    Option(
        "--database",
        metavar="URL",
        help=f"The database, as an SQLAlchemy URL. Put one with a password into the variable {VARIABLE}: command lines are "
        "visible to every user of the machine.",
    ),
]


Schema = Annotated[str, Option("--schema", metavar="NAME", help="The schema of the tables, unless the database finds it.")]
Schemas = Annotated[
    list[str] | None,
    Option("--schema", metavar="NAME", help="A schema that has an outbox; may be repeated. '*': every one.", show_default=False),
]


def _ids(which: str) -> Any:
    return Argument(metavar="[EVENT]...", help=f"Ids of {which}.")


class RowState(StrEnum):
    """States of a row, for ``--state``."""

    WAITING = "waiting"
    SENDING = "sending"
    RETRYING = "retrying"
    FAILED = "failed"


Claim = Annotated[
    str, Option("--claim", metavar="DURATION", help="How long the rows claimed by a killed relay stay claimed: 8s to 1h.")
]
Keep = Annotated[
    str, Option("--keep-sent", metavar="DURATION", help="Keep events for `outbox sent` once they were sent: 1s to 3650d.")
]
Since = Annotated[str | None, Option("--since", metavar="TIME", help=f"Sent at or after this time: {TIME_FORMS}.")]
Until = Annotated[str | None, Option("--until", metavar="TIME", help="Sent before this time.")]
Attempts = Annotated[int, Option("--attempts-max", min=0, help="Attempts before a row is marked as failed; 0: no limit.")]


@app.command()
def relay(
    database: Database = "",
    schemas: Schemas = None,
    nameserver: NameServer = LOCAL,
    group: Annotated[str, Option("--group", "-g", metavar="GROUP", help="The producer group to send with.")] = RELAY_GROUP,
    poll: Annotated[str, Option("--poll", metavar="DURATION", help="Polling interval: 10ms to 1h.")] = "200ms",
    batch: Annotated[int, Option("--batch", min=1, max=1_000, help="Rows claimed at once.")] = 200,
    claim: Claim = "60s",
    attempts: Attempts = RelaySettings.attempts_max or 0,
    keep: Keep = "",
    make: Annotated[bool, Option("--create-table", help="Create the table if it is missing.")] = False,
    until_empty: Annotated[bool, Option("--until-empty", help="Stop when nothing is left to send.")] = False,
    as_json: Json = False,
) -> None:
    """Send the events of an outbox until SIGTERM or Ctrl-C. Several relays may run at once.

    With `--json`, prints a summary at the end.

    Example: halfmoon outbox relay --nameserver 127.0.0.1:9876
    """
    poll_ms = duration_ms(poll, "--poll", at_least="10ms", at_most="1h")
    claim_ms = duration_ms(claim, "--claim", at_least="8s", at_most="1h")
    keep_s = duration_ms(keep, "--keep-sent", at_least="1s", at_most="3650d") / 1000 if keep else None
    settings = RelaySettings(
        poll_ms=poll_ms, batch_max=batch, claim_ms=claim_ms, attempts_max=attempts or None, keep_sent=keep_s,
        schemas=_served(schemas),
    )  # fmt: skip
    with _opened(database) as provider:
        _require_tables(provider, settings, make=make)
        transport = ClientTransport(group, nameserver)
        transport.start(_undecided)
        sending = Relay(provider, transport, settings)
        try:
            if not as_json:
                say(f"relay {sending.name} sends as {group} to {nameserver}")
            _run(sending, until_empty=until_empty)
        finally:
            sending.close()
            transport.close(1_000)
        if as_json:
            show_json(sending.figures())
        else:
            say(f"sent {count_text(sending.figures().sent, 'event')}")


@app.command()
def status(database: Database = "", schemas: Schemas = None, as_json: Json = False) -> None:
    """Show how many events are waiting and for how long, of several schemas together and of each. Exit code 1 if some have failed.

    Example: halfmoon outbox status --database sqlite:///shop.db --json
    """
    with _opened(database) as provider:
        found = {share.schema: outbox_status.backlog(share) for share in Shares(provider, _served(schemas)).all()}
    backlog = outbox_status.total(found.values())
    by_schema = found if len(found) > 1 or schemas == [EVERY] else {}
    if as_json:
        show_json({**msgspec.structs.asdict(backlog), "schemas": by_schema} if by_schema else backlog)
    else:
        show_backlog(backlog, by_schema)
    if backlog.failed:
        raise click.exceptions.Exit(1)


@app.command("list", finds=True)
def list_(
    state: Annotated[RowState | None, Option("--state", help="Only rows in this state.")] = None,
    failed: Annotated[bool, Option("--failed", help="Only failed events.")] = False,
    topic: OneTopic = None,
    limit: Limit = 100,
    database: Database = "",
    schema: Schema = "",
    as_json: Json = False,
) -> int:
    """List the events of an outbox, oldest first, with the last error.

    Example: halfmoon outbox list --failed
    """
    if failed and state not in (None, RowState.FAILED):
        raise click.BadParameter("give --failed or --state, not both")
    word = "failed" if failed else state and state.value
    with _opened(database, schema) as provider:
        entries = outbox_status.entries(provider, state=word, topic=topic, count_max=limit + 1)
    return _show(entries, limit, _show_entries, as_json=as_json)


@app.command()
def retry(
    events: Annotated[list[str] | None, _ids("events, as `outbox list` shows them")] = None,
    every: Annotated[bool, Option("--all-failed", help="All failed events.")] = False,
    database: Database = "",
    schema: Schema = "",
    as_json: Json = False,
) -> None:
    """Retry events now, starting from the first attempt. Exit code 1 if none of them is waiting or failed.

    Example: halfmoon outbox retry --all-failed
    """
    if bool(events) == every:
        raise click.BadParameter("give ids of events, or --all-failed")
    with _opened(database, schema) as provider:
        count = outbox_status.retry(provider, event_ids=events or None)
    _show_count(count, "retried", "to be tried again", required=not every, as_json=as_json)


@app.command()
def drop(
    events: Annotated[list[str] | None, _ids("failed events, as `outbox list --failed` shows them")] = None,
    every: Annotated[bool, Option("--all-failed", help="All failed events.")] = False,
    yes: Yes = False,
    database: Database = "",
    schema: Schema = "",
    as_json: Json = False,
) -> None:
    """Remove failed events from the outbox: they are never sent. Exit code 1 if none of those named has failed.

    Example: halfmoon outbox drop 7F00000100012A139F1C0A1B2C3D0000 --yes
    """
    if bool(events) == every:
        raise click.BadParameter("give ids of events, or --all-failed")
    what = count_text(len(events), "event") if events else "all failed events"
    confirm(f"remove {what} from the outbox, never to be sent", yes=yes)
    with _opened(database, schema) as provider:
        count = outbox_status.drop(provider, event_ids=events or None)
    _show_count(count, "dropped", "dropped", required=not every, as_json=as_json)


@app.command(finds=True)
def sent(
    topic: OneTopic = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    database: Database = "",
    schema: Schema = "",
    as_json: Json = False,
) -> int:
    """List events that were sent and are kept (`outbox relay --keep-sent`), the latest first.

    Example: halfmoon outbox sent --since 2h
    """
    since_ms, until_ms = _period(since, until)
    with _opened(database, schema) as provider:
        entries = outbox_sent.entries(provider, topic=topic, since_ms=since_ms, until_ms=until_ms, count_max=limit + 1)
    return _show(entries, limit, _show_sent, as_json=as_json)


@app.command()
def resend(
    events: Annotated[list[str] | None, _ids("events, as `outbox sent` shows them")] = None,
    topic: OneTopic = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    database: Database = "",
    schema: Schema = "",
    as_json: Json = False,
) -> None:
    """Send kept events again, under their ids: consumers with `dedup` ignore what they have processed. Exit code 1 if none is kept.

    Example: halfmoon outbox resend --since 2h --topic TP_ORDER --yes
    """
    if bool(events) == (since is not None):
        raise click.BadParameter("give ids of events, or --since")
    since_ms, until_ms = _period(since, until)
    what = count_text(len(events), "event") if events else f"all events sent since {since}{f' until {until}' if until else ''}"
    confirm(f"send {what}{f' of topic {topic}' if topic else ''} again", yes=yes)
    with _opened(database, schema) as provider:
        count = outbox_sent.resend(provider, event_ids=events or None, topic=topic, since_ms=since_ms, until_ms=until_ms)
    _show_count(count, "resent", "to be sent again", required=True, as_json=as_json)


def _show(entries: list[T], limit: int, show: Callable[[list[T]], None], *, as_json: bool) -> int:
    """Write at most so many entries, and whether there are more; return how many were written."""
    shown, more = entries[:limit], len(entries) > limit
    if as_json:
        show_json({"events": shown, "more": more}, rows="events")
        return len(shown)
    show(shown)
    if more:
        say(f"there are more than these {limit:,}: give --limit")
    return len(shown)


def _show_count(count: int, key: str, what: str, *, required: bool, as_json: bool) -> None:
    """Write the outcome and the number of events. Raises click.exceptions.Exit for none where some are ``required``."""
    if as_json:
        show_json({key: count})
    else:
        say(f"{count:,} {what}")
    if required and not count:
        raise click.exceptions.Exit(1)


def _period(since: str | None, until: str | None) -> tuple[int, int | None]:
    """Return the times of ``--since`` and ``--until``; 0 and None where they are not given. Raises click.BadParameter."""
    return time_ms(since) if since else 0, time_ms(until) if until else None


def _served(schemas: list[str] | None) -> str | list[str] | None:
    """Return the relay's setting for ``--schema``."""
    return EVERY if schemas == [EVERY] else schemas or None


def _require_tables(provider: Provider, settings: RelaySettings, *, make: bool) -> None:
    """Create the tables of a relay if that is asked for. Raises TableMissing for one that a named schema has not."""
    for share in Shares(provider, settings.schemas).all():
        if make:
            create_tables(share, settings.tables)
        for table in settings.tables if settings.schemas != EVERY else ():
            check_table(share, table)


def _run(sending: Relay, *, until_empty: bool) -> None:
    """Run a relay until a signal asks for its end, or nothing is left."""
    stopping = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        sending.start()
        while not stopping.wait(0.2):
            if until_empty and not sending.backlog().backlog:
                return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _opened(url: str, schema: str = "") -> AbstractContextManager[Provider]:
    """Open a database; its module is loaded only now. Raises UsageError."""
    url = url or os.environ.get(VARIABLE, "")
    if not url:
        raise UsageError(f"no database is named: set the variable {VARIABLE}, or give --database URL")
    try:
        from halfmoon.cli.outbox import database
    except ModuleNotFoundError as exc:
        if exc.name != "sqlalchemy":  # something else is missing, and says what
            raise
        raise UsageError("the outbox needs SQLAlchemy: pip install 'halfmoon[sqlalchemy]'") from exc
    return database.opened(url, schema)


def _undecided(message: StoredMessage) -> LocalTransactionState:
    """Return no answer to checks: a relay sends no half messages."""
    return LocalTransactionState.NOT_MINE


# ---------------------------------------------------------------- output for people


def show_backlog(backlog: outbox_status.OutboxFigures, by_schema: Mapping[str, outbox_status.OutboxFigures]) -> None:
    """Write the figures of an outbox, one a line, and those of several schemas' as a table."""
    say(f"{backlog.backlog:,} to be sent" + (f", the oldest for {span_text(backlog.oldest_age_ms)}" if backlog.backlog else ""))
    for name in ("waiting", "sending", "retrying", "failed"):
        say(f"  {name:<9}{getattr(backlog, name):>12,}")
    if by_schema:
        names = outbox_status.OutboxFigures.__struct_fields__
        show_table("", ("schema", *names), [(schema, *(getattr(one, name) for name in names)) for schema, one in by_schema.items()])
    if backlog.failed:
        say("see `halfmoon outbox list --failed`, and have them sent by `halfmoon outbox retry`, or removed by `drop`")


def _show_entries(entries: list[outbox_status.OutboxEntry]) -> None:
    """Write rows as a table."""
    now_ms = time.time_ns() // 1_000_000
    show_table(
        "",
        ("event", "topic", "state", "created", "attempts", "next", "error"),
        [
            (
                entry.event_id,
                entry.topic,
                entry.state,
                time_text(entry.created_ms),
                entry.attempts,
                f"in {span_text(entry.next_ms - now_ms)}" if entry.next_ms > now_ms else "",
                entry.error,
            )
            for entry in entries
        ],
    )


def _show_sent(entries: list[outbox_sent.SentEntry]) -> None:
    """Write events that were sent as a table."""
    show_table(
        "",
        ("event", "topic", "key", "sent", "message"),
        [(entry.event_id, entry.topic, plain(entry.key, 40), time_text(entry.sent_ms), entry.message_id) for entry in entries],
    )
