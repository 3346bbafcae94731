"""The life of a client: started once, used between start and close, closed as often as one likes."""

from __future__ import annotations

import pytest

from halfmoon import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    NoNameServer,
    Producer,
    PullConsumer,
    UsageError,
)
from halfmoon.client.batches import BatchTransactions
from halfmoon.client.bulk import BulkProducer
from halfmoon.client.ranges import Ranges
from halfmoon.errors import NotRunning, SettingError
from halfmoon.wire.signature import Credentials

NOBODY = "127.0.0.1:9"


async def test_a_client_is_started_once_and_closed_as_often_as_one_likes():
    admin = AsyncAdmin(nameserver=NOBODY)
    await admin.close()

    await admin.start()
    with pytest.raises(UsageError, match="maybe started once"):
        await admin.start()
    await admin.close()
    await admin.close()

    with pytest.raises(UsageError, match="maybe started once"):
        await admin.start()


async def test_a_client_is_used_between_start_and_close():
    admin = AsyncAdmin(nameserver=NOBODY)
    with pytest.raises(NotRunning, match="AsyncAdmin is not running"):
        await admin.topics()

    async with admin:
        pass

    with pytest.raises(NotRunning):
        await admin.topics()


async def test_the_name_servers_of_the_environment_serve_where_none_are_set(monkeypatch):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(NoNameServer):
        await AsyncAdmin().start()

    monkeypatch.setenv("NAMESRV_ADDR", NOBODY)

    assert AsyncAdmin().settings.nameserver == NOBODY
    assert AsyncAdmin(nameserver="127.0.0.1:10").settings.nameserver == "127.0.0.1:10"


def test_a_client_signs_as_its_settings_or_its_environment_say(monkeypatch):
    monkeypatch.setenv("HALFMOON_ACCESS_KEY", "variable")
    monkeypatch.setenv("HALFMOON_SECRET_KEY", "its secret")

    by_variable = AsyncAdmin(nameserver="127.0.0.1:1")
    by_setting = AsyncAdmin(nameserver="127.0.0.1:1", access_key="setting", secret_key="another one")

    assert by_variable.credentials == Credentials("variable", "its secret")
    assert by_setting.credentials == Credentials("setting", "another one")
    assert "another one" not in repr(by_setting.settings)
    with pytest.raises(SettingError, match="both"):
        AsyncAdmin(nameserver="127.0.0.1:1", access_key="setting")


OF_A_GROUP = (AsyncProducer, AsyncTransactionProducer, AsyncPushConsumer, AsyncPullConsumer, Producer, PullConsumer, BulkProducer)


@pytest.mark.parametrize("kind", [*OF_A_GROUP, AsyncAdmin, Admin, BatchTransactions, Ranges])
def test_every_client_encrypts_where_it_is_given_whom_to_trust(kind, monkeypatch):
    monkeypatch.delenv("HALFMOON_TLS", raising=False)
    group = {"group": "G"} if kind in OF_A_GROUP else {}
    with pytest.raises(SettingError, match=r"TLS CA certificates /nowhere\.pem: cannot be read"):
        kind(nameserver=NOBODY, tls_ca="/nowhere.pem", **group)


def test_a_client_that_is_told_not_to_encrypt_loads_no_authority():
    assert AsyncAdmin(nameserver=NOBODY, tls_ca="/nowhere.pem", use_tls=False).tls is None
