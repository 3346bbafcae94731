"""The publisher of the project: made when it is first used, with the checks that were declared before, and made anew after."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from halfmoon.events.django.project import ProjectEvents
from halfmoon.events.testing import MemoryBus

BUS = MemoryBus()
ROOT = Path(__file__).parents[3]


@pytest.fixture
def project() -> Iterator[ProjectEvents]:
    mine = ProjectEvents()
    with override_settings(HALFMOON={"GROUP": "P_mine", "TRANSPORT": BUS}):
        yield mine
        mine.forget()


def test_it_is_made_when_it_is_first_used_and_once(project: ProjectEvents):
    with pytest.raises(AttributeError):
        project.__wrapped__  # noqa: B018 - as inspect does
    assert repr(project) == "<events of the project, not made yet>"
    assert project.group == "P_mine"
    assert repr(project) == "<events of the project, group P_mine>"
    assert project.publisher() is project.publisher()


def test_checks_are_declared_on_every_publisher_whenever_it_is_made(project: ProjectEvents, monkeypatch: pytest.MonkeyPatch):
    def early(event: Any, context: Any) -> None: ...

    def late(event: Any, context: Any) -> None: ...

    assert project.check("TP_ORDER", "EC_PAID")(early) is early
    assert "not made yet" in repr(project), "the settings are not looked at yet"
    publisher = project.publisher()
    project.check("TP_ORDER", "EC_SENT")(late)
    another = project.made(timeout_ms=500)

    for made in (publisher, another):
        with pytest.raises(Exception, match="EC_PAID"):
            made.check("TP_ORDER", "EC_PAID")(late)
        with pytest.raises(Exception, match="EC_SENT"):
            made.check("TP_ORDER", "EC_SENT")(early)
    assert another is not publisher


def test_wrong_settings_are_told_at_the_first_use(project: ProjectEvents):
    with override_settings(HALFMOON={"TRANSPORT": BUS}), pytest.raises(ImproperlyConfigured, match="GROUP"):
        project.publisher()
    assert project.group == "P_mine", "a failure is not kept"


STARTED = """
import sys
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["halfmoon.events.django"],
    HALFMOON={"GROUP": "P_started", "NAMESERVER": "127.0.0.1:1", **eval(sys.argv[1])},
)
"""
SERVER = "from django.core.wsgi import get_wsgi_application; get_wsgi_application()\n"
TESTS = "import django.test; " + SERVER
COMMAND = (
    "from django.core.management import execute_from_command_line; execute_from_command_line(['manage.py', 'migrate', '-v0'])\n"
)


@pytest.mark.parametrize(
    ("process", "configured", "is_connecting"),
    [(SERVER, "{}", True), (SERVER, "{'START': False}", False), (COMMAND, "{}", False), (TESTS, "{}", False)],
    ids=["server", "server that does not start it", "command", "tests"],
)
def test_a_process_that_serves_connects_when_django_is_ready(process: str, configured: str, is_connecting: bool):
    asked = "from halfmoon.events.django import events; print(events)"
    assert ("group P_started" in started(process + asked, configured)) == is_connecting


def test_settings_that_are_wrong_keep_no_server_from_starting():
    assert started(SERVER + "print('serves')", "{'MODE': 'three-phase'}") == "serves\n"


def started(process: str, configured: str) -> str:
    """Run a process of a project, and return what it prints."""
    command = [sys.executable, "-c", STARTED + process, configured]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
