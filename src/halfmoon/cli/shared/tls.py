"""Options of all commands for encrypted connections. They stand for the clients' variables, so that processes that a command starts
encrypt as well. Opens no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import typer

_PANEL = "Encrypted connections (any place in a command)"
Tls = Annotated[bool, typer.Option("--tls", rich_help_panel=_PANEL, help="Encrypt connections to servers (HALFMOON_TLS).")]
Ca = Annotated[
    str | None,
    typer.Option("--tls-ca", metavar="FILE", rich_help_panel=_PANEL, help="CA certificates (PEM) that sign those of servers."),
]
Cert = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", rich_help_panel=_PANEL, help="Certificate (PEM) to show to servers.")
]
Key = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", rich_help_panel=_PANEL, help="Its private key (PEM).")]
ServerName = Annotated[
    str | None,
    typer.Option("--tls-server-name", metavar="NAME", rich_help_panel=_PANEL, help="Name in every server's certificate."),
]
NoVerify = Annotated[
    bool, typer.Option("--tls-no-verify", rich_help_panel=_PANEL, help="Take any certificate: whoever sits between reads along.")
]

_SWITCHES = frozenset(("--tls", "--tls-no-verify"))
_VALUES = frozenset(("--tls-ca", "--tls-cert", "--tls-key", "--tls-server-name"))
NAMES = ("encrypted", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "tls_no_verify")
"""Parameters of the command that holds all others for these options, in the order of `into_environment`."""


def first(arguments: Sequence[str], others_with_value: Collection[str] = ()) -> list[str]:
    """Return the arguments with the options of this module in front, where the command that holds all others reads them.

    So are ``others_with_value``.
    """
    with_value = {*_VALUES, *others_with_value}
    ours: list[str] = []
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            others += [argument, *rest]
        elif argument in _SWITCHES or argument.partition("=")[0] in with_value:
            ours.append(argument)
            if argument in with_value:
                ours += [value for value in [next(rest, None)] if value is not None]
        else:
            others.append(argument)
    return ours + others


def into_environment(
    tls: bool, ca: str | None, cert: str | None, key: str | None, server_name: str | None, no_verify: bool
) -> Callable[[], None]:
    """Set the variables that clients read where they are given no settings; return what undoes that.

    What belongs to TLS switches it on.
    """
    if not (tls or ca or cert or key or server_name or no_verify):
        return lambda: None
    values = {
        "HALFMOON_TLS": "true", "HALFMOON_TLS_CA": ca, "HALFMOON_TLS_CERT": cert, "HALFMOON_TLS_KEY": key,
        "HALFMOON_TLS_SERVER_NAME": server_name, "HALFMOON_TLS_VERIFY": "false" if no_verify else None,
    }  # fmt: skip
    given = {name: value for name, value in values.items() if value}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)

    def undo() -> None:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value

    return undo
