"""`halfmoon acl`: list, add and remove accounts, rotate secrets, explain rights. Shows no secret but one that it has just made."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import click

import halfmoon
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import LOCAL, Json, NameServer, Yes, confirm, duration_ms, pairs
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.client.files import read_secret
from halfmoon.errors import BrokerError, NetworkError, PartlyDone

app = App(
    help="List, add and remove accounts, and explain what one may do.\n\nExample: halfmoon acl list",
)

Key = Annotated[str, Argument(metavar="ACCESS_KEY", help="The account.")]
SECRETS = frozenset(("secret_key", "previous_secret_key"))
SECRET_BYTES = 24
"""Random bytes of a generated secret."""


@app.command("list", finds=True)
def list_accounts(nameserver: NameServer = LOCAL, as_json: Json = False) -> int:
    """List the accounts of every broker, slaves included, without their secrets.

    Example: halfmoon acl list
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = admin.accounts(failing=failing)
    say_failing(failing)
    rows = [(at.broker, *_row(each)) for at in brokers for each in at.accounts]
    if as_json:
        show_json([{"broker": at.broker, "white": at.white, "accounts": [_facts(each) for each in at.accounts]} for at in brokers])
        return len(rows)
    show_table("accounts", ("broker", "access key", "admin", "white", "topics", "groups", "topic", "group"), rows)
    for at in brokers:
        for text in at.notes:
            say(f"{at.broker}: {text}")
        if at.white:
            say(f"{at.broker}: no account is needed from {', '.join(at.white)}")
    return len(rows)


