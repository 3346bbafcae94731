"""Which arguments of a publisher do not go together, and what those mean that do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.errors import SettingError, UsageError
from halfmoon.events import Publisher, RelaySettings
from halfmoon.events.local_block import LOCAL
from halfmoon.events.publishing.arguments import is_transactional, relay_settings_of
from tests.events.fakes import FakeTransport


@pytest.mark.parametrize(
    "arguments",
    [
        {"group": "two words"},
        {"group": ""},
        {"topics": "TP_ORDER"},
        {"topics": ["two words"]},
        {"mode": "three-phase"},
        {"mode": "outbox"},
        {"default": "always"},
        {"tokens": True},
        {"tries_max": -1},
        {"tries_max": 101},
        {"tries_max": True},
        {"timeout_ms": 0},
        {"check_after_s": -1},
        {"check_after_s": 8 * 24 * 3600},
        {"nameserver": "127.0.0.1:9876", "transport": FakeTransport()},
        {"transport": FakeTransport(), "send_timeout_ms": 1},
        {"transport": "a bus"},
        {"session": object(), "provider": LOCAL},
        {"bind": object()},
        {"strict": "no"},
        {"raise_on_failure": None},
        {"notify": 1},
        {"lazy": "yes"},
        {"codecs": "json"},
        {"topics": 5},
    ],
    ids=lambda arguments: " ".join(f"{name}={str(value).partition(' object at')[0]}" for name, value in arguments.items()),
)
def test_arguments_that_do_not_go_together_are_refused_at_once(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Publisher(**{"group": "P_shop", **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "right"), [("sent_timeout_ms", "timeout_ms"), ("trys_max", "tries_max"), ("sesssion", "session")]
)
def test_a_setting_that_is_unknown_is_refused_with_the_one_that_was_meant(wrong: str, right: str) -> None:
    with pytest.raises(SettingError, match=f"'{wrong}'; did you mean '{right}'"):
        Publisher("P_shop", "127.0.0.1:9876", **{wrong: 5})


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"nameserver": "localhost"}, "nameserver: not an address of the form host:port: 'localhost'"),
        ({"nameserver": ["127.0.0.1:9876", 9877]}, "nameserver = "),
        ({"nameserver": "127.0.0.1:9876", "heartbeat_ms": "3 s"}, "heartbeat_ms = '3 s'"),
        ({"nameserver": "127.0.0.1:9876", "compress_type": "GZIP"}, "compress_type = 'GZIP'"),
        ({"nameserver": "127.0.0.1:9876", "access_key": "shop"}, "access_key and secret_key"),
        ({"nameserver": "127.0.0.1:9876", "credentials": "not/there"}, "not/there: the credentials cannot be read"),
        ({"nameserver": "127.0.0.1:9876", "tls_ca": "not/there"}, "not/there: cannot be read"),
        ({"group": "DEFAULT_PRODUCER"}, "can not equal DEFAULT_PRODUCER"),
    ],
)
def test_client_settings_that_do_not_fit_are_refused_by_the_constructor_and_not_in_the_background(
    settings: dict[str, Any], told: str, lazy: bool
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        Publisher(**{"group": "P_shop", **settings}, lazy=lazy)


def test_the_time_of_a_send_is_refused_with_the_name_of_a_publishers_own() -> None:
    with pytest.raises(SettingError, match="all attempts included, is timeout_ms"):
        Publisher("P_shop", nameserver="127.0.0.1:9876", lazy=True, send_timeout_ms=15_000)


def test_a_name_server_of_the_environment_that_is_no_address_is_refused_with_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALFMOON_NAMESERVER", "localhost")
    with pytest.raises(SettingError, match=r"environment variable HALFMOON_NAMESERVER: .*'localhost'"):
        Publisher("P_shop")


@pytest.mark.parametrize(
    ("default", "with_database", "without"), [(None, True, False), ("plain", False, False), ("transactional", True, True)]
)
def test_events_are_transactional_by_default_where_there_is_a_database(
    default: str | None, with_database: bool, without: bool
) -> None:
    assert is_transactional(default, has_database=True) is with_database
    assert is_transactional(default, has_database=False) is without


def test_a_publisher_without_sessions_has_the_provider_of_blocks() -> None:
    publisher = Publisher("P_shop", transport=FakeTransport(), topics=["TP_ORDER"])
    assert publisher.provider is LOCAL
    assert publisher.topics == {"TP_ORDER"}


def test_a_relay_that_is_switched_on_has_the_settings_of_the_defaults() -> None:
    assert relay_settings_of(True) == RelaySettings()
    assert relay_settings_of(False) is None
    with pytest.raises(UsageError, match="relay="):
        relay_settings_of("yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("publish", "told"),
    [
        (lambda shop: shop.publish("TP_ORDER"), "an event needs a code beside its topic, such as publish"),
        (lambda shop: shop.publish("TP_ORDER", "EC_PAID", 1, transactional="no"), "transactional must be True or False, not 'no'"),
        (
            lambda shop: shop.publish("TP_ORDER", "EC_PAID", 1, delay="5"),
            r"delay is '5' \(str\): give seconds, a timedelta or None",
        ),
        (lambda shop: shop.publish("TP_ORDER", "EC_PAID", 1, deliver_at=1.5e12), "deliver_at is 1500000000000.0"),
        (lambda shop: shop.check(print), r"@events.check\(topic, code\) takes a topic and a code"),
        (lambda shop: shop.check("TP_ORDER")(lambda: None), r"must take the event and its context, and .* has \(\)"),
        (lambda shop: shop.check("TP_ORDER")(lambda event: None), r"has \(event\)"),
    ],
)
def test_what_a_publisher_is_asked_wrongly_is_refused_in_words(publish: Callable[[Publisher], object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        publish(Publisher("P_shop", transport=FakeTransport()))
