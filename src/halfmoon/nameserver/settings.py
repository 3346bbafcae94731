"""What can be set of a name server. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from halfmoon.settings import forms, setting


@dataclass(frozen=True, kw_only=True)
class NameServerSettings:
    """Settings of one name server."""

    host: str = setting("127.0.0.1", form=forms.HOST, why="The address to listen on; loopback unless told otherwise.")
    port: int = setting(9876, java="listenPort", low=0, high=65535, why="Where brokers and clients connect; 0 takes a free one.")
    order_message_enable: bool = setting(
        False, java="orderMessageEnable", why="Routes carry the topic's entry of the namespace ORDER_TOPIC_CONFIG."
    )
    enable_all_topic_list: bool = setting(True, java="enableAllTopicList", why="Whether the list of all topics is given out.")
    scan_ms: int = setting(
        10_000, java="scanNotActiveBrokerInterval", low=10, high=600_000, why="How often brokers that fell silent are looked for."
    )
    broker_expiry_ms: int = setting(
        120_000, low=1000, high=3_600_000, why="A broker that did not register this long is gone, unless it named its own time."
    )
    need_wait_for_service: bool = setting(
        False, java="needWaitForService", why="Routes are refused after the start until brokers had time to register."
    )
    wait_for_service_seconds: int = setting(45, java="waitSecondsForService", low=0, high=3600, why="How long that is.")
    brokers_max: int = setting(10_000, low=1, high=1_000_000, why="Bound of the broker table; one more is refused with code 1.")
    topics_max: int = setting(
        200_000, low=1, high=10_000_000, why="Bound of the topic table; the topics of a registration beyond it are left out."
    )
    kv_entries_max: int = setting(
        100_000, low=1, high=10_000_000, why="Bound of the key and value table; one more is refused with code 1."
    )
    kv_value_bytes_max: int = setting(65_536, low=1, high=2**20, why="Longest value, in UTF-8.")
