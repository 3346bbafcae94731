"""Generator of docs/commands.md from the commands themselves: help, arguments and options, an example."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halfmoon.cli.shared.command_group import COMMANDS, load
from tools.generated import linked, write_or_check

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"

OPENING = """# Commands

<!-- Written by tools/generate_commands.py from the commands themselves; do not edit. -->

Every command has `--help` with an example and, but for `completion`, `--json` for programs: one document (or one per line where
messages stream) on standard output, errors as a document on standard error, including wrong arguments. Exit codes: 0 success, 1
refused, or a problem was found, 2 wrong argument or setting. For an empty list the exit code is 0, with `--fail-if-empty` 1.

Commands find the cluster through `--nameserver`, then `--context` and `HALFMOON_CONTEXT`, which name a
[context](#halfmoon-context), then the variable `HALFMOON_NAMESERVER` or RocketMQ's `NAMESRV_ADDR`, then the context in use, then
127.0.0.1:9876; any RocketMQ cluster works. `--credentials FILE` signs requests ([access.md](access.md)); `--tls` and the options
beside it in `halfmoon --help` [encrypt](tls.md) connections. These options may stand at any place in a command. `halfmoon
completion` prints a script for the completion of commands, topics, groups and contexts in shells.

A topic and a group may be a word or an option: `halfmoon consume orders` is `halfmoon consume --topic orders`. A duration has a
unit: `500ms`, `10s`, `5m`, `2h`, `3d`. A time is a duration back from now, ISO 8601, or milliseconds since the epoch. Commands
that cannot be undone ask for confirmation; `--yes` gives it, and is required if standard input is not a terminal. Tables never
shorten ids, keys, topics and groups: on a narrow terminal other columns are omitted, and a line names them.

Servers take `--config FILE` (TOML, or a RocketMQ `broker.conf`; also from the variable `HALFMOON_CONFIG`) and `--set KEY=VALUE`;
[settings](settings.md) are also read from variables such as `HALFMOON_BROKER_PORT`. Later sources win: files, variables, `--set`,
options. The data directory is `--data`, then `HALFMOON_DATA`, then `~/.local/share/halfmoon` (or below `XDG_DATA_HOME`). Servers
listen on loopback; any other `--host` is refused without `--allow-remote`, which takes accounts ([access.md](access.md)) or
`--insecure`.
"""


def page() -> str:
    """Return the whole page."""
    parts = [OPENING]
    for name in COMMANDS:
        command = load(name)
        inner = getattr(command, "commands", None)
        if inner:
            alone = getattr(command, "invoke_without_command", False)
            parts.append("\n".join(_section(name, command, "##")) if alone else f"## halfmoon {name}\n\n{_help(command)[0]}\n")
            parts += ["\n".join(_section(words, each, "###")) for words, each in _inner(name, inner)]
        else:
            parts.append("\n".join(_section(name, command, "##")))
    return "\n".join(parts)


def _inner(name: str, commands: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group with all their words, those of groups inside it too; hidden ones stand elsewhere."""
    for verb, command in commands.items():
        if command.hidden:
            continue
        deeper = getattr(command, "commands", None)
        if deeper:
            yield from _inner(f"{name} {verb}", deeper)
        else:
            yield f"{name} {verb}", command


def _help(command: Any) -> tuple[str, str]:
    """Return a command's help without its example, and the example."""
    text, *examples = (command.help or "").split("Example: ")
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]
    if aliases := getattr(command, "aliases", ()):
        paragraphs.insert(0, f"Also called `{'`, `'.join(aliases)}`.")
    return "\n\n".join(paragraphs), "\n".join(" ".join(example.split()) for example in examples)


def _section(name: str, command: Any, level: str) -> Iterator[str]:
    text, example = _help(command)
    yield f"{level} halfmoon {name}\n\n{text}\n"
    yield f"```\n{example}\n```\n"
    params = [param for param in command.params if not getattr(param, "hidden", False) and "--help" not in param.opts]
    words = {param.name.removesuffix("_word"): param for param in params if param.name.endswith("_word")}
    rows = [_row(param, words.get(param.name)) for param in params if param not in words.values()]
    if rows:
        yield "| | | default |\n|---|---|---|"
        yield from rows
    yield ""


def _row(param: Any, word: Any) -> str:
    """Return the row of a parameter; ``word`` is the argument that may stand for an option."""
    names = [*param.opts, *getattr(param, "secondary_opts", [])]
    if param.param_type_name == "argument":
        words = f"`{param.metavar or param.name}`"
    else:
        value = "" if getattr(param, "is_flag", False) else f" {param.metavar or _kind(param)}"
        words = f"`{word.metavar}` or " if word else ""
        words += ", ".join(f"`{name}`" for name in [*names[:-1], names[-1] + value])
    shown_default = getattr(param, "show_default", None)
    default = shown_default if isinstance(shown_default, str) else param.to_info_dict()["default"]
    shown = "" if default in (None, False, [], (), "") else f"`{default}`"
    if (word or param).required:
        shown = "needed"
    return f"| {words} | {linked((word or param).help or '').replace('|', chr(92) + '|')} | {shown} |"


def _kind(param: Any) -> str:
    kinds = {"integer": "N", "float": "X", "path": "FILE", "filename": "FILE"}
    return kinds.get(param.type.name.removesuffix(" range"), "TEXT")


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page(), sys.argv[1:]))
