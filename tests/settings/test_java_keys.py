"""Keys of RocketMQ that mean nothing here: told, or refused where they ask for a promise."""

from __future__ import annotations

import pytest

from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import SettingError
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.settings import describe, load
from halfmoon.settings.java_keys import IGNORED, REFUSED
from halfmoon.store.settings import StoreSettings

ALL = {"broker": BrokerSettings, "store": StoreSettings, "nameserver": NameServerSettings}


def test_a_known_key_that_means_nothing_here_is_told_with_its_reason_in_a_java_file_only() -> None:
    found = load({"broker": BrokerSettings}, files=[("broker.conf", "sendMessageThreadPoolNums=4\nbrokerName=b")])
    assert found.of(BrokerSettings).name == "b"
    ((key, source, reason, value),) = found.ignored
    assert value == "4"
    assert (key, source) == ("sendMessageThreadPoolNums", "broker.conf:1")
    assert "no thread pools" in reason
    with pytest.raises(SettingError, match="no effect here: one loop"):
        load({"broker": BrokerSettings}, assignments=["sendMessageThreadPoolNums=4"])


def test_a_key_that_asks_for_a_promise_we_cannot_keep_is_refused_unless_it_asks_for_what_is_so_anyway() -> None:
    found = load({"broker": BrokerSettings}, files=[("broker.conf", "duplicationEnable=false")])
    assert [each.key for each in found.ignored] == ["duplicationEnable"]
    with pytest.raises(SettingError, match="made by a lease"):
        load({"broker": BrokerSettings}, files=[("broker.conf", "duplicationEnable=true")])
    with pytest.raises(SettingError, match="brokerRole = 'SLAVE': must be one of ASYNC_MASTER, SYNC_MASTER"):
        load({"broker": BrokerSettings}, files=[("broker.conf", "brokerRole=SLAVE")])


def test_no_key_is_both_declared_and_ignored() -> None:
    declared = {each.java for cls in ALL.values() for each in describe(cls)}
    assert declared & (IGNORED.keys() | REFUSED.keys()) == set()
    assert IGNORED.keys() & REFUSED.keys() == set()


def test_the_broker_conf_of_a_usual_installation_is_understood() -> None:
    text = """
        brokerClusterName = DefaultCluster
        brokerName = broker-a
        brokerId = 0
        deleteWhen = 04
        fileReservedTime = 48
        brokerRole = ASYNC_MASTER
        flushDiskType = SYNC_FLUSH
        namesrvAddr = 10.0.0.1:9876;10.0.0.2:9876
        listenPort = 10921
        storePathRootDir = /data/store
    """
    found = load({"broker": BrokerSettings, "store": StoreSettings}, files=[("broker.conf", text)])
    assert found.of(BrokerSettings) == BrokerSettings(nameserver="10.0.0.1:9876;10.0.0.2:9876", port=10921)
    assert found.of(StoreSettings) == StoreSettings(file_reserved_hours=48, flush_disk_type="SYNC_FLUSH", data="/data/store")
    assert found.ignored == []
