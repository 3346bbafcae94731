"""docs/commands.md is what the commands say of themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from halfmoon.cli.shared.command_group import COMMANDS, load
from tools import generate_commands


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its words."""
    waiting = [(name, load(name)) for name in COMMANDS]
    while waiting:
        name, command = waiting.pop()
        yield name, command
        waiting += [(f"{name} {verb}", inner) for verb, inner in getattr(command, "commands", {}).items()]


def test_the_page_of_commands_is_not_stale():
    assert generate_commands.PAGE.read_text() == generate_commands.page(), "run make docs"


def test_the_page_names_every_command_with_an_example():
    text = generate_commands.page()

    assert all(f"## halfmoon {name}\n" in text for name in COMMANDS)
    assert text.count("```\nhalfmoon ") == text.count("\n```\n\n")


def test_every_command_writes_json_for_programs_as_the_page_says():
    without = [
        name
        for name, command in commands()
        if not hasattr(command, "commands") and "--json" not in [flag for each in command.params for flag in each.opts]
    ]

    assert without == ["completion"], "which writes a script for a shell"


def test_the_list_of_commands_says_of_each_what_its_own_help_says_first():
    first = {name: " ".join(load(name).help.split("\n\n")[0].split()) for name in COMMANDS}

    assert {name: line for name, (_, line) in COMMANDS.items()} == first
