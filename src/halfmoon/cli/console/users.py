"""`halfmoon console user`: who may use the console. Works on its file, whether it runs or not; writes the audit log."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from typing import Annotated

import typer

from halfmoon.cli.shared.app import App
from halfmoon.cli.shared.confirmation import Yes, confirm
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import Json
from halfmoon.cli.shared.output import show_json, show_table
from halfmoon.cli.shared.places import console_directory
from halfmoon.console.access.audit import Audit
from halfmoon.console.access.users import User, Users
from halfmoon.shown.texts import time_text

user = App(no_args_is_help=True, help="Add, list and remove users of the console.\n\nExample: halfmoon console user list")


class Role(StrEnum):
    """What a user may do: look, or change as well."""

    viewer = "viewer"
    operator = "operator"


Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The data directory of halfmoon serve; DIR/console has users and audit log. Default: as serve.",
    ),
]


@user.command()
def add(
    name: Name,
    role: Annotated[Role, typer.Option("--role", help="A viewer looks, an operator changes as well.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Add a user, and print a one-time password, which is good for 24 hours and must be changed at the first login.

    Example: halfmoon console user add ada --role operator
    """
    password = _users(data, make=True).add(name, role)
    _note(data, "user add", name, role=role)
    _show_password(f"user {name} is added as {role}", name, password, as_json=as_json)


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
    _note(data, "user reset", name)
    _show_password(f"user {name} has a new password", name, password, as_json=as_json)


@user.command()
def role(
    name: Name,
    role: Annotated[Role, typer.Argument(metavar="ROLE", help="viewer or operator.")],
    data: Data = None,
    as_json: Json = False,
) -> None:
    """Change the role of a user, from the next request on.

    Example: halfmoon console user role ada viewer
    """
    _users(data).set_role(name, role)
    _note(data, "user role", name, role=role)
    _show(f"user {name} is {'an' if role is Role.operator else 'a'} {role}", {"name": name, "role": role}, as_json=as_json)


@user.command()
def remove(name: Name, yes: Yes = False, data: Data = None, as_json: Json = False) -> None:
    """Remove a user, and end that user's sessions.

    Example: halfmoon console user remove ada
    """
    confirm(f"remove user {name} of the console", yes=yes)
    _users(data).remove(name)
    _note(data, "user remove", name)
    _show(f"user {name} is removed", {"name": name}, as_json=as_json)


def _users(data: str | None, *, make: bool = False) -> Users:
    directory = console_directory(data, os.environ)
    if make:
        directory.parent.mkdir(0o700, parents=True, exist_ok=True)  # as a broker makes it
    return Users(directory / "users.json", _now_ms)


def _note(data: str | None, action: str, name: str, **fields: str) -> None:
    audit = Audit(console_directory(data, os.environ) / "audit.jsonl", _now_ms)
    audit.note(f"uid {os.getuid()}", "command line", action, {"name": name, **fields})


def _show_password(said: str, name: str, password: str, *, as_json: bool) -> None:
    _show(f"{said}; one-time password, good for 24 hours: {password}", {"name": name, "password": password}, as_json=as_json)


def _show(said: str, facts: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        show_json(facts)
    else:
        say(said)


def _row(found: User) -> tuple[str, ...]:
    return found.name, found.role, "one-time" if found.must_change else "own", time_text(found.changed_ms)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
