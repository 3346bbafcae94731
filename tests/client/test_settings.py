"""Settings of clients: defaults of the original, checks, and errors that name the setting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfmoon.client.settings import AdminSettings, ProducerSettings, PullSettings, PushSettings, settings_of, with_environment
from halfmoon.errors import SettingError, UsageError
from halfmoon.model import ConsumeFrom, MessageModel


@pytest.mark.mission("000-74", "004-11", "004-12", "000-23", "000-47")
def test_a_producer_has_the_defaults_of_the_original():
    found = ProducerSettings()

    assert (found.create_topic_key, found.default_topic_queue_count, found.send_timeout_ms) == ("TBW102", 4, 3_000)
    assert (found.compress_over_bytes, found.body_bytes_max) == (4_096, 4_194_304)
    assert (found.retries_max, found.retries_async_max, found.retry_not_stored, found.latency_avoidance) == (2, 2, False, False)


def test_consumers_have_the_defaults_of_the_original():
    push, pull = PushSettings(), PullSettings()

    assert (push.model, push.consume_from, push.allocation) == (MessageModel.CLUSTERING, ConsumeFrom.LAST_OFFSET, "AVG")
    assert (push.threads, push.batch_max, push.cached_max, push.span_max, push.consume_batch_max) == (20, 32, 1_000, 2_000, 1)
    assert (pull.batch_max, pull.suspend_ms, pull.cached_total_max, pull.auto_commit_ms) == (10, 20_000, 10_000, 5_000)


def test_an_unknown_setting_is_named_with_the_nearest_right_one():
    with pytest.raises(SettingError, match=r"'send_timeout'.*'send_timeout_ms'"):
        settings_of(ProducerSettings, {"send_timeout": 5})


@pytest.mark.parametrize(
    "values",
    [
        {"send_timeout_ms": 0},
        {"send_timeout_ms": "3000"},
        {"send_timeout_ms": True},
        {"retry_not_stored": 1},
        {"serialization": "XML"},
        {"compress_type": "RAR"},
        {"compress_level": 10},
    ],
)
def test_values_that_do_not_fit_are_errors_that_name_the_setting(values):
    with pytest.raises(SettingError, match=next(iter(values))):
        settings_of(ProducerSettings, values)


@pytest.mark.parametrize("text", ["127.0.0.1", "host:0", "host:99999", ":1", "a:1;b"])
def test_name_servers_that_are_no_addresses_are_refused(text):
    with pytest.raises(UsageError):
        settings_of(AdminSettings, {"nameserver": text})


@pytest.mark.parametrize(
    ("given", "nameserver", "namespace"),
    [
        ("a:1;b:2", "a:1;b:2", ""),
        ("a:1, b:2", "a:1;b:2", ""),
        ("http://MQ_INST_x.host:80", "MQ_INST_x.host:80", "MQ_INST_x"),
        ("http://host:80", "host:80", ""),
        (["a:1", "b:2"], "a:1;b:2", ""),
    ],
)
def test_name_servers_become_plain_addresses_and_may_carry_the_namespace(given, nameserver, namespace):
    found = settings_of(AdminSettings, {"nameserver": given})

    assert (found.nameserver, found.namespace) == (nameserver, namespace)


def test_variables_of_the_environment_stand_for_what_was_not_given() -> None:
    given = settings_of(ProducerSettings, {"tls_ca": "/mine.pem"})
    assert with_environment(settings_of(ProducerSettings, {}), {"HALFMOON_TLS": "yes"}).use_tls
    found = with_environment(given, {"HALFMOON_TLS": "yes", "HALFMOON_TLS_CA": "/other.pem", "HALFMOON_TLS_VERIFY": "no", "X": "y"})
    assert (found.use_tls, found.tls_ca, found.tls_verify) == (True, "/mine.pem", False)
    neither = with_environment(given, {"HALFMOON_TLS": ""})
    assert (neither.use_tls, neither.tls_ca, neither.tls_verify) == (True, "/mine.pem", True)


def test_a_setting_that_is_given_wins_over_its_variable_even_when_it_is_what_holds_anyway() -> None:
    off = {"HALFMOON_TLS": "true", "HALFMOON_TLS_VERIFY": "false"}
    given = settings_of(ProducerSettings, {"use_tls": False, "tls_verify": True})
    for settings in (given, replace(given, group="P")):
        found = with_environment(settings, off)
        assert (found.use_tls, found.tls_verify) == (False, True)


@pytest.mark.parametrize(
    ("given", "is_on"),
    [
        ({"tls_ca": "/ca.pem"}, True),
        ({"tls_server_name": "mq.example"}, True),
        ({"tls_cert": "/cert.pem"}, True),
        ({"tls_verify": False}, True),
        ({"tls_ca": "/ca.pem", "use_tls": False}, False),
        ({"tls_verify": True, "tls_ca": ""}, False),
        ({}, False),
    ],
)
def test_what_belongs_to_tls_switches_it_on_unless_it_is_switched_off(given: dict[str, object], is_on: bool) -> None:
    for environment in ({}, {"HALFMOON_TLS": "false"}, {"HALFMOON_TLS_CA": "/other.pem"}):
        assert with_environment(settings_of(ProducerSettings, given), environment).use_tls is is_on


def test_the_password_of_a_key_is_not_in_the_text_of_settings() -> None:
    assert "Geheim" not in repr(settings_of(ProducerSettings, {"tls_key_password": "Geheim"}))
