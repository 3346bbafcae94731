"""Requests that read messages, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers import pull
from tests.wire.headers.fields import required, sent


def test_a_pull_has_six_fields_without_which_it_is_refused():
    assert required(pull.PullMessage) == "consumerGroup topic queueId queueOffset maxMsgNums sysFlag"
    header = pull.PullMessage(
        consumer_group="C", topic="orders", queue_id=1, queue_offset=9, max_msg_nums=32, sys_flag=6, broker_name="broker-a",
        proxy_froward_client_id="c@1",
    )  # fmt: skip
    assert sent(header) == {
        "consumerGroup": "C", "topic": "orders", "queueId": "1", "queueOffset": "9", "maxMsgNums": "32", "sysFlag": "6",
        "bname": "broker-a", "proxyFrowardClientId": "c@1",
    }  # fmt: skip


def test_a_long_pull_of_5_x_has_the_fields_of_a_pull():
    assert pull.LitePullMessage.__struct_encode_fields__ == pull.PullMessage.__struct_encode_fields__


def test_java_clients_need_four_fields_of_the_reply():
    assert required(pull.PullMessageReply) == "suggestWhichBrokerId nextBeginOffset minOffset maxOffset"


def test_a_query_by_key_has_a_name_of_its_own_for_unique_keys():
    assert required(pull.QueryMessage) == "maxNum beginTimestamp endTimestamp"
    header = pull.QueryMessage(topic="orders", key="k", max_num=1, begin_timestamp=0, end_timestamp=5, unique_key_query=True)
    assert sent(header)["_UNIQUE_KEY_QUERY"] == "true"
    assert required(pull.QueryMessageReply) == "indexLastUpdateTimestamp indexLastUpdatePhyoffset"
    assert required(pull.ViewMessageById) == "offset"
