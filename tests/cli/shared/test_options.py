"""Texts of options: times and pairs."""

from __future__ import annotations

import time

import pytest
import typer

from halfmoon.cli.shared.options import age_ms, is_users_group, is_users_topic, pairs, time_ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1970-01-01 00:00:01.250", 1250),
    ],
)
def test_a_time_is_milliseconds_or_iso_8601(text, ms):
    assert time_ms(text) == ms


@pytest.mark.parametrize(("text", "age_ms"), [("10s", 10_000), ("5m", 300_000), ("2h", 7_200_000), ("3d", 259_200_000), ("1ms", 1)])
def test_an_age_is_counted_back_from_now(text, age_ms):
    assert abs(time.time() * 1000 - age_ms - time_ms(text)) < 5_000


@pytest.mark.parametrize("text", ["", "yesterday", "5x", "-1", "9" * 30, "2026-02-30"])
def test_anything_else_is_refused(text):
    with pytest.raises(typer.BadParameter):
        time_ms(text)


def test_pairs_split_at_the_first_equals_sign():
    assert pairs(["a=b=c", "d="], "--prop") == {"a": "b=c", "d": ""}


@pytest.mark.parametrize("text", ["a", "=b"])
def test_a_pair_without_a_name_or_a_sign_is_refused(text):
    with pytest.raises(typer.BadParameter, match="--prop"):
        pairs([text], "--prop")


def test_names_of_the_protocol_are_told_from_users():
    assert not any(map(is_users_topic, ["%RETRY%C", "%DLQ%C", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster_REPLY_TOPIC"]))
    assert not any(map(is_users_group, ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"]))
    assert is_users_topic("orders")
    assert is_users_group("C_shop")


@pytest.mark.parametrize(
    ("text", "ms"), [("300ms", 300), ("10s", 10_000), ("5m", 300_000), (" 2h ", 7_200_000), ("3d", 259_200_000)]
)
def test_an_age_is_a_number_and_a_unit(text, ms):
    assert age_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "m", "-5m", "5 m", "1h30m", "9999999999s"])
def test_anything_else_is_no_age(text):
    with pytest.raises(typer.BadParameter):
        age_ms(text)
