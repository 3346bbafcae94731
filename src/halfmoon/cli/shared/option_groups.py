"""Options that several commands take together, declared once as the fields of a dataclass. Parses nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Have a command take, in place of a parameter that is a dataclass, an option for each field of it; a decorator.

    ::

        @dataclass(frozen=True, kw_only=True)
        class Output:
            nameserver: NameServer = LOCAL
            as_json: Json = False

        @app.command()
        @grouped
        def status(group: Group, output: Output) -> None: ...

    Typer sees the fields where the parameter stands, as it sees other parameters; the command is called with the object made of
    them. Fields need a default. What the dataclass's ``__post_init__`` raises ends the command before it begins.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if parameter.name in groups:
            options += _options(groups[parameter.name])
        else:
            options.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]))

    @wraps(command)
    def run(**given: Any) -> Any:
        made = {name: group(**{each.name: given.pop(each.name) for each in fields(group)}) for name, group in groups.items()}
        return command(**given, **made)

    run.__signature__ = Signature(options)  # type: ignore[attr-defined]  # what inspect.signature looks for
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name]) for each in fields(group)
    ]
