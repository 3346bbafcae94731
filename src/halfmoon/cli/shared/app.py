"""Commands made of functions: annotated parameters become Click's options and arguments. Asks no server.

A parameter is annotated with an `Option` or an `Argument`, or is a dataclass whose fields are options that several commands share::

    @dataclass(frozen=True, kw_only=True)
    class Output:
        nameserver: NameServer = LOCAL
        as_json: Json = False

    @app.command()
    def status(group: Group, output: Output) -> None: ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

_WORD = "_word"
"""Suffix of a parameter that is an argument standing for an option."""
_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE"}
"""Value of an option in its help, by type, where the option does not name it."""
_JSON_LINES = "halfmoon.json_lines"
"""Key of a context's ``meta``: the command writes its rows as lines of JSON."""
_MEANT_AS_WORDS = (("--topic", "TOPIC"), ("--group", "GROUP"))


class Option:
    """Option of a command: its flags, and settings of `click.Option`; ``min`` and ``max`` bound a number."""

    def __init__(self, *flags: str, **settings: Any) -> None:
        self.flags, self.settings = flags, settings

    @property
    def has_word(self) -> bool:
        """Whether it is ``--topic TOPIC`` or ``--group GROUP``, which may also be given as a word."""
        return (self.flags[0], self.settings.get("metavar")) in _MEANT_AS_WORDS


class Argument:
    """Argument of a command: its name in the help, and its help."""

    def __init__(self, *, metavar: str | None = None, help: str = "") -> None:
        self.settings = {"metavar": metavar, "help": help}


class Choice(click.Choice[str]):
    """Values of an enumeration of texts."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__([each.value for each in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the member of the enumeration that has this value."""
        return value if isinstance(value, self._kind) else self._kind(super().convert(value, param, ctx))


class _WholeNumber(click.IntRange):
    """Whole number within bounds; Click's errors call it a valid integer range."""

    name = "whole number"


class DeclaredCommand(click.Command):
    """Command whose topic and group may be options or words. ``aliases`` are other names for it in its group."""

    aliases: tuple[str, ...] = ()

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, with the command's other names before it."""
        if self.aliases:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"Names: {', '.join((self.name or '', *self.aliases))}.")
        super().format_help_text(ctx, formatter)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters without the words that were given as options; for completion with the options of all commands."""
        as_options = ctx.meta.get(_WORD, ())
        everywhere = ctx.find_root().command.params if ctx.resilient_parsing and ctx.parent is not None else []
        return [param for param in (*super().get_params(ctx), *everywhere) if param.name not in as_options]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Count words without those that were given as options."""
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_WORD] = {f"{name}{_WORD}" for name in given}
        return super().parse_args(ctx, args)


