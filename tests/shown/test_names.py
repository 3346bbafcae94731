"""Names of the protocol and names of users."""

from __future__ import annotations

from halfmoon.shown.names import is_users_group, is_users_topic


def test_names_of_the_protocol_are_told_from_users():
    assert not any(map(is_users_topic, ["%RETRY%C", "%DLQ%C", "TBW102", "RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster_REPLY_TOPIC"]))
    assert not any(map(is_users_group, ["TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS"]))
    assert is_users_topic("orders")
    assert is_users_group("C_shop")
