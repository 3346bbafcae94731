"""Tests of the bodies about groups (`halfmoon.wire.bodies.groups`): progress with queues as keys, tables as brokers keep them."""

from __future__ import annotations

import pytest

from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import (
    BrokerConsumeStats,
    BrokerStatsData,
    BrokerStatsItem,
    ConsumerOffsetTable,
    ConsumerStatus,
    ConsumeStats,
    ConsumeTimeSpans,
    DelayOffsetTable,
    OffsetWrapper,
    QueueTimeSpan,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicOffset,
    TopicStatsTable,
    from_json,
    to_json,
)

QUEUE = MessageQueue("t", "b", 0)


def test_a_reset_is_written_with_queues_as_keys_and_for_cpp_clients_as_a_list():
    body = ResetOffsetBody({QUEUE: 123})

    assert to_json(body) == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:123}}'
    assert body.list_json() == b'{"offsetTable":[{"brokerName":"b","offset":123,"queueId":0,"topic":"t"}]}'


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:123}}',
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"t\\"}":123}}',
        b'{"offsetTable":[{"brokerName":"b","offset":123,"queueId":0,"topic":"t"}]}',
    ],
)
def test_a_reset_is_read_in_all_its_forms(text):
    assert from_json(ResetOffsetBody, text).offset_table == {QUEUE: 123}


def test_consumer_status_has_queues_as_keys_on_both_levels():
    text = b'{"consumerTable":{"c":{{"brokerName":"b","queueId":0,"topic":"t"}:5}},"messageQueueTable":{}}'

    found = from_json(ConsumerStatus, text)

    assert found.consumer_table == {"c": {QUEUE: 5}}
    assert to_json(found) == text


def test_progress_and_ends_of_queues_are_written_as_java_writes_them():
    stats, ends = ConsumeStats({QUEUE: OffsetWrapper(9, 3, 0)}), TopicStatsTable({QUEUE: TopicOffset(0, 3, 0)})

    assert to_json(stats) == (
        b'{"consumeTps":0.0,"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"brokerOffset":9,"consumerOffset":3,'
        b'"lastTimestamp":0}}}'
    )
    assert to_json(ends) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"lastUpdateTimestamp":0,"maxOffset":3,"minOffset":0}}}'
    )


def test_progress_of_all_groups_nests_tables_with_queues_as_keys():
    body = BrokerConsumeStats("1.2.3.4:5", [{"g": [ConsumeStats({QUEUE: OffsetWrapper(9, 3, 0)})]}], 6)

    assert from_json(BrokerConsumeStats, to_json(body)) == body


def test_the_offset_file_of_a_broker_is_read_and_written():
    text = b'{"offsetTable":{"TopicTest@group":{0:120,1:118}}}'
    pretty = b'{\n\t"offsetTable":{\n\t\t"TopicTest@group":{0:120,1:118\n\t\t}\n\t}\n}'

    assert from_json(ConsumerOffsetTable, text).offset_table == {"TopicTest@group": {0: 120, 1: 118}}
    assert from_json(ConsumerOffsetTable, pretty) == from_json(ConsumerOffsetTable, text)
    assert to_json(from_json(ConsumerOffsetTable, text)) == text


def test_the_delay_file_of_a_broker_is_read_and_written():
    text = b'{"offsetTable":{1:42,2:7}}'

    assert from_json(DelayOffsetTable, text).offset_table == {1: 42, 2: 7}
    assert to_json(from_json(DelayOffsetTable, text)) == text


def test_the_group_file_of_a_broker_is_read_and_written():
    text = (
        b'{"dataVersion":{"counter":1,"timestamp":2},"subscriptionGroupTable":{"g":{"brokerId":0,"consumeBroadcastEnable":true,'
        b'"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"g","notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,'
        b'"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}}}'
    )

    found = from_json(SubscriptionGroupTable, text)

    assert found.subscription_group_table == {"g": SubscriptionGroupConfig("g")}
    assert to_json(found) == text


def test_what_5_x_adds_to_a_group_is_kept():
    text = b'{"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"consumeTimeoutMinute":15,"attributes":{}}'

    found = from_json(SubscriptionGroupConfig, text)

    assert b'"groupRetryPolicy":{"type":"CUSTOMIZED"}' in to_json(found)
    assert from_json(SubscriptionGroupConfig, to_json(found)) == found


def test_statistics_and_time_spans_use_the_names_of_the_wire():
    stats = to_json(BrokerStatsData(BrokerStatsItem(1, 2.0, 3.0)))
    spans = to_json(ConsumeTimeSpans([QueueTimeSpan(QUEUE, 1, 2, 3, 4)]))

    assert b'"statsMinute":{"avgpt":3.0,"sum":1,"tps":2.0}' in stats
    assert spans == (
        b'{"consumeTimeSpanSet":[{"consumeTimeStamp":3,"delayTime":4,"maxTimeStamp":2,"messageQueue":{"brokerName":"b","queueId":0,'
        b'"topic":"t"},"minTimeStamp":1}]}'
    )
