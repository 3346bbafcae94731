"""`halfmoon console user`: users of the console. Works on its database, whether it runs or not; writes the audit log."""

from __future__ import annotations

import os
from typing import Annotated

import click

from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json, Yes, confirm
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.cli.shared.places import console_directory
from halfmoon.console.access.audit import Audit
from halfmoon.console.access.database import now_ms
from halfmoon.console.access.users import Role, User, Users
from halfmoon.programs.ownership import as_owner_of
from halfmoon.shown.texts import time_text

user = App(help="Add, list and remove users of the console.\n\nExample: halfmoon console user list")

Name = Annotated[str, Argument(metavar="NAME", help="Name of the user.")]
Data = Annotated[
    str | None,
    Option("--data", metavar="DIR", help="Data directory of halfmoon serve; DIR/console is the console's. Default: as serve."),
]


@user.command()
def add(
    name: Name,
    role: Annotated[Role, Option("--role", help="A viewer looks, an operator changes as well.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Add a user, and print a one-time password, which is good for 24 hours and must be changed at the first login.

    Example: halfmoon console user add ada --role operator
    """
    password = _users(data).add(name, role)
    _done(data, as_json, f"user {name} is added as {role}", "user add", password, name=name, role=role)


@user.command("list", finds=True)
def list_users(data: Data = None, as_json: Json = False) -> int:
    """List the users.

    Example: halfmoon console user list
    """
    found = _users(data).all()
    if as_json:
        show_json(found)
    else:
        show_table("users", ("name", "role", "password", "set"), map(_row, found))
    return len(found)


@user.command()
def reset(name: Name, data: Data = None, as_json: Json = False) -> None:
    """Give a user a new one-time password, and end that user's sessions.

    Example: halfmoon console user reset ada
    """
    password = _users(data).reset(name)
    _done(data, as_json, f"user {name} has a new password", "user reset", password, name=name)


@user.command()
def role(
    name: Name,
    role: Annotated[Role, Argument(metavar="ROLE", help="viewer or operator.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Change the role of a user, from the next request on.

    Example: halfmoon console user role ada viewer
    """
    _users(data).set_role(name, role)
    said = f"user {name} is {'an' if role is Role.operator else 'a'} {role}"
    _done(data, as_json, said, "user role", name=name, role=role)


@user.command()
def remove(name: Name, yes: Yes = False, data: Data = None, as_json: Json = False) -> None:
    """Remove a user, and end that user's sessions.

    Example: halfmoon console user remove ada
    """
    confirm(f"remove user {name} of the console", yes=yes)
    _users(data).remove(name)
    _done(data, as_json, f"user {name} is removed", "user remove", name=name)


def _users(data: str | None) -> Users:
    """Return the users. Root acts as the owner of the directory from now on, so that the console can read new files."""
    directory = console_directory(data, os.environ)
    click.get_current_context().with_resource(as_owner_of(directory))
    return Users(directory, now_ms)


def _done(data: str | None, as_json: Json, said: str, action: str, password: str = "", **facts: str) -> None:
    """Write the change to the audit log, and show it with the password, which is stored nowhere."""
    audit = Audit(console_directory(data, os.environ), now_ms)
    audit.note(f"uid {os.getuid()}", "command line", action, facts)
    if as_json:
        show_json({**facts, "password": password} if password else facts)
    else:
        say(f"{said}; one-time password, good for 24 hours: {password}" if password else said)


def _row(found: User) -> tuple[str, ...]:
    return found.name, found.role, "one-time" if found.must_change else "own", time_text(found.changed_ms)
