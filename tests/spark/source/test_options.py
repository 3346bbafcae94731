"""Options: each is read or refused with a text that says what to do, and no secret is shown."""

from __future__ import annotations

import pickle
from dataclasses import asdict

import pytest

from halfmoon.errors import UsageError
from halfmoon.spark.sink.options import sink_options
from halfmoon.spark.source.options import SourceOptions, nearest, public, source_options

GIVEN = {"endpoints": "127.0.0.1:9876", "topic": "orders"}


def refusal(use: str = "stream", **given: str) -> str:
    with pytest.raises(UsageError) as found:
        source_options({**GIVEN, **given}, use)
    return str(found.value)


def test_the_defaults_are_those_of_the_note():
    found = source_options(GIVEN, "stream")

    assert (found.topic, found.tags, found.read_from, found.emit) == (("orders",), "*", "master", "messages")
    assert (found.max_offsets_per_trigger, found.max_bytes_per_trigger, found.fetch_bytes) == (1_000_000, 256 << 20, 4 << 20)
    assert (found.fail_on_data_loss, found.request_timeout, found.max_trigger_delay) == (True, 30_000, 900_000)


def test_names_count_without_case_and_an_alias_is_the_same_option():
    found = source_options({"NAMESERVER": "127.0.0.1:1", "TOPIC": "a, b,a", "fetchbytes": "512k"}, "batch")

    assert (found.endpoints, found.topic, found.fetch_bytes) == ("127.0.0.1:1", ("a", "b"), 512 * 1024)


@pytest.mark.parametrize(
    ("name", "right"),
    [("topics", "topic"), ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"), ("startingOffset", "startingOffsets")],
)
def test_an_unknown_option_is_refused_and_the_nearest_named(name: str, right: str):
    assert refusal(**{name: "1"}) == f"there is no option {name}; did you mean {right}?"


def test_an_option_like_no_other_is_refused_with_the_list():
    assert "there are " in refusal(zzz="1")
    assert "endpoints" in nearest("zzz", SourceOptions)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"fetchBytes": "1"}, "must be between 1024 and"),
        ({"fetchBytes": "lots"}, "must be a size"),
        ({"maxTriggerDelay": "15x"}, "must be a duration"),
        ({"retries": "-1"}, "must be a whole number"),
        ({"topic": "orders,a b"}, "cannot be the name of a topic"),
        ({"topicPattern": "x.*"}, "exactly one of topic, topicPattern and assign"),
        ({"topic": " ,"}, "names nothing"),
        ({"startingOffsets": '{"orders":{"a":{"0":-3}}}'}, "must be earliest, latest, group, or JSON"),
        ({"startingOffsets": "[" * 100_000}, "must be earliest"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "exclude each other"),
        ({"startingOffsets": "group"}, "need consumerGroup"),
        ({"reportOffsets": "true"}, "need consumerGroup"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "needs a time zone"),
        ({"tags": "a", "sqlFilter": "b = 1"}, "exclude each other"),
        ({"minPartitions": "9", "maxPartitions": "8"}, "is more than maxPartitions"),
        ({"readFrom": "files:data"}, "must be master or files:/DIR"),
        ({"endpoints": "nowhere"}, "nowhere"),
        ({"nameServer": "127.0.0.1:1"}, "given twice"),
        ({"endingOffsets": "latest"}, "is for a batch only"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(given: dict[str, str], says: str):
    assert says in refusal(**given)


def test_a_stream_s_options_are_refused_in_a_batch():
    assert "maxOffsetsPerTrigger is for a stream only" in refusal("batch", maxOffsetsPerTrigger="5")
    assert "nothing to read" in refusal("batch", startingOffsets="latest")


@pytest.mark.parametrize("missing", ["endpoints", "topic"])
def test_what_is_needed_is_named(missing: str):
    with pytest.raises(UsageError, match=missing):
        source_options({name: text for name, text in GIVEN.items() if name != missing}, "batch")


@pytest.mark.parametrize("name", ["secretKeys", "accessKeys", "password"])
def test_the_value_of_an_unknown_option_is_not_shown(name: str):
    text = refusal(**{name: "sesame"})

    assert name in text
    assert "sesame" not in text


@pytest.mark.parametrize(
    ("kafkas", "ours"),
    [
        ("kafka.bootstrap.servers", "endpoints"), ("subscribe", "topic"), ("subscribePattern", "topicPattern"),
        ("startingOffsetsByTimestamp", "startingTimestamp"), ("endingOffsetsByTimestamp", "endingTimestamp"),
        ("includeHeaders", "includeProperties"), ("kafka.group.id", "consumerGroup"),
    ],
)  # fmt: skip
def test_kafkas_name_of_an_option_is_answered_with_ours(kafkas: str, ours: str):
    assert f"Kafka's {kafkas} is {ours}" in refusal(**{kafkas: "x"})


@pytest.mark.parametrize("name", ["nameserver", "nameServer", "endpoints"])
def test_name_servers_are_given_as_endpoints_or_nameserver(name: str):
    assert source_options({name: "127.0.0.1:9876", "topic": "orders"}, "batch").endpoints == "127.0.0.1:9876"


def test_a_field_has_the_name_that_users_write():
    assert public("max_offsets_per_trigger") == "maxOffsetsPerTrigger"


def test_workers_sign_and_encrypt_as_the_environment_of_the_driver_says(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"ACCESS_KEY": "alice", "SECRET_KEY": "sesame", "TLS": "true", "TLS_CA": "/ca.pem"}.items():
        monkeypatch.setenv(f"HALFMOON_{name}", value)
    at_the_driver = [source_options(GIVEN, "batch"), sink_options(GIVEN), source_options({**GIVEN, "useTls": "false"}, "batch")]
    given = source_options({**GIVEN, "credentials": "/there", "tlsCa": "/mine.pem"}, "batch")
    for name in ("ACCESS_KEY", "SECRET_KEY", "TLS", "TLS_CA"):
        monkeypatch.delenv(f"HALFMOON_{name}")

    for options, encrypted in zip(at_the_driver, (True, True, False), strict=True):
        at_a_worker = asdict(pickle.loads(pickle.dumps(options)))
        found = {name: at_a_worker[name] for name in ("access_key", "secret_key", "use_tls", "tls_ca")}
        assert found == {"access_key": "alice", "secret_key": "sesame", "use_tls": encrypted, "tls_ca": "/ca.pem"}
    assert (given.access_key, given.credentials, given.tls_ca) == ("", "/there", "/mine.pem")
