"""Names: what may be called how, and how a namespace wraps them."""

from __future__ import annotations

import pytest

from halfmoon.client.core.names import check_group, check_sendable, check_topic, unwrap, wrap
from halfmoon.errors import UsageError


@pytest.mark.mission("000-42")
@pytest.mark.parametrize("topic", ["", "  ", None, "a b", "a/b", "../x", "ü", "a" * 128, "a\n", 5])
def test_texts_that_cannot_be_topics_are_refused(topic):
    with pytest.raises(UsageError):
        check_topic(topic)


@pytest.mark.mission("000-42")
@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
     "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"],
)  # fmt: skip
def test_topics_of_the_broker_are_refused_for_sending(topic):
    check_topic(topic)
    with pytest.raises(UsageError, match="forbidden"):
        check_sendable(topic)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "a|b-C_9", "a" * 127])
def test_ordinary_topics_pass(topic):
    check_topic(topic)
    check_sendable(topic)


@pytest.mark.parametrize("group", ["", None, "a b", "g" * 256, "DEFAULT_PRODUCER"])
def test_texts_that_cannot_be_groups_are_refused(group):
    with pytest.raises(UsageError):
        check_group(group, "DEFAULT_PRODUCER")


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "ns%orders"),
        ("ns%orders", "ns%orders"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("%RETRY%ns%g", "%RETRY%ns%g"),
        ("%DLQ%g", "%DLQ%ns%g"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
    ],
)
def test_a_namespace_wraps_once_and_leaves_system_names_alone(name, wrapped):
    assert wrap(name, "ns") == wrapped
    assert wrap(name, "") == name
    assert unwrap(wrapped, "ns") == name.replace("ns%", "")
