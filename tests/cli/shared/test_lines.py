"""What others have written steers no terminal and forges no line: all that commands write goes one way, and that way is safe."""

from __future__ import annotations

import ast
import io
import json
import sys
from pathlib import Path

import pytest

from halfmoon.cli.shared.lines import LINE_MAX, plain, say, take_all_characters
from halfmoon.cli.shared.output import CELL_MAX, report, show_json, show_table
from halfmoon.errors import SettingError, broker_error

CLI = Path(__file__).parents[3] / "src" / "halfmoon" / "cli"
HOSTILE = "x\r\nforged\x1b[31m\x00\x7f\x9b\u2028\u202e\u200f\u061c\U000e0041\ud800"
WAYS_OUT = {"stdout", "stderr", "__stdout__", "__stderr__"}


def ways_out(source: str) -> list[str]:
    """Return where a source writes by itself: print, echo, a console of its own, or one of the standard streams."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "Console"):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and (
            (node.attr in WAYS_OUT and ast.unparse(node.value) == "sys")
            or ast.unparse(node) in ("click.echo", "click.secho", "os.write", "console().print")
        ):
            found.append(ast.unparse(node))
    return found


OTHERWISE = {
    "shared/lines.py": "say",
    "shared/output.py": "tables and JSON, whose texts are escaped",
    "shared/command_group.py": "help pages of groups without a command",
    "shared/options.py": "a question, which takes plain texts only",
    "consume/formats.py": "bytes of messages where output is no terminal, and printable ones where it is",
    "docs.py": "pages of the package",
    "completion.py": "a script, which has no texts of others",
    "events.py": "YAML of the user's own declarations",
    "store/progress.py": "numbers, written over one another",
    "store/dump.py": "flushes, and closes, what JSON lines were written to",
}
"""Files that use a standard stream themselves, each with what they write."""


def test_commands_write_only_by_what_escapes():
    harmless = {"sys.stdout.isatty": "sys.stdout", "sys.stderr.close": "sys.stderr"}
    found = {}
    for path in sorted(CLI.rglob("*.py")):
        source = path.read_text()
        for call in harmless:
            source = source.replace(call, "harmless")
        if ways := ways_out(source):
            found[path.relative_to(CLI).as_posix()] = ways
    assert found.keys() == OTHERWISE.keys(), "write with say, show_table or show_json"


@pytest.mark.parametrize(
    "source", ["print(x)", "sys.stdout.write(x)", "click.echo(x)", "console().print(x)", "f(file=sys.stderr)", "Console().print(x)"]
)
def test_the_rule_of_writing_bites(source):
    assert ways_out(source)


def test_a_line_is_one_line_that_can_be_printed(capsys):
    say(HOSTILE)
    say(HOSTILE, error=True)
    show_table(HOSTILE, ("key",), [(HOSTILE,)])
    report(broker_error(1, HOSTILE), as_json=False)
    report(SettingError(HOSTILE), as_json=False)
    out, err = capsys.readouterr()
    assert len(err.splitlines()) == 3
    assert all(line.isprintable() for line in (out + err).split("\n"))


def test_json_has_every_character_and_steers_no_terminal(capsys):
    show_json({"a": HOSTILE[:-1], "b": "漢字"})
    show_json([HOSTILE])
    report(SettingError(HOSTILE), as_json=True)
    out, err = capsys.readouterr()
    first, second = out.removesuffix("\n").split("\n")
    assert json.loads(first) == {"a": HOSTILE[:-1], "b": "漢字"}
    assert "漢字" in first
    assert json.loads(second) == [HOSTILE]
    assert json.loads(err)["error"] == HOSTILE
    assert all(line.isprintable() for line in (out + err).split("\n"))


def test_what_is_cut_says_how_much_is_missing(capsys):
    show_table("", ("body", "small"), [("k" * 1_000_000, 1)])
    say("s" * 1_000_000)
    out = capsys.readouterr().out
    assert out.endswith(f" … and {1_000_000 - LINE_MAX:,} characters more\n")
    assert f"… and {1_000_000 - CELL_MAX:,} characters more" in " ".join(out.split())
    assert len(out.split("\n")) < 10
    assert plain("abc", 2) == "ab … and 1 characters more"


def test_a_terminal_without_a_character_gets_its_number(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    take_all_characters()
    say("漢")
    stream.seek(0)
    assert stream.read() == "\\u6f22\n"