class App(click.Group):
    """Commands of a noun; one without a help is the only command of its module."""

    def __init__(self, help: str | None = None, **settings: Any) -> None:
        super().__init__(help=help, **settings)

    def command(  # type: ignore[override]
        self, name: str | None = None, *, finds: bool = False, aliases: tuple[str, ...] = ()
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declare a function as a command. ``aliases`` are other names for it.

        An option ``--topic TOPIC`` or ``--group GROUP`` is also taken as a word at the place of its parameter: ``topic show
        orders`` and ``topic show --topic orders`` are the same. Behind any number of words there is no place for another.

        ``finds``: the function returns what it found, or how much, and ``--fail-if-empty`` makes an empty result exit code 1. Where
        it has ``--json``, ``--jsonl`` writes what it found one a line.
        """

        def declare(function: Callable[..., Any]) -> Callable[..., Any]:
            command = command_of(function, name or function.__name__, finds=finds)
            command.aliases = aliases
            self.add_command(command)
            return function

        return declare

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Declare a function that runs before each command of the group, with options of its own."""
        made = command_of(function, self.name or function.__name__)
        self.params, self.callback, self.help = made.params, made.callback, self.help or made.help
        return function

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first paragraph of its help."""
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (", ".join((name, *getattr(each, "aliases", ()))), _first_paragraph(each.help))
                    for name, each in known
                    if each and not each.hidden
                ]
            )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name or an alias."""
        by_alias = (each for each in self.commands.values() if cmd_name in getattr(each, "aliases", ()))
        return super().get_command(ctx, cmd_name) or next(by_alias, None)

    def names(self, kind: str, context: click.Context, begun: str) -> list[str]:
        """Return names that may stand next: of what ``kind`` is (TOPIC, GROUP or CONTEXT). None are known here."""
        return []

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands as they were declared."""
        return list(self.commands)


def command_of(function: Callable[..., Any], name: str, *, finds: bool = False) -> DeclaredCommand:
    """Return the command that a function is: called with its own parameters, made of what was given."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    declared = list(_declared(function, hints, groups))
    if finds:
        fail_if_empty = Option("--fail-if-empty", help="Exit with 1 if there are none.")
        declared.append(_Declared("fail_if_empty", bool, False, fail_if_empty, is_list=False))
        if any(each.name == "as_json" for each in declared):
            json_lines = Option("--jsonl", help="Print JSON, one object a line.")
            declared.append(_Declared("json_lines", bool, False, json_lines, is_list=False))
    params: list[click.Parameter] = []
    place_for_words = True
    for each in declared:
        word = place_for_words and isinstance(each.info, Option) and each.info.has_word
        if word or isinstance(each.info, Argument):
            params.append(_word(each))
        if isinstance(each.info, Option):
            params.append(_option(each, has_word=word))
        place_for_words = place_for_words and not (each.is_list and isinstance(params[-1 - word], click.Argument))

    def run(**given: Any) -> None:
        values = {each.name: each.value(given) for each in declared}
        asked = values.pop("fail_if_empty", False)
        if values.pop("json_lines", False):
            click.get_current_context().meta[_JSON_LINES] = values["as_json"] = True
        for group_name, group in groups.items():
            values[group_name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        if not function(**values) and asked:
            sys.exit(1)

    return DeclaredCommand(name, params=params, callback=run, help=cleandoc(function.__doc__ or ""))


class _Declared(NamedTuple):
    """A parameter of a function, or a field of a dataclass that is one."""

    name: str
    kind: Any
    default: Any
    info: Option | Argument
    is_list: bool

    @property
    def required(self) -> bool:
        return self.default is Parameter.empty

    def value(self, given: dict[str, Any]) -> Any:
        """Return what was given, as an option or as a word, or the default."""
        found = [given[name] for name in (self.name + _WORD, self.name) if given.get(name) not in (None, ())]
        if not found:
            return None if self.required else self.default
        return list(found[0]) if self.is_list else found[0]


def _declared(function: Callable[..., Any], hints: dict[str, Any], groups: dict[str, Any]) -> Iterator[_Declared]:
    for parameter in signature(function).parameters.values():
        if parameter.name in groups:
            group = groups[parameter.name]
            inner = get_type_hints(group, include_extras=True)
            for field in fields(group):
                yield _declaration(field.name, inner[field.name], field.default)
        else:
            yield _declaration(parameter.name, hints[parameter.name], parameter.default)


def _declaration(name: str, annotation: Any, default: Any) -> _Declared:
    kind, info = get_args(annotation)[:2]
    kinds = [each for each in get_args(kind) if each is not type(None)] or [kind]
    lists = [each for each in (kind, *kinds) if get_origin(each) is list]
    return _Declared(name, get_args(lists[0])[0] if lists else kinds[0], default, info, bool(lists))


def _option(declared: _Declared, *, has_word: bool) -> click.Option:
    assert isinstance(declared.info, Option)
    settings = dict(declared.info.settings)
    if declared.kind is bool:
        settings["is_flag"] = True
    else:
        settings.setdefault("metavar", _METAVARS.get(declared.kind))
        settings |= {"type": _type(declared.kind, settings), "shell_complete": _completion(settings)}
    if has_word:
        settings["help"] = f"The same as {settings['metavar']}."
    required = declared.required and not has_word
    if not required:
        settings["default"] = None if declared.required or declared.is_list else declared.default
        if isinstance(declared.default, Enum):
            settings["default"] = declared.default.value  # as it is given, and not the name of the member
        if declared.default == "":
            settings["show_default"] = False
    return click.Option(
        [declared.name, *declared.info.flags], multiple=declared.is_list, required=required, show_envvar=True, **settings
    )


def _word(declared: _Declared) -> click.Argument:
    is_argument = isinstance(declared.info, Argument)
    settings = {name: declared.info.settings.get(name) for name in ("metavar", "help")}
    if not declared.required and settings["metavar"] and not settings["metavar"].startswith("["):
        settings["metavar"] = f"[{settings['metavar']}]"
    return click.Argument(
        [declared.name if is_argument else declared.name + _WORD], nargs=-1 if declared.is_list else 1, required=declared.required,
        type=_type(declared.kind, {}), shell_complete=_completion(settings), **settings,
    )  # fmt: skip


def _type(kind: Any, settings: dict[str, Any]) -> Any:
    """Return Click's type of a value; what only that takes is no setting of the option any more."""
    if kind is Path:
        return click.Path(
            path_type=Path, **{name: settings.pop(name) for name in ("exists", "file_okay", "dir_okay") if name in settings}
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return Choice(kind)
    bounds = {name: settings.pop(name) for name in ("min", "max") if name in settings}
    return kind if not bounds else click.FloatRange(**bounds) if kind is float else _WholeNumber(**bounds)


def _completion(settings: dict[str, Any]) -> Any:
    """Return what Click calls for the values that may stand next; None: what the type knows."""
    kind = (settings.get("metavar") or "").strip("[].")
    if kind in ("FILE", "DIR"):
        return lambda ctx, param, begun: [CompletionItem(begun, type=kind.lower())]
    if kind not in ("TOPIC", "GROUP", "CONTEXT") or "producer group" in (settings.get("help") or "").lower():
        return None

    def complete(ctx: click.Context, param: click.Parameter, begun: str) -> Sequence[str]:
        root = ctx.find_root().command
        return root.names(kind, ctx, begun) if isinstance(root, App) else []

    return complete


def lines_wanted() -> bool:
    """Return whether the command that runs was given ``--jsonl``."""
    context = click.get_current_context(silent=True)
    return context is not None and _JSON_LINES in context.meta


def given_on_the_command_line(context: click.Context, name: str) -> bool:
    """Whether an option was given, not left to a variable or its default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _first_paragraph(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())
