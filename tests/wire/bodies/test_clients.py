"""Tests of the bodies about clients (`halfmoon.wire.bodies.clients`): the worked heartbeat, and the ways of Go and C++ clients."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.model import ConsumeType, MessageModel, MessageQueue, subscription
from halfmoon.wire.bodies import (
    BadBody,
    ConsumeDirectlyResult,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerIdList,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchReply,
    LockBatchRequest,
    ProcessQueueInfo,
    ProducerData,
    ProducerTable,
    SubscriptionData,
    from_json,
    to_json,
)

HEARTBEAT = """{"clientID":"192.0.2.2@cinst",
 "consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY",
   "groupName":"cg1","messageModel":"CLUSTERING",
   "subscriptionDataSet":[
     {"classFilterMode":false,"codeSet":[2598919,2598938],"expressionType":"TAG","subString":"TagA || TagT",
      "subVersion":1795245458047,"tagsSet":["TagA","TagT"],"topic":"TopicA"},
     {"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*","subVersion":1795245458051,
      "tagsSet":[],"topic":"%RETRY%cg1"}],
   "unitMode":false}],
 "heartbeatFingerprint":0,
 "producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"},{"groupName":"pg1"}],
 "withoutSub":false}"""


def test_the_worked_heartbeat_is_read_and_written():
    found = from_json(HeartbeatData, HEARTBEAT.encode())

    [consumer] = found.consumer_data_set
    assert found.client_id == "192.0.2.2@cinst"
    assert [producer.group_name for producer in found.producer_data_set] == ["CLIENT_INNER_PRODUCER", "pg1"]
    assert (consumer.group_name, consumer.consume_type, consumer.message_model, consumer.consume_from_where) == (
        "cg1",
        ConsumeType.CONSUME_PASSIVELY,
        MessageModel.CLUSTERING,
        ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    assert consumer.subscription_data_set[0].subscription() == subscription("TopicA", "TagA || TagT", version=1795245458047)
    assert consumer.subscription_data_set[1].subscription() == subscription("%RETRY%cg1", version=1795245458051)
    assert json.loads(to_json(found)) == json.loads(HEARTBEAT)


def test_a_heartbeat_of_ours_has_no_field_of_5_x():
    ours = HeartbeatData("c", [ProducerData("pg")], [ConsumerData("cg", ConsumeType.CONSUME_ACTIVELY, MessageModel.BROADCASTING)])

    assert json.loads(to_json(ours)) == {
        "clientID": "c",
        "producerDataSet": [{"groupName": "pg"}],
        "consumerDataSet": [
            {
                "groupName": "cg",
                "consumeType": "CONSUME_ACTIVELY",
                "messageModel": "BROADCASTING",
                "subscriptionDataSet": [],
                "unitMode": False,
            }
        ],
    }


def test_the_heartbeat_of_a_go_client_is_read():
    text = (
        b'{"clientID":"go","producerDataSet":null,"consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",'
        b'"messageModel":"BroadCasting","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","unitMode":false,"subscriptionDataSet":'
        b'[{"topic":"t","subString":"TagA","tagsSet":["TagA"],"codeSet":["2598919"],"subVersion":1,"expressionType":"TAG",'
        b'"classFilterMode":false}]}]}'
    )

    [consumer] = from_json(HeartbeatData, text).consumer_data_set

    assert consumer.message_model is MessageModel.BROADCASTING
    assert consumer.subscription_data_set[0].subscription() == subscription("t", "TagA", version=1)


def test_the_heartbeat_of_a_cpp_client_is_read():
    text = (
        b'{"clientID":"cpp","consumerDataSet":[{"groupName":"g","consumeType":1,"messageModel":1,"consumeFromWhere":4,'
        b'"subscriptionDataSet":[]}],"producerDataSet":[]}'
    )

    [consumer] = from_json(HeartbeatData, text).consumer_data_set

    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@given(st.sampled_from(["*", "TagA", "TagA || TagB", "中文||x", None]), st.integers(0, 2**62))
def test_a_subscription_travels_and_comes_back(expression, version):
    plain = subscription("t", expression, version=version)

    assert from_json(SubscriptionData, to_json(SubscriptionData.of(plain))).subscription() == plain


def test_an_sql_subscription_travels_and_comes_back():
    plain = subscription("t", "a > 1 AND b = 'x'", "SQL92", version=5)

    travels = SubscriptionData.of(plain)

    assert (travels.sub_string, travels.expression_type, travels.tags_set) == ("a > 1 AND b = 'x'", "SQL92", [])
    assert travels.subscription() == plain


def test_queues_to_lock_are_read_and_written():
    text = b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}'

    found = from_json(LockBatchRequest, text)

    assert found == LockBatchRequest("c", "g", [MessageQueue("t", "b", 0)])
    assert to_json(found) == text
    assert to_json(LockBatchReply(found.mq_set)) == b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"t"}]}'


def test_the_lists_of_consumers_and_producers_are_read():
    ids = from_json(ConsumerIdList, b'{"consumerIdList":["192.0.2.2@1"]}')
    table = from_json(
        ProducerTable,
        b'{"data":{"g":[{"clientId":"c","language":"JAVA","lastUpdateTimestamp":1,"remoteIP":"1.2.3.4:5","version":409}]}}',
    )

    assert ids.consumer_id_list == ["192.0.2.2@1"]
    assert table.data["g"][0].remote_ip == "1.2.3.4:5"
    assert b'"remoteIP":"1.2.3.4:5"' in to_json(table)


def test_consumer_connections_name_their_enums():
    text = (
        b'{"connectionSet":[{"clientAddr":"1.2.3.4:5","clientId":"c","language":"JAVA","version":409}],"consumeFromWhere":'
        b'"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{}}'
    )

    assert to_json(from_json(ConsumerConnection, text)) == text


def test_running_info_has_queues_as_keys_and_the_wire_s_misspelling():
    info = ConsumerRunningInfo(
        {"PROP_CONSUME_TYPE": "CONSUME_PASSIVELY"}, mq_table={MessageQueue("t", "b", 0): ProcessQueueInfo(7)}
    )

    text = to_json(info)

    assert b'"mqTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{' in text
    assert b'"droped":false' in text
    assert b'"cachedMsgSizeInMiB":0' in text
    assert b"jstack" not in text
    assert from_json(ConsumerRunningInfo, text) == info


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (b'{"consumeResult":"CR_LATER","spentTimeMills":3}', ConsumeResult.CR_LATER),
        (b'{"order":false,"autoCommit":true,"consumeResult":0,"remark":"","spentTimeMills":0}', ConsumeResult.CR_SUCCESS),
        (b'{"consumeResult":5}', ConsumeResult.CR_RETURN_NULL),
    ],
)
def test_what_a_listener_made_of_a_message_is_named_by_java_and_numbered_by_go(text, result):
    assert from_json(ConsumeDirectlyResult, text).consume_result is result
    assert json.loads(to_json(ConsumeDirectlyResult(consume_result=result)))["consumeResult"] == result.name


def test_a_result_that_there_is_not_is_refused():
    for value in (b"6", b"-1", b'"CR_PERHAPS"'):
        with pytest.raises(BadBody):
            from_json(ConsumeDirectlyResult, b'{"consumeResult":%s}' % value)
