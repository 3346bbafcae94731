"""Clients of a process: settings are checked at the first call only."""

from __future__ import annotations

from typing import Any

from halfmoon.spark import clients


def test_the_settings_of_a_client_are_checked_once(monkeypatch):
    made: list[dict[str, Any]] = []

    def make(**settings: Any) -> dict[str, Any]:
        made.append(settings)
        return settings

    first = clients.of_process(make, nameserver="a:1", retries_max=3)

    assert clients.of_process(make, nameserver="a:1", retries_max=3) is first
    assert clients.of_process(make, nameserver="a:1", retries_max=4) is not first
    assert made == [{"nameserver": "a:1", "retries_max": 3}, {"nameserver": "a:1", "retries_max": 4}]


def test_a_forked_child_makes_a_client_of_its_own(monkeypatch):
    first = clients.of_process(dict, nameserver="a:1")
    monkeypatch.setattr(clients.os, "getpid", lambda: -1)

    assert clients.of_process(dict, nameserver="a:1") is not first