@app.command()
def add(
    access_key: Key,
    secret_file: Annotated[Path | None, Option("--secret-file", help="File with the secret; without it one is made.")] = None,
    administrator: Annotated[bool, Option("--admin", help="An administrator, who may do everything.")] = False,
    topic: Annotated[list[str] | None, Option("--topic", metavar="NAME=PERM", help="PUB, SUB, PUB|SUB or DENY.")] = None,
    group: Annotated[list[str] | None, Option("--group", metavar="NAME=PERM", help="The same for a group.")] = None,
    topics: Annotated[str | None, Option("--topics", metavar="PERM", help="Permission for all other topics.")] = None,
    groups: Annotated[str | None, Option("--groups", metavar="PERM", help="Permission for all other groups.")] = None,
    white: Annotated[str | None, Option("--white", metavar="ADDRESSES", help="Addresses from which it may do anything.")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Add an account to every broker and slave, or change it: what is left out keeps its value, except the secret and --admin.

    Example: halfmoon acl add shop-service --topic orders=PUB --group shop=SUB
    """
    secret = secrets.token_urlsafe(SECRET_BYTES) if secret_file is None else _secret(secret_file)
    made = secret if secret_file is None else None
    with _secret_kept(access_key, made, as_json=as_json), halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = admin.put_account(
            access_key, secret, administrator=administrator, white=white, topic_default=topics, group_default=groups,
            topics=pairs(topic, "--topic") if topic else None, groups=pairs(group, "--group") if group else None,
        )  # fmt: skip
    _say_secret(access_key, brokers, made, f"account {access_key} is known to {', '.join(brokers)}", as_json=as_json)


@app.command()
def rotate(
    access_key: Key,
    keep: Annotated[str, Option("--keep", metavar="DURATION", help="How long the previous secret stays valid.")] = "24h",
    secret_file: Annotated[Path | None, Option("--secret-file", help="File with the secret; without it one is made.")] = None,
    end: Annotated[bool, Option("--end", help="Make no secret: end the previous one now.")] = False,
    yes: Yes = False,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Give an account a new secret at every broker; the previous one stays valid for a time. acl list shows who still uses it.

    Example: halfmoon acl rotate shop-service --keep 24h
    """
    if end and secret_file is not None:
        raise click.BadParameter("--end makes no secret: leave out --secret-file")
    secret = None if end else secrets.token_urlsafe(SECRET_BYTES) if secret_file is None else _secret(secret_file)
    made = secret if secret_file is None else None
    keep_ms = 0 if end else duration_ms(keep, "--keep")
    if keep_ms == 0:
        confirm(f"end the old secret of account {access_key} at every broker", yes=yes)
    with _secret_kept(access_key, made, as_json=as_json), halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = admin.rotate_secret(access_key, secret, keep_ms)
    what = "no previous secret" if keep_ms == 0 else f"a new secret, and the previous one for {keep},"
    _say_secret(access_key, brokers, made, f"account {access_key} has {what} at {', '.join(brokers)}", as_json=as_json)


@app.command()
def remove(access_key: Key, yes: Yes = False, nameserver: NameServer = LOCAL, as_json: Json = False) -> None:
    """Remove an account from every broker.

    Example: halfmoon acl remove shop-service
    """
    confirm(f"remove account {access_key} from every broker, which then refuses what it signs", yes=yes)
    with halfmoon.Admin(nameserver=nameserver) as admin:
        brokers = admin.delete_account(access_key)
    if as_json:
        show_json({"access_key": access_key, "brokers": brokers})
    else:
        say(f"account {access_key} is removed from {', '.join(brokers)}")


@app.command()
def explain(
    access_key: Key,
    read: Annotated[str | None, Option("--read", metavar="TOPIC", help="May it read this topic?")] = None,
    send: Annotated[str | None, Option("--send", metavar="TOPIC", help="May it send to this topic?")] = None,
    group: Annotated[str | None, Option("--group", metavar="GROUP", help="May it consume in this group?")] = None,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> None:
    """Show whether an account may do something, and the rule that decides. Exit code 1: it may not, or a broker does not answer.

    Example: halfmoon acl explain shop-service --read orders --group shop
    """
    failing: list[str] = []
    with halfmoon.Admin(nameserver=nameserver) as admin:
        found = admin.explain_access(access_key, read=read, send=send, group=group, failing=failing)
    say_failing(failing)
    if as_json:
        show_json([each._asdict() for each in found])
    else:
        for each in found:
            say(f"{each.broker}: {'yes' if each.allowed else 'no'}: {'; '.join(each.reasons)}")
    raise click.exceptions.Exit(0 if all(each.allowed for each in found) and not failing else 1)


@contextmanager
def _secret_kept(access_key: str, made: str | None, *, as_json: bool) -> Iterator[None]:
    """Write the generated secret also where a change fails: some brokers may have it."""
    try:
        yield
    except (BrokerError, NetworkError, PartlyDone) as exc:
        if made is not None:
            done = list(exc.done) if isinstance(exc, PartlyDone) else []
            if as_json:
                _say_secret(access_key, done, made, "", as_json=True)
            else:
                have = f"that {', '.join(done)} {'have' if len(done) > 1 else 'has'}" if done else "that none or some brokers have"
                say(f"the secret {have} now is {made}", error=True)
            say("to use it, put it into a file and repeat the command with --secret-file", error=True)
        raise


def _say_secret(access_key: str, brokers: list[str], made: str | None, done: str, *, as_json: bool) -> None:
    """Write the generated secret, in the form of a file of credentials; without one, the change."""
    if as_json:
        show_json({"access_key": access_key, "brokers": brokers, "secret_key": made})
    elif made is not None:
        say(f"accessKey: {access_key}")
        say(f"secretKey: {made}")
    else:
        say(done)


def _row(account: Any) -> tuple[str, ...]:
    return (
        account.access_key or "", "yes" if account.admin else "no", account.white_remote_address or "-",
        account.default_topic_perm or "DENY", account.default_group_perm or "DENY",
        " ".join(account.topic_perms or ()) or "-", " ".join(account.group_perms or ()) or "-",
    )  # fmt: skip


def _facts(account: Any) -> dict[str, Any]:
    return {name: getattr(account, name) for name in account.__struct_fields__ if name not in SECRETS}


def _secret(path: Path) -> str:
    return read_secret(path, "the secret").strip()
