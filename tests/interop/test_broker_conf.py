"""Every key of Apache's configuration classes: a ``broker.conf`` that has them all is heeded or told, key by key."""

from __future__ import annotations

import re
import subprocess

import pytest

from halfmoon.errors import SettingError
from halfmoon.programs.configuration import BROKER
from halfmoon.settings import load
from tests.interop.jars import jars

CLASSES = (
    "org.apache.rocketmq.common.BrokerConfig",
    "org.apache.rocketmq.store.config.MessageStoreConfig",
    "org.apache.rocketmq.remoting.netty.NettyServerConfig",
    "org.apache.rocketmq.remoting.netty.NettyClientConfig",
)
_SETTER = re.compile(r"public void set(\w)(\w*)\(")


def keys(version: str) -> list[str]:
    """Return the properties that can be set in a broker.conf: RocketMQ looks for setters, too."""
    printed = subprocess.run(
        ["javap", "-public", "-cp", f"{jars(version)}/*", *CLASSES], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    return sorted({first.lower() + rest for first, rest in _SETTER.findall(printed)})


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_every_key_is_known(version: str) -> None:
    unknown = []
    names = keys(version)
    assert len(names) > 150
    for name in names:
        try:
            load(BROKER, files=[("broker.conf", f"{name}=?")], java_sections=list(BROKER))
        except SettingError as exc:  # a value that does not fit is said in other words
            if "unknown setting" in str(exc):
                unknown.append(name)
    assert unknown == []
