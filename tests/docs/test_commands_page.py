"""docs/commands.md is what the commands say of themselves."""

from __future__ import annotations

from halfmoon.cli.main import COMMANDS
from tools import generate_commands


def test_the_page_of_commands_is_not_stale():
    assert generate_commands.PAGE.read_text() == generate_commands.page(), "run make docs"


def test_the_page_names_every_command_with_an_example():
    text = generate_commands.page()

    assert all(f"## halfmoon {name}\n" in text for name in COMMANDS)
    assert text.count("```\nhalfmoon ") == text.count("\n```\n\n")
