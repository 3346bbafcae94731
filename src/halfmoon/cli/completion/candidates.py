"""What may stand next on a command line. Knows the commands, and asks a cluster for topics and groups within `WAIT_S`."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import halfmoon
from halfmoon.cli.contexts.file import DEFAULT, read
from halfmoon.cli.shared import tls
from halfmoon.cli.shared.command_group import COMMANDS, load
from halfmoon.cli.shared.options import LOCAL
from halfmoon.cli.shared.target import chosen, enter, sign_with
from halfmoon.errors import HalfmoonError
from halfmoon.shown.names import is_users_group, is_users_topic

WAIT_S = 0.5
"""How long names of a cluster are waited for."""
ASKING = "halfmoon-complete"
"""Name of the thread that asks; it goes on by itself when that time is over."""
NAMES_MAX = 1_000
"""Names that are offered: a shell asks before it shows a hundred."""

_SAFE = re.compile(r"[A-Za-z0-9_%.-]{1,255}")
"""Names that a shell takes as they are. Another one is not offered: it would run as part of the line."""
_UNKNOWN = SimpleNamespace(params=[], commands={})
"""In place of a command that there is not."""


class Files(Exception):
    """What stands next is the name of a file, which the shell knows best."""


class Candidate(NamedTuple):
    """A word that may stand next, and what it means."""

    word: str
    help: str = ""


def candidates(line: str, root: Any) -> list[Candidate]:
    """Return the words that may stand at the end of a line whose first word is the command ``root``. Raises Files."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # a quote is open
        return []
    begun = words.pop() if words and not line[-1:].isspace() else ""
    place = _Place(root)
    for word in words:
        place.take(word)
    name, equals, value = begun.partition("=")
    options = place.options()
    if place.waiting is not None or not begun.startswith("-"):
        found = place.next(begun)
    elif equals and name in options:
        found = [Candidate(f"{name}={each.word}") for each in place.values(options[name], value)]
    else:
        found = [Candidate(flag, option.help or "") for flag, option in options.items()]
    return [each for each in found if each.word.startswith(begun)][:NAMES_MAX]


class _Place:
    """Where a line is after some words: in which command, behind which option, at which argument."""

    def __init__(self, root: Any) -> None:
        self._root = self._command = root
        self._arguments: list[Any] = []
        self._given: dict[str, Any] = {}
        self.waiting: Any = None
        """The option whose value comes next."""

    def take(self, word: str) -> None:
        """Go one word on."""
        if self.waiting is not None:
            self._given[self.waiting.name], self.waiting = word, None
        elif word.startswith("-"):
            name, equals, value = word.partition("=")
            option = self.options().get(name)
            if option is not None and not option.is_flag and not equals:
                self.waiting = option
            elif option is not None:
                self._given[option.name] = value or True
        elif self._commands() is not None:
            is_known = word in (self._commands() or ())
            self._command = (
                _UNKNOWN if not is_known else load(word) if self._command is self._root else self._command.commands[word]
            )
            self._arguments = [param for param in self._command.params if param.param_type_name == "argument"]
        elif self._arguments and self._arguments[0].nargs == 1:
            self._arguments.pop(0)

    def options(self) -> dict[str, Any]:
        """Return the options that may stand here, by name."""
        params = [*self._command.params, *(self._root.params if self._command is not self._root else [])]
        options = [param for param in params if param.param_type_name == "option" and not param.hidden]
        return {name: option for option in options for name in (*option.opts, *option.secondary_opts)}

    def next(self, begun: str) -> list[Candidate]:
        """Return what may stand here but options: the value of one, commands, an argument. Raises Files."""
        commands = self._commands()
        if self.waiting is not None or commands is None:
            param = self.waiting or (self._arguments[0] if self._arguments else None)
            return self.values(param, begun) if param is not None else []
        return [Candidate(name, text.strip().partition("\n")[0]) for name, text in commands.items()]

    def values(self, param: Any, begun: str) -> list[Candidate]:
        """Return values of an option or an argument. Raises Files."""
        texts = sorted(str(getattr(word, "value", word)) for word in self._words(param))
        return [Candidate(text) for text in texts if text.startswith(begun) and _SAFE.fullmatch(text)]

    def _words(self, param: Any) -> list[Any]:
        kind, of_type = (param.metavar or "").strip("[]."), getattr(param, "type_descriptor", None) or param.type
        if kind in ("FILE", "DIR") or getattr(of_type, "is_path", False):
            raise Files
        if kind == "SHELL":
            return ["bash", "zsh", "fish"]
        if kind == "CONTEXT":
            return [DEFAULT, *read().contexts]
        if kind == "TOPIC" or param.name == "topic":
            return self._of_cluster(_topics)
        if kind == "GROUP" or param.name == "group":
            helps = " ".join(each.help or "" for each in self._command.params if each.name.startswith("group"))
            of_producers = "producer group" in helps.lower()  # of which a cluster has no list
            return [] if of_producers else self._of_cluster(lambda admin: [*filter(is_users_group, admin.groups())])
        return list(getattr(of_type, "choices", None) or ())

    def _commands(self) -> dict[str, str] | None:
        """Return the commands inside this one with their help; None: there are none."""
        if self._command is self._root:
            return {name: text for name, (_, text) in COMMANDS.items()}
        inner = getattr(self._command, "commands", None)
        return None if inner is None else {name: command.help or "" for name, command in inner.items() if not command.hidden}

    def _of_cluster(self, ask: Callable[[halfmoon.Admin], list[str]]) -> list[str]:
        """Return names that the cluster of the line knows; none where it does not answer in time."""
        found: list[str] = []

        client = halfmoon.Admin  # loaded here, before the time begins

        def run(nameserver: str) -> None:
            with suppress(HalfmoonError, OSError), client(nameserver=nameserver, request_timeout_ms=int(WAIT_S * 1000)) as admin:
                found.extend(ask(admin))

        with ExitStack() as stack:
            asking = threading.Thread(target=run, args=[self._name_servers(stack)], name=ASKING, daemon=True)
            asking.start()
            asking.join(WAIT_S)
        return list(found)

    def _name_servers(self, stack: ExitStack) -> str:
        """Return the name servers to ask, and have who asks sign and encrypt as the line says until the stack is closed."""
        given = self._given
        if given.get("credentials"):
            stack.callback(sign_with(given["credentials"]))
        switched, ca, cert, key, server_name, no_verify = map(given.get, tls.NAMES)
        stack.callback(tls.into_environment(bool(switched), ca, cert, key, server_name, bool(no_verify)))
        if given.get("nameserver"):
            return str(given["nameserver"])
        found = chosen(given.get("context_name"))
        stack.callback(enter(found, given))
        return os.environ.get("NAMESRV_ADDR") or LOCAL if found.context is None else found.context.nameserver


def _topics(admin: halfmoon.Admin) -> list[str]:
    info = admin.cluster()
    return [*filter(is_users_topic, {*admin.topics()} - info.broker_addr_table.keys() - info.cluster_addr_table.keys())]
