"""The page about pairs names what members say, the alerts, and settings as they are called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.broker.pairs.pair import ALONE
from halfmoon.cli.servers import OPTIONS, read_options, settings_from
from halfmoon.runtime.leases import FORMS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "pairs.md").read_text()
FILES = ("broker/pairs/lease.py", "broker/pairs/record.py", "broker/pairs/pair.py", "programs/pairs/member.py")
SAYS = {"_said", "_end", "LeaseRefused", "SettingError", "error", "warning", "exception"}
OF_OTHERS = ("lease of ", "pair ")
"""Beginnings of lines that go on with what is said elsewhere."""


def said(source: str) -> Iterator[str]:
    """Yield the beginnings of the texts that a module says, up to the first value in them, or to the colon before the facts."""
    for node in ast.walk(ast.parse(source)):
        name = getattr(getattr(node, "func", None), "attr", None) or getattr(getattr(node, "func", None), "id", None)
        is_reason = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "reason"
        if not is_reason and not (isinstance(node, ast.Call) and name in SAYS):
            continue
        value = node.value if isinstance(node, ast.Assign) else node.args[0]
        for choice in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            first = choice.values[0] if isinstance(choice, ast.JoinedStr) else choice
            text = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
            text = re.split(r":|%s", text)[0].strip()
            if text and not f"{text} ".startswith(OF_OTHERS):
                yield text


@pytest.mark.parametrize("file", FILES)
def test_the_page_says_what_to_do_about_each_message(file: str) -> None:
    found = set(said((ROOT / "src" / "halfmoon" / file).read_text()))
    assert found
    assert {text for text in found if text not in PAGE} == set()


def test_messages_are_found_whatever_they_are_made_of() -> None:
    source = 'a._said(f"x y {z}")\nb(self._end("one" if c else "two"))\nreason = f"r: {q}"\n'
    source += 'log.error("lost: who=%s")\nlog.warning(d)'
    assert set(said(source)) == {"x y", "one", "two", "r", "lost"}


def test_the_page_has_the_forms_of_the_lease_the_refusal_and_the_alerts() -> None:
    for scheme in re.findall(r"\w+://", FORMS):
        assert f"`{scheme}" in PAGE
    assert ALONE.partition(":")[0] in PAGE
    alerts = (ROOT / "monitoring" / "alerts.yml").read_text()
    named = re.findall(r"`(HalfmoonPair\w+)`", PAGE)
    assert set(re.findall(r"alert: (HalfmoonPair\w+)", alerts)) == set(named)


def test_the_page_has_the_statement_that_makes_the_table_of_the_lease() -> None:
    pytest.importorskip("psycopg")
    from halfmoon.runtime.leases.postgresql import TABLE

    assert f"\n```sql\n{TABLE}\n```\n" in PAGE


@pytest.mark.parametrize("command", ["nameserver", "broker"])
def test_the_options_for_systemd_start_a_member_of_a_pair(command: str) -> None:
    given = dict(re.findall(r'^(\w+)="(.*)"$', PAGE, re.M))
    values = read_options(OPTIONS[command], given[f"{command.upper()}_OPTIONS"].split())
    assert values is not None
    settings = settings_from(command, values, given)  # both units read the file
    assert settings.host == "10.0.0.1"
    assert settings.broker.lease == (given["HALFMOON_LEASE"] if command == "broker" else "")
