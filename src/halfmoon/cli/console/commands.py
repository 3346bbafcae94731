"""`halfmoon console`: the console over any cluster, in this process. Checks where it may listen; its users are in `users`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import click

import halfmoon
from halfmoon.cli.console.listening import HOST, PORT, check_extra, listen, url_of
from halfmoon.cli.console.users import Data, user
from halfmoon.cli.shared.app import App, Option, given_on_the_command_line
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.options import LOCAL, Json, NameServer
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.shared.places import console_directory
from halfmoon.console.access.database import NAME
from halfmoon.documentation import see
from halfmoon.errors import UsageError
from halfmoon.logs import to_stderr
from halfmoon.settings.forms import is_loopback

app = App(invoke_without_command=True)
app.add_command(user, "user")

DEFAULT_PORTS = {"http": 80, "https": 443}


@app.before
def console(
    nameserver: NameServer = LOCAL,
    data: Data = None,
    host: Annotated[str, Option("--host", metavar="ADDRESS", help="The address to listen on.")] = HOST,
    port: Annotated[int, Option("--port", min=0, max=65535, help="The port; 0 takes a free one.")] = PORT,
    certificate: Annotated[
        Path | None, Option("--certificate", metavar="FILE", help="Certificate chain (PEM): speak HTTPS.")
    ] = None,
    private_key: Annotated[
        Path | None, Option("--private-key", metavar="FILE", help="Its key (PEM); default: in the same file.")
    ] = None,
    behind_proxy: Annotated[
        str | None,
        Option("--behind-proxy", metavar="URL", help="URL of a proxy in front of the console, through which all browsers connect."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Look into a cluster and change it, in a browser.

    Prints one line when browsers may connect. Any RocketMQ cluster works; halfmoon serve --console runs it beside a broker. An
    address that other machines reach needs --certificate, or --behind-proxy with the URL of a proxy that speaks TLS. SIGTERM or
    Ctrl-C stops it cleanly, a second one at once.

    Example: halfmoon console -n 127.0.0.1:9876
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        if any(given_on_the_command_line(context, name) for name in context.params):
            raise UsageError("options of these commands stand behind them: halfmoon console user list --data DIR")
        return
    public_url = "" if behind_proxy is None else public_url_of(behind_proxy)
    if private_key is not None and certificate is None:
        raise UsageError("--private-key is for --certificate")
    if not is_loopback(host) and certificate is None and not public_url.startswith("https:"):
        raise UsageError(
            f"--host {host} would send passwords over the network as they are: give --certificate FILE, or --behind-proxy URL of "
            f"a proxy that speaks TLS ({see('console')})"
        )
    check_extra()
    to_stderr(logging.WARNING)
    pair = str(certificate or ""), str(private_key or "")
    with listen(host, port) as listening:
        _run(listening, pair, public_url, console_directory(data, os.environ), nameserver, as_json=as_json)


def _run(
    listening: socket.socket, pair: tuple[str, str], public_url: str, directory: Path, nameserver: str, *, as_json: bool
) -> None:
    from halfmoon.console.server import ConsoleAddress, first_user, serve

    url, users = url_of(listening, secure=bool(pair[0])), directory / NAME

    def ready(user_count: int) -> None:
        if as_json:
            facts = {"ready": True, "pid": os.getpid(), "url": url, "users": str(users), "user_count": user_count}
            show_json({**facts, "public_url": public_url or url, "nameserver": nameserver})
            return
        say(f"halfmoon console ready: {url}, users in {users}")
        if not user_count:
            say(f"there are no users yet; this makes the first: {first_user(directory)}")

    asyncio.run(
        serve(ConsoleAddress(listening, *pair, public_url), directory, halfmoon.AdminSettings(nameserver=nameserver), ready)
    )


def public_url_of(text: str) -> str:
    """Return a proxy's URL as browsers write it in the Origin of a form. Raises UsageError for another text."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.scheme not in DEFAULT_PORTS or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in text:
        raise UsageError(f"--behind-proxy {text:.200}: must be a URL such as https://HOST, without a path")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, DEFAULT_PORTS[parts.scheme]) else f":{port}")
