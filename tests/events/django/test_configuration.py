"""The settings of the project: what is wrong is told with its place and a remedy, before anything runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started
from django.test import Client, override_settings

from halfmoon.events import Codecs
from halfmoon.events.django import events, project
from halfmoon.events.django.configuration import configuration, read
from halfmoon.events.outbox.relay import RelaySettings
from halfmoon.events.testing import MemoryBus
from tests.waiting import until

GOOD = {"GROUP": "P_shop", "NAMESERVER": "127.0.0.1:9876"}
CODECS = Codecs()


def problems(said: Any) -> list[str]:
    """Return what Django's checks say of a value of HALFMOON."""
    with override_settings(HALFMOON=said):
        return [f"{one.msg} {one.hint}" for one in checks.run_checks() if (one.id or "").startswith("halfmoon_events")]


def test_good_settings_pass():
    everything = {
        **GOOD,
        "MODE": "outbox",
        "RELAY": False,
        "DATABASE": "other",
        "TOPICS": ["TP_ORDER"],
        "CONSUMERS": ["tests.events.django.views"],
        "CHECKS": ["tests.events.django.views"],
        "START": False,
        "TRIES_MAX": 0,
        "TIMEOUT_MS": 1_000,
        "CHECK_AFTER_S": None,
        "STRICT": True,
        "RAISE_ON_FAILURE": False,
        "CODECS": f"{__name__}.CODECS",
        "SETTINGS": {"check_threads": 2},
        "CONSUMER_SETTINGS": {"threads": 4},
    }

    assert problems(GOOD) == []
    assert problems(everything) == []
    with override_settings(HALFMOON=everything):
        publisher = configuration().publisher()
        assert publisher.codecs is CODECS
        assert publisher.group == "P_shop"
        assert publisher.topics == {"TP_ORDER"}


@pytest.mark.parametrize(
    ("said", "place", "remedy"),
    [
        (None, "HALFMOON:", 'HALFMOON = {"GROUP"'),
        (["P_shop"], "HALFMOON: it is a list", "write a dict"),
        ({}, 'HALFMOON["GROUP"]: it is missing', "P_shop"),
        ({"GROUP": "P_shop"}, 'HALFMOON["NAMESERVER"]: it is missing', "127.0.0.1:9876"),
        ({**GOOD, "GROPU": 1}, "the key 'GROPU' is not known", "did you mean GROUP?"),
        ({**GOOD, 5: 1}, "the key 5 is not known", "known are GROUP"),
        ({**GOOD, "GROUP": "P shop"}, 'HALFMOON["GROUP"]', "letters, digits"),
        ({**GOOD, "NAMESERVER": "nowhere"}, 'HALFMOON["NAMESERVER"]', "host:port"),
        ({**GOOD, "NAMESERVER": ""}, 'HALFMOON["NAMESERVER"]', "host:port"),
        ({**GOOD, "MODE": "both"}, 'HALFMOON["MODE"]', "'two-phase' or 'outbox'"),
        ({**GOOD, "DATABASE": "nope"}, 'HALFMOON["DATABASE"]', "default, other"),
        ({**GOOD, "DATABASE": ["default"]}, 'HALFMOON["DATABASE"]', "default, other"),
        ({**GOOD, "TOPICS": "TP_ORDER"}, 'HALFMOON["TOPICS"]', "list of topics"),
        ({**GOOD, "TOPICS": ["TP ORDER"]}, 'HALFMOON["TOPICS"]', "letters, digits"),
        ({**GOOD, "CONSUMERS": "shop.consumers"}, 'HALFMOON["CONSUMERS"]', "write a list"),
        ({**GOOD, "CONSUMERS": ["shop.nowhere"]}, 'HALFMOON["CONSUMERS"]: there is no module', "full name"),
        ({**GOOD, "CHECKS": [""]}, 'HALFMOON["CHECKS"]', "full name"),
        ({**GOOD, "RELAY": "yes"}, 'HALFMOON["RELAY"]', "True, False or a dict"),
        ({**GOOD, "RELAY": {"pol_ms": 1}}, "HALFMOON[\"RELAY\"]: 'pol_ms'", "poll_ms"),
        ({**GOOD, "RELAY": {"attempts_max": 0}}, 'HALFMOON["RELAY"]', "attempts_max is 1 to"),
        ({**GOOD, "TIMEOUT_MS": -1}, 'HALFMOON["TIMEOUT_MS"]', "whole number"),
        ({**GOOD, "CHECK_AFTER_S": "6"}, 'HALFMOON["CHECK_AFTER_S"]', "whole number"),
        ({**GOOD, "CODECS": "nowhere.codecs"}, 'HALFMOON["CODECS"]', "package.module.name"),
        ({**GOOD, "SETTINGS": []}, 'HALFMOON["SETTINGS"]', "names and values"),
        ({**GOOD, "SETTINGS": {"group": "another"}}, "HALFMOON", "Settings"),
        ({**GOOD, "TIMEOUT_MS": 10**9}, "HALFMOON: timeout_ms", "Publisher"),
        ({**GOOD, "TRANSPORT": MemoryBus()}, 'HALFMOON["TRANSPORT"]', "leave one"),
    ],
    ids=lambda value: str(value)[-50:].partition(" object at")[0],
)
def test_what_is_wrong_is_told_with_its_place_and_a_remedy(said: Any, place: str, remedy: str):
    found = problems(said)

    assert len(found) >= 1
    assert place in found[0]
    assert remedy in found[0]


