"""`halfmoon tx`: pending transactions, the outcome of one, decisions by hand, and expired half messages."""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from typing import Annotated

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import LOCAL, Json, Limit, NameServer, Yes, check_terminal, confirm, duration_ms
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.tx import batches as batch_commands
from halfmoon.cli.tx.tables import show_expired, show_figures, show_notes, show_one, show_pending
from halfmoon.shown.texts import facts_of

app = App(
    help="Show pending transactions, and decide them by hand.\n\nExample: halfmoon tx pending --older-than 5m",
)

app.command(finds=True)(batch_commands.batches)

ID = Annotated[
    str | None,
    Argument(metavar="ID", help="The transaction id, a key of its message, or the broker's message id."),
]
Offset = Annotated[
    int | None,
    Option("--offset", min=0, max=2**63 - 1, metavar="NUMBER", help="The offset in the half queue, instead of an ID."),
]
Operator = Annotated[
    str | None, Option("--operator", metavar="NAME", help="Name of the operator; default: the user and host of this process.")
]


@app.command(finds=True)
def pending(
    group: Annotated[str | None, Option("--group", "-g", metavar="GROUP", help="Only this producer group.")] = None,
    older_than: Annotated[str | None, Option("--older-than", metavar="DURATION", help="At least this old: 30s, 5m.")] = None,
    limit: Limit = 100,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """List undecided half messages, oldest first. With --older-than, exit code 1 if there are any.

    Example: halfmoon tx pending --group P_shop --older-than 5m
    """
    age = duration_ms(older_than, "--older-than") if older_than else 0
    with halfmoon.Admin(nameserver=nameserver) as admin:
        transactions = admin.pending_transactions(group=group, older_than_ms=age, count_max=limit + 1)
    shown, more = transactions[:limit], len(transactions) > limit
    if as_json:
        show_json({"transactions": [facts_of(one) for one in shown], "more": more}, rows="transactions")
    else:
        show_pending(shown)
        if more:
            say(f"more are pending than the {limit:,} oldest: give --limit")
        show_notes(shown)
    if older_than and shown:
        raise click.exceptions.Exit(1)
    return len(shown)


@app.command()
def show(name: ID = None, offset: Offset = None, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show one transaction, pending or decided, with the history of its checks.

    Example: halfmoon tx show o-1
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        transaction = admin.transaction(_named(name, offset))
    if as_json:
        show_json(facts_of(transaction))
    else:
        show_one(transaction)


@app.command()
def check(name: ID = None, offset: Offset = None, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Check a transaction with its producer group now. Exit code 1 if no producer of the group is online.

    The answer arrives a moment later, see `tx show`. Apache's brokers cannot be told to check.

    Example: halfmoon tx check o-1
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        transaction = admin.check_transaction(_named(name, offset))
    if as_json:
        show_json(facts_of(transaction))
    else:
        say(f"a producer of group {transaction.group} got check {transaction.checks_sent}, {transaction.checks_left} left")


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """Options of a decision by hand."""

    name: ID = None
    offset: Offset = None
    yes: Yes = False
    operator: Operator = None
    nameserver: NameServer = LOCAL
    as_json: Json = False


@app.command()
def commit(by_hand: ByHand) -> None:
    """Commit a half message by hand: its message is delivered. Halfmoon's brokers record who did it.

    Example: halfmoon tx commit o-1 --yes --operator "Ada, ticket 4711"
    """
    _decide(by_hand, commit=True)


@app.command()
def rollback(by_hand: ByHand) -> None:
    """Roll back a half message by hand: its message is never delivered. Halfmoon's brokers record who did it.

    Example: halfmoon tx rollback o-1 --yes
    """
    _decide(by_hand, commit=False)


@app.command(finds=True)
def expired(limit: Limit = 100, nameserver: NameServer = LOCAL, as_json: Json = False) -> int:
    """List the newest expired half messages, why each one expired, and their state since.

    Example: halfmoon tx expired --limit 20
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        found = admin.expired_transactions(count_max=limit)
    if as_json:
        show_json([facts_of(one) for one in found])
        return len(found)
    show_expired(found)
    show_notes(found)
    return len(found)


@app.command()
def resume(
    offset_msg_id: Annotated[str, Argument(metavar="ID", help="The id that `tx expired` shows in the column *resume by*.")],
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Check an expired half message again, starting from the first check.

    Example: halfmoon tx resume 7F00000100002A9F0000000000001000
    """
    with halfmoon.Admin(nameserver=nameserver) as admin:
        admin.resume_half(offset_msg_id)
    if as_json:
        show_json({"offset_msg_id": offset_msg_id, "resumed": True})
    else:
        say("resumed: it is pending again, and will be checked")


@app.command()
def status(nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Show pending transactions by group, decisions per second, checks and contradictions of every broker.

    Example: halfmoon tx status
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = admin.transaction_stats(failing=failing)
    say_failing(failing)
    if as_json:
        show_json([facts_of(stats) for stats in brokers])
    else:
        show_figures(brokers)


def _decide(by_hand: ByHand, *, commit: bool) -> None:
    name = _named(by_hand.name, by_hand.offset)
    check_terminal("decide", yes=by_hand.yes)
    word, who = "commit" if commit else "rollback", by_hand.operator or _who()
    with halfmoon.Admin(nameserver=by_hand.nameserver) as admin:
        transaction = admin.transaction(name)
        if not by_hand.yes and not by_hand.as_json:
            show_one(transaction)
        deliver = "deliver" if commit else "never deliver"
        confirm(f"{deliver} message {transaction.msg_id} of group {transaction.group} ({word} by {who})", yes=by_hand.yes)
        done = admin.decide_transaction(transaction.offset_msg_id, commit=commit, operator=who)
    if by_hand.as_json:
        show_json({**facts_of(done), "operator": who})
        return
    done_word = "is committed" if commit else "is rolled back"
    again = "" if transaction.state == "PREPARED" else " already; nothing was changed"
    say(f"{transaction.msg_id} of group {transaction.group} {done_word}{again}" + ("" if again else f" by {who}"))
    show_notes([done])


def _named(name: str | None, offset: int | None) -> str | int:
    """Return the id or the offset of a transaction: a text is never taken for an offset."""
    if (name is None) == (offset is None):
        raise click.BadParameter("give the ID of a transaction, or --offset")
    return name if name is not None else offset or 0


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user of that number
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
