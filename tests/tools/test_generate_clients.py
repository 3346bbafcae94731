"""The page on clients says what their table says, and each behaviour of the table has a test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.interop.clients import table
from tools import generate_clients

TESTS = Path(table.__file__).with_name("test_clients.py")


def test_the_page_is_what_the_table_says():
    assert generate_clients.PAGE.read_text() == generate_clients.page(table.BEHAVIOURS, table.CLIENTS), "stale: run make docs"


def test_each_behaviour_has_a_test_and_each_reason_a_behaviour():
    marked = re.findall(r'^@able\("(\w+)"\)$', TESTS.read_text(), re.M)
    named = {key for client in table.CLIENTS.values() for key in (*client["cannot"], *client["notes"])}

    assert sorted(marked) == sorted(table.BEHAVIOURS)
    assert named <= table.BEHAVIOURS.keys()


def test_what_a_client_cannot_do_stands_on_the_page_with_the_reason():
    go = {"title": "Go", "package": "a/go", "version": "1", "cannot": {"tls": "it has none"}, "notes": {}}
    node = {"title": "Node", "package": "n", "version": "2", "cannot": {}, "notes": {"send": "one by one"}}
    text = generate_clients.page({"send": "sends", "tls": "speaks TLS"}, {"go": go, "node": node})

    assert "| Go | `a/go` | 1 |" in text
    assert "| sends | yes | yes |" in text
    assert "| speaks TLS | – | yes |" in text
    assert "| Go | speaks TLS | it has none |" in text
    assert "| Node | sends | one by one |" in text
