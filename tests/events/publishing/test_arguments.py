"""What the arguments of a publisher mean, and which do not go together."""

from __future__ import annotations

import pytest

from halfmoon.errors import SettingError, UsageError
from halfmoon.events import NameRefused, RelaySettings
from halfmoon.events.local_block import LOCAL
from halfmoon.events.publishing import arguments
from halfmoon.events.testing import MemoryBus


def test_a_publisher_without_sessions_has_the_provider_of_blocks() -> None:
    assert arguments.provider_of(None, None, None, None) is LOCAL
    with pytest.raises(UsageError, match="not both"):
        arguments.provider_of(object(), LOCAL, None, None)
    with pytest.raises(UsageError, match="bind="):
        arguments.provider_of(None, None, object(), None)


def test_a_bus_gives_a_member_and_a_wrong_setting_a_hint() -> None:
    bus = MemoryBus()
    assert arguments.transport_of(bus, "P_shop", "", {}, []).group == "P_shop"  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="not both"):
        arguments.transport_of(bus, "P_shop", "127.0.0.1:9876", {}, [])
    with pytest.raises(SettingError, match="did you mean 'sesion'"):
        arguments.transport_of(None, "P_shop", "", {"sesssion": 1}, ["sesion"])


def test_words_and_numbers_are_checked() -> None:
    assert arguments.relay_settings_of(True) == RelaySettings()
    assert arguments.relay_settings_of(False) is None
    assert arguments.declared_topics(["TP_ORDER"]) == {"TP_ORDER"}
    assert arguments.checked_after_s(None) is None
    for wrong in (
        lambda: arguments.relay_settings_of("yes"),  # type: ignore[arg-type]
        lambda: arguments.is_outbox("inbox", "plain", has_database=True),
        lambda: arguments.is_outbox("outbox", "plain", has_database=False),
        lambda: arguments.is_outbox("outbox", "always", has_database=True),
        lambda: arguments.declared_topics("TP_ORDER"),
        lambda: arguments.checked_after_s(-1),
    ):
        with pytest.raises(UsageError):
            wrong()
    with pytest.raises(NameRefused):
        arguments.declared_topics(["no topic"])
