"""How every command is declared: one option or word for a topic and a group, and one for an empty result. Asks no server."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo, OptionInfo

from halfmoon.cli.shared.option_groups import grouped

FailIfEmpty = Annotated[bool, typer.Option("--fail-if-empty", help="Exit with 1 if there are none.")]
_WORD = "_word"
"""Ends the name of a parameter that is the word for an option."""


class App(typer.Typer):
    """The commands of a noun, or a single one. Each may have parameters that are dataclasses, see `grouped`."""

    def command(self, name: str | None = None, *, finds: bool = False, **settings: Any) -> Callable[[Callable[..., Any]], Any]:
        """Declare a command.

        An option ``--topic TOPIC`` or ``--group GROUP`` is also taken as a word at the place of its parameter: ``topic show
        orders`` and ``topic show --topic orders`` are the same. A place behind as many words as one likes is none.

        ``finds``: the command returns what it found, or how much, and takes ``--fail-if-empty``: exit code 1 if that is nothing.
        """
        add = super().command(name, cls=_EitherWay, **settings)

        def declare(command: Callable[..., Any]) -> Callable[..., Any]:
            add(_told(either_way(grouped(command)), finds=finds))
            return command

        return declare


class _EitherWay(TyperCommand):
    """A command whose words are counted without those that were given as options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        as_options = {f"{name}{_WORD}" for name, value in given.items() if value is not None}
        self.params = [param for param in self.params if param.name not in as_options]
        return super().parse_args(ctx, args)


def either_way(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that takes its topic and its group as options and as words."""
    parameters: list[Parameter] = []
    twice: list[str] = []
    any_number = False
    for parameter in signature(command).parameters.values():
        kind, info = (*get_args(parameter.annotation), None, None)[:2]
        if isinstance(info, OptionInfo) and not any_number and _has_word(info):
            any_number = _is_list(kind)
            parameters += [_word(parameter, kind, info), _option(parameter, kind, info)]
            twice.append(parameter.name)
        else:
            any_number |= isinstance(info, ArgumentInfo) and _is_list(kind)
            parameters.append(parameter)

    @wraps(command)
    def run(**given: Any) -> Any:
        for name in twice:
            word = given.pop(name + _WORD, None)
            if word not in (None, [], ()):
                given[name] = word
        return command(**given)

    return _seen_as(run, parameters)


def _has_word(info: OptionInfo) -> bool:
    """Whether an option is ``--topic TOPIC`` or ``--group GROUP``. In Annotated, its flag stands where its default would."""
    return (info.default, info.metavar) in (("--topic", "TOPIC"), ("--group", "GROUP"))


def _word(parameter: Parameter, kind: Any, info: OptionInfo) -> Parameter:
    word = typer.Argument(metavar=info.metavar, help=info.help, show_default=False, autocompletion=info.autocompletion)
    kind, default = (kind, Parameter.empty) if parameter.default is Parameter.empty else (kind | None, None)
    return parameter.replace(name=parameter.name + _WORD, default=default, annotation=Annotated[kind, word])


def _option(parameter: Parameter, kind: Any, info: OptionInfo) -> Parameter:
    option = copy(info)
    option.help = f"The same as {info.metavar}."
    default = None if parameter.default is Parameter.empty else parameter.default
    return parameter.replace(default=default, annotation=Annotated[kind | None, option])


def _is_list(kind: Any) -> bool:
    return any(str(each).startswith("list[") for each in (kind, *get_args(kind)))


def _told(command: Callable[..., Any], *, finds: bool) -> Callable[..., None]:
    """Return a command that returns nothing: one that finds takes ``--fail-if-empty``."""

    @wraps(command)
    def run(**given: Any) -> None:
        asked = given.pop("fail_if_empty", False)
        if not command(**given) and asked:
            raise typer.Exit(1)

    option = Parameter("fail_if_empty", Parameter.KEYWORD_ONLY, default=False, annotation=FailIfEmpty)
    return _seen_as(run, [*signature(command).parameters.values(), *([option] if finds else [])])


def _seen_as(run: Callable[..., Any], parameters: list[Parameter]) -> Callable[..., Any]:
    """Have `inspect.signature` see other parameters of a function than it has."""
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
