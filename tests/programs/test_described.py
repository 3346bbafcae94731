"""What is known of the settings that servers answer with: Halfmoon's with default and reason, of Apache's only the values."""

from __future__ import annotations

import pytest

from halfmoon.programs.described import known_settings, setting_rows, without_effect

OURS = {"transactionTimeOut": "3000", "half_messages_readable": "false", "brokerName": "broker-a"}
APACHES = {"transactionTimeOut": "3000", "brokerName": "broker-a", "innerOnes": "1"}


def test_a_setting_of_ours_has_default_reason_and_whether_it_differs():
    row = {each["setting"]: each for each in setting_rows("broker", OURS)}["transactionTimeOut"]
    assert row == {
        "setting": "transactionTimeOut", "name": "transaction_timeout_ms", "value": "3000", "default": "6000", "java":
        "transactionTimeOut", "set": "any time", "changed": True, "reason": "Age of a half message before its first check.",
    }  # fmt: skip


def test_what_the_machine_has_is_not_marked_as_changed():
    rows = setting_rows("broker", {**OURS, "memory_bytes": "68719476736", "clientCallbackExecutorThreads": "64"})
    assert {row["setting"]: row["changed"] for row in rows if row["default"] is None} == {
        "memory_bytes": False, "clientCallbackExecutorThreads": False,
    }  # fmt: skip


def test_of_apaches_only_values_are_known():
    rows = setting_rows("broker", APACHES)
    assert [(row["setting"], row["value"]) for row in rows] == sorted(APACHES.items())
    assert {(row["default"], row["reason"], row["changed"]) for row in rows} == {(None, None, False)}


@pytest.mark.parametrize("of", ["broker", "nameserver"])
def test_every_setting_has_a_reason_and_some_can_be_set_any_time(of):
    found = known_settings(of).values()
    assert all(each["reason"] for each in found)
    assert {each["set"] for each in found} == {"any time", "at start"}


def test_what_a_server_took_in_vain_is_said_with_the_reason():
    assert without_effect("broker", {"transactionTimeOut": "3000"}, OURS) == {}
    assert without_effect("broker", {"mapedFileSizeConsumeQueueExt": "1"}, OURS).keys() == {"mapedFileSizeConsumeQueueExt"}
    assert without_effect("broker", {"nothing": "1", "innerOnes": "2", "brokerName": "BROKER-A"}, APACHES) == {
        "nothing": "it has no such setting", "innerOnes": "it is 1",
    }  # fmt: skip
