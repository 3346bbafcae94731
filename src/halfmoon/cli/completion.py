"""`halfmoon completion`: Click's scripts for shells, and names of a cluster that may stand next on a command line."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import ExitStack, suppress
from typing import Annotated

import click
from click.shell_completion import get_completion_class

import halfmoon
from halfmoon.cli.contexts.file import DEFAULT, read
from halfmoon.cli.shared.app import App, Argument, given_on_the_command_line
from halfmoon.cli.shared.target import chosen, enter, enter_options
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.shown.names import is_users_group, is_users_topic

app = App()

SHELLS = ("bash", "zsh", "fish")
WAIT_S = 0.5
"""Longest time to wait for names of a cluster; then the process ends without any."""
NAMES_MAX = 1_000
"""Names that are offered: a shell asks before it shows a hundred."""

_SAFE = re.compile(r"[A-Za-z0-9_%.-]{1,255}")
"""Names that a shell takes as they are. Another one is not offered: it would run as part of the line."""


@app.command()
def completion(shell: Annotated[str, Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the script with which bash, zsh or fish completes commands.

    Put this line into ~/.bashrc: source <(halfmoon completion bash), or the same with zsh into ~/.zshrc, behind compinit.

    For fish: halfmoon completion fish > ~/.config/fish/completions/halfmoon.fish

    Names of topics and groups are asked of the cluster that the line chooses, and left out when it does not answer in 0.5 s.

    Example: halfmoon completion bash
    """
    script = get_completion_class(shell) if shell in SHELLS else None
    if script is None:
        raise UsageError(f"cannot complete in {shell!r:.100}: give bash, zsh or fish")
    root = click.get_current_context().find_root().command
    sys.stdout.write(script(root, {}, "halfmoon", "_HALFMOON_COMPLETE").source() + "\n")


def names(kind: str, context: click.Context, begun: str) -> list[str]:
    """Return the topics, groups or contexts whose names begin so; none where their cluster does not answer in time."""
    with suppress(HalfmoonError, OSError):
        found = [DEFAULT, *read().contexts] if kind == "CONTEXT" else _of_cluster(kind, context)
        return sorted(name for name in found if name.startswith(begun) and _SAFE.fullmatch(name))[:NAMES_MAX]
    return []


def _of_cluster(kind: str, context: click.Context) -> list[str]:
    options = context.find_root().params
    nameserver = context.params.get("nameserver")
    with ExitStack() as stack:
        stack.callback(enter_options(options))  # again: Click has closed the context in which the line was read
        if not given_on_the_command_line(context, "nameserver"):
            stack.callback(enter(chosen(options.get("context_name")), options))
        admin = halfmoon.Admin(nameserver=nameserver or "", request_timeout_ms=int(WAIT_S * 1000))
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, WAIT_S)
        with admin:
            if kind == "GROUP":
                found = [*filter(is_users_group, admin.groups())]
            else:
                info = admin.cluster()
                ours = info.broker_addr_table.keys() | info.cluster_addr_table.keys()
                found = [name for name in admin.topics() if is_users_topic(name) and name not in ours]
        signal.setitimer(signal.ITIMER_REAL, 0)
        return found
