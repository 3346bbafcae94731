"""Settings of a name server. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from halfmoon.documentation import see
from halfmoon.settings import forms, setting
from halfmoon.settings.connections import ConnectionSettings


@dataclass(frozen=True, kw_only=True)
class NameServerSettings(ConnectionSettings):
    """Settings of one name server."""

    host: str = setting("127.0.0.1", form=forms.HOST, why="The address to listen on; loopback by default.")
    port: int = setting(9876, java="listenPort", low=0, high=65535, why="Where brokers and clients connect; 0 takes a free one.")
    register_from: str = setting(
        "",
        form=forms.NETWORKS,
        why="Machines that may register brokers and change routes and values; others must sign that with register_secret. Empty, "
        f"and without a secret: everybody may; see {see('access')}.",
    )
    register_secret: str = setting(
        "",
        form=forms.SECRET,
        secret=True,
        why="Secret by which others may register brokers and change routes and values: it signs the request, as an account's does.",
    )
    register_secret_previous: str = setting(
        "", form=forms.SECRET, secret=True, why="Taken as well as register_secret, while brokers get the new one."
    )
    register_certificates: str = setting(
        "",
        form=forms.CERTIFICATES,
        why="Names in the certificates of clients that may register brokers and change routes and values unsigned; needs "
        f"tls.server.need.client.auth. See {see('access')}.",
    )
    order_message_enable: bool = setting(
        False, java="orderMessageEnable", why="Routes carry the topic's entry of the namespace ORDER_TOPIC_CONFIG."
    )
    enable_all_topic_list: bool = setting(True, java="enableAllTopicList", why="Answer requests for the list of all topics.")
    scan_ms: int = setting(
        10_000, java="scanNotActiveBrokerInterval", low=10, high=600_000, why="How often expired brokers are removed."
    )
    broker_expiry_ms: int = setting(
        120_000,
        low=1000,
        high=3_600_000,
        why="A broker that does not register for this long expires; it may name another time.",
    )
    need_wait_for_service: bool = setting(
        False, java="needWaitForService", why="Refuse routes after the start, until brokers have had time to register."
    )
    wait_for_service_seconds: int = setting(45, java="waitSecondsForService", low=0, high=3600, why="How long they are refused.")
    brokers_max: int = setting(10_000, low=1, high=1_000_000, why="Maximum number of brokers; one more is refused with code 1.")
    topics_max: int = setting(
        200_000, low=1, high=10_000_000, why="Maximum number of topics; those of a registration beyond it are left out."
    )
    kv_entries_max: int = setting(
        100_000, low=1, high=10_000_000, why="Maximum number of KV entries; one more is refused with code 1."
    )
    kv_bytes_max: int = setting(
        4 * 1024 * 1024,
        low=1024,
        high=12 * 1024 * 1024,
        why="Maximum size of all KV entries together: each change writes the file whole.",
    )
    kv_value_bytes_max: int = setting(65_536, low=1, high=2**20, why="Longest value, in UTF-8.")


CHANGEABLE = frozenset({
    "order_message_enable", "enable_all_topic_list", "scan_ms", "broker_expiry_ms",
    "need_wait_for_service", "wait_for_service_seconds",
})  # fmt: skip
"""Settings that a running name server can change."""
