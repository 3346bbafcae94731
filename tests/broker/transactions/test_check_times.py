"""When half messages are asked about: the defaults of RocketMQ 4.7.1, and what settings make of them."""

from dataclasses import replace

import pytest

from halfmoon.broker.settings import BrokerSettings
from tests.broker.half import GROUP, checks, prepare, produce


def asked_after(talk, ages_ms, until_ms):
    """Prepare messages at these times, and return by key when each was asked about first, ms after the start."""
    begin, asked = talk.now, {}
    wanted = dict(ages_ms)
    for at in range(0, until_ms, 500):
        if at % 30_000 == 0:
            produce(talk, GROUP)
        for key in [key for key, when in wanted.items() if when == at]:
            del wanted[key]
            prepare(talk, key)
        talk.wait(500)
        for header, _ in checks(talk):
            asked.setdefault(header.transaction_id, talk.now - begin)
    return asked


@pytest.mark.mission("004-27", "004-29")
def test_by_default_rounds_come_each_minute_and_ask_about_what_is_six_seconds_old(talk):
    settings = BrokerSettings()
    assert (settings.transaction_check_interval_ms, settings.transaction_timeout_ms) == (60_000, 6_000)
    asked = asked_after(talk, {"old": 53_000, "young": 55_000, "next": 70_000}, 190_000)
    assert sorted(asked) == ["next", "old", "young"]
    assert 60_000 <= asked["old"] <= 61_000  # seven seconds old in the first round
    assert 120_000 <= asked["young"] <= 121_000  # five seconds old in the first round
    assert 120_000 <= asked["next"] <= 121_000  # nothing comes between two rounds


@pytest.mark.mission("004-27")
def test_the_rounds_come_as_often_as_the_setting_says(make_talk):
    asked = asked_after(make_talk(transaction_check_interval_ms=20_000), {"a": 1000, "b": 21_000}, 70_000)
    assert 20_000 <= asked["a"] <= 21_000
    assert 40_000 <= asked["b"] <= 41_000


@pytest.mark.mission("004-29")
@pytest.mark.parametrize(("timeout_ms", "round_ms"), [(1000, 60_000), (20_000, 120_000)])
def test_the_least_age_of_what_is_asked_about_is_what_the_setting_says(make_talk, timeout_ms, round_ms):
    asked = asked_after(make_talk(transaction_timeout_ms=timeout_ms), {"a": 50_000}, 130_000)
    assert round_ms <= asked["a"] <= round_ms + 1000


def member_of_a_pair(talk):
    """Have a broker begin as the master of a pair would."""
    talk.settings = replace(talk.settings, lease="etcd://127.0.0.1:2379/halfmoon")
    talk.restart()
    return talk


def test_a_member_of_a_pair_that_begins_asks_early_about_what_the_master_before_it_left(make_talk):
    asked = asked_after(member_of_a_pair(make_talk()), {"a": 0, "b": 14_000, "later": 56_000}, 130_000)
    assert 6_000 <= asked["a"] <= 13_000
    assert 20_000 <= asked["b"] <= 27_000
    assert 115_000 <= asked["later"] <= 127_000  # after its first interval rounds come as they always do


def test_early_rounds_ask_about_a_half_message_once_an_interval(make_talk):
    talk = member_of_a_pair(make_talk())
    produce(talk, GROUP)
    prepare(talk, "a")
    asked = 0
    for _ in range(55):
        talk.wait(1000)
        asked += len(checks(talk))
    assert asked == 1


def test_a_check_whose_answer_went_to_the_master_before_is_asked_again_soon(make_talk):
    talk = make_talk(transaction_timeout_ms=2_000)
    produce(talk, GROUP)
    prepare(talk, "a")
    talk.wait(65_000)
    assert len(checks(talk)) == 1
    member_of_a_pair(talk)
    produce(talk, GROUP)
    talk.wait(5_000)
    assert len(checks(talk)) == 1
