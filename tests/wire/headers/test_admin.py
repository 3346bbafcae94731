"""Requests about a broker itself, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers.admin import GetBrokerConfig, UpdateBrokerConfig, ViewBrokerStatsData
from halfmoon.wire.table import request_type
from tests.wire.headers.fields import sent


def test_a_statistic_is_asked_for_by_name_and_key():
    header = ViewBrokerStatsData(stats_name="TOPIC_PUT_NUMS", stats_key="orders")
    assert sent(header) == {"statsName": "TOPIC_PUT_NUMS", "statsKey": "orders"}


def test_settings_are_read_by_everybody_and_changed_by_administrators():
    assert (request_type(GetBrokerConfig).admin, request_type(UpdateBrokerConfig).admin) == (False, True)
    assert sent(request_type(GetBrokerConfig).reply(version="{}")) == {"version": "{}"}