def test_modules_with_checks_are_imported_when_the_project_starts():
    name = "tests.events.django.checking"
    assert name not in sys.modules
    with override_settings(HALFMOON={**GOOD, "CHECKS": [name], "START": False}):
        apps.get_app_config("halfmoon_events").ready()

    assert name in sys.modules


async def test_the_projects_publisher_opens_and_closes_like_any():
    bus = MemoryBus()
    with override_settings(HALFMOON={"GROUP": "P_one", "TRANSPORT": bus}):
        async with events as publisher:
            await publisher.publish_async("TP_ORDER", "EC_PAID", 1, transactional=False)
    with override_settings(HALFMOON={"GROUP": "P_two", "TRANSPORT": bus, "DEFAULT": "plain"}), events as publisher:
        publisher.publish("TP_ORDER", "EC_PAID", 2)

    assert [one.payload for one in bus.events()] == [1, 2]


def test_everything_that_is_wrong_is_told_at_once():
    _, wrong = read({"GROUP": "P shop", "MODE": "both", "NAMESERVER": "x"})

    assert [one.place for one in wrong] == ['HALFMOON["GROUP"]', 'HALFMOON["MODE"]', 'HALFMOON["NAMESERVER"]']
    with override_settings(HALFMOON={"GROUP": "P shop", "MODE": "both"}), pytest.raises(ImproperlyConfigured, match="MODE"):
        configuration()


# ---------------------------------------------------------------- the publisher of the project


def test_changed_settings_make_another_publisher_and_close_the_one_before():
    first, second = MemoryBus(), MemoryBus()
    with override_settings(HALFMOON={"GROUP": "P_one", "TRANSPORT": first}):
        assert events.group == "P_one"
        before = project.project.publisher()
        assert project.project.publisher() is before
    with override_settings(HALFMOON={"GROUP": "P_two", "TRANSPORT": second}):
        assert events.group == "P_two"
    with pytest.raises(Exception, match="closed"):
        before.start()


def test_the_publisher_is_made_once_by_many_threads():
    with override_settings(HALFMOON={"GROUP": "P_one", "TRANSPORT": MemoryBus()}), ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: project.project.publisher(), range(8)))) == 1

    assert "not made yet" in repr(project.project)


@pytest.fixture
def opening() -> Iterator[project.OpenOnRequest]:
    """Opens the project's publisher with the first request."""
    found = project.OpenOnRequest()
    request_started.connect(found.request_started)
    yield found
    request_started.disconnect(found.request_started)


def test_a_request_opens_the_publisher_so_that_brokers_can_ask(file_bus: MemoryBus, opening: project.OpenOnRequest):
    assert not [one for one in file_bus.members if one.answers]
    Client().get("/nowhere/")
    until(lambda: [one for one in file_bus.members if one.answers])
    until(lambda: opening._opened == (project.project.publisher(), os.getpid()))


@pytest.mark.usefixtures("opening")
def test_a_publisher_that_cannot_be_opened_harms_no_request(caplog: pytest.LogCaptureFixture):
    with override_settings(HALFMOON={"GROUP": "P_one", "TRANSPORT": MemoryBus()}):
        project.project.publisher().close()
        assert Client().get("/nowhere/").status_code == 404
        until(lambda: "could not be opened" in caplog.text)


def test_the_relay_of_the_project_has_the_settings_that_are_said():
    said, wrong = read({**GOOD, "MODE": "outbox", "RELAY": {"poll_ms": 50, "attempts_max": 3}})

    assert wrong == []
    assert said.relay_settings() == RelaySettings(poll_ms=50, attempts_max=3)
    assert said.relay_settings(poll_ms=70) == RelaySettings(poll_ms=70, attempts_max=3)
    with said.publisher() as publisher:
        assert publisher._relay_settings == RelaySettings(poll_ms=50, attempts_max=3)
