"""Settings of a relay: those that are documented, and what is refused."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError
from halfmoon.events.outbox.relay import Relay, RelaySettings


@pytest.mark.parametrize(
    "settings",
    [
        {"poll_ms": 0},
        {"batch_max": 0},
        {"batch_max": True},
        {"claim_ms": 3_000},
        {"attempts_max": 0},
        {"timeout_ms": "3"},
        {"pol": 1},
    ],
)
def test_settings_that_cannot_be_are_refused(settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        Relay(None, None, **settings)


def test_a_relay_without_settings_has_those_that_are_documented():
    assert Relay(None, None).settings == RelaySettings()
