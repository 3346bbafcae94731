"""Suggestions for a command or an option that does not exist: names spelt alike, names whose help has the word, or all names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

import click

ALIKE = 0.8
"""Likeness from which on a name is suggested beside those whose help has the word. Click's own is 0.6."""


def with_suggestions(error: click.NoSuchOption | click.NoSuchCommand) -> click.UsageError:
    """Return the error with names that may have been meant."""
    given = error.option_name if isinstance(error, click.NoSuchOption) else error.command_name
    known = {} if error.ctx is None else dict(_known(error.ctx, of_options=isinstance(error, click.NoSuchOption)))
    near = _near(given, known)
    if near:
        text = f"Did you mean {' or '.join(map(repr, near))}?"
    elif isinstance(error, click.NoSuchOption) and error.ctx is not None and isinstance(error.ctx.command, click.Group):
        text = f"Options stand behind a command: `{error.ctx.command_path} COMMAND --help` lists them."
    else:
        text = f"There are {', '.join(known)}." if known else ""
    return click.UsageError(f"{error.message} {text}".rstrip(), error.ctx)


def _known(context: click.Context, *, of_options: bool) -> Iterator[tuple[str, str]]:
    """Yield names with their help. A group that was given an option is also asked for its commands, which have the options."""
    command = context.command
    if of_options:
        for param in command.get_params(context):
            for name in param.opts if isinstance(param, click.Option) else ():
                if name.startswith("--") and name != "--help":
                    yield name, f"{param.metavar} {getattr(param, 'help', '')}"
    if isinstance(command, click.Group) and (context.parent is not None or not of_options):
        for name in command.list_commands(context):
            each = command.get_command(context, name)
            if each is not None and not each.hidden:
                yield from ((other, each.help or "") for other in (name, *getattr(each, "aliases", ())))


def _near(given: str, known: Mapping[str, str]) -> list[str]:
    """Return up to three names: spelt almost so, then those with the word in their help, else those spelt alike."""
    word = given.lstrip("-").casefold()
    same = [name for name in known if name.lstrip("-") == word]
    of_kind = [name for name in known if name.startswith("-") == given.startswith("-")]
    has_word = [name for name in of_kind if word in re.findall(r"[\w-]+", known[name].casefold())]
    almost = get_close_matches(given, of_kind, cutoff=ALIKE)
    return list(dict.fromkeys([*same, *almost, *has_word]))[:3] or get_close_matches(given, of_kind)
