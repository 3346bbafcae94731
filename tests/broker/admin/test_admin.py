"""What tools ask: topics, groups, figures. And what happens to them over a restart."""

import re

import pytest

from halfmoon.broker.stats import Item
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import (
    BrokerStatsData,
    ConsumeStats,
    KVTable,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicStatsTable,
    from_json,
    parse_config_text,
    to_json,
)
from halfmoon.wire.headers.admin import GetBrokerConfig, GetBrokerRuntimeInfo, ViewBrokerStatsData
from halfmoon.wire.headers.group import (
    DeleteSubscriptiongroup,
    GetAllSubscriptiongroupConfig,
    GetConsumeStats,
    GetSubscriptiongroupConfig,
    UpdateAndCreateSubscriptiongroup,
    UpdateAndCreateSubscriptiongroupList,
)
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply, UpdateConsumerOffset
from halfmoon.wire.headers.topic import (
    DeleteTopicInBroker,
    GetAllTopicConfig,
    GetSystemTopicListFromBroker,
    GetTopicConfig,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
    UpdateAndCreateTopicList,
)
from tests.broker.talk import START_MS, send_header


def create(talk, topic="orders", **changed):
    fields = {
        "topic": topic, "default_topic": "TBW102", "read_queue_nums": 3, "write_queue_nums": 2, "perm": 6,
        "topic_filter_type": "SINGLE_TAG", "order": False,
    }  # fmt: skip
    return talk.ask(UpdateAndCreateTopic(**{**fields, **changed}))


def test_a_topic_made_by_command_is_there_also_after_a_restart(talk):
    assert create(talk).code == 0

    talk.restart()

    config = from_json(TopicConfig, talk.ask(GetTopicConfig(topic="orders")).body)
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 2, 6)


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "TBW102"}, {"topic": "rmq_sys_x"}, {"topic": "DefaultCluster"}, {"topic": "a/b"}, {"topic": ""}, {"perm": 99},
        {"topic_filter_type": "NOPE"}, {"read_queue_nums": -1}, {"write_queue_nums": 10**6},
    ],
)  # fmt: skip
def test_a_topic_that_cannot_be_is_refused(talk, changed):
    epoch = talk.broker.topics.epoch

    assert create(talk, **changed).code == 1
    assert talk.broker.topics.epoch == epoch


def test_each_change_of_a_topic_moves_the_version(talk):
    before = from_json(TopicConfigTable, talk.ask(GetAllTopicConfig()).body).data_version

    create(talk)

    after = from_json(TopicConfigTable, talk.ask(GetAllTopicConfig()).body).data_version
    assert after.counter == before.counter + 1


def test_a_deleted_topic_is_gone_with_its_queues(talk):
    talk.send("orders")
    assert talk.ask(DeleteTopicInBroker(topic="orders")).code == 0

    assert talk.ask(GetTopicConfig(topic="orders")).code == 17
    assert talk.pull("orders").code == 17
    talk.restart()
    assert talk.ask(GetTopicConfig(topic="orders")).code == 17
    talk.send("orders", b"again")
    assert talk.ask(GetMaxOffset(topic="orders", queue_id=0)).header(OffsetReply).offset == 1


def test_topics_of_a_list_are_made_together_and_there_after_a_kill(talk):
    talk.send("bills")
    wanted = [TopicConfig(topic_name="orders", read_queue_nums=3), TopicConfig(topic_name="bills", perm=4, order=True)]

    assert talk.ask(UpdateAndCreateTopicList(), to_json(TopicConfigList(topic_config_list=wanted))).code == 0
    talk.broker.store.close(talk.instant)
    talk.open()

    orders, bills = talk.broker.topics.get("orders"), talk.broker.topics.get("bills")
    assert (orders.read_queue_nums, orders.write_queue_nums) == (3, 16)
    assert (bills.perm, bills.order, bills.birth_ms) == (4, False, START_MS)


@pytest.mark.parametrize("wrong", [{"topic_name": "TBW102"}, {"topic_name": "a/b"}, {"perm": 99}, {"topic_filter_type": "NOPE"}])
def test_of_a_list_with_a_wrong_topic_none_is_made(talk, wrong):
    wanted = [TopicConfig(topic_name="orders"), TopicConfig(**{"topic_name": "bills", **wrong})]

    assert talk.ask(UpdateAndCreateTopicList(), to_json(TopicConfigList(topic_config_list=wanted))).code == 29
    assert talk.broker.topics.get("orders") is None


def test_of_a_list_for_which_there_is_no_room_none_is_made(make_talk):
    talk = make_talk(topics_max=100)
    wanted = [TopicConfig(topic_name=f"t{k}") for k in range(100)]

    assert talk.ask(UpdateAndCreateTopicList(), to_json(TopicConfigList(topic_config_list=wanted))).code == 2
    assert talk.broker.topics.get("t0") is None


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_system_topic_cannot_be_deleted(talk, topic):
    assert talk.ask(DeleteTopicInBroker(topic=topic)).code == 1


def test_a_topic_to_delete_that_is_not_named_is_blank_as_with_rocketmq(talk):
    reply = talk.ask(DeleteTopicInBroker())
    assert (reply.code, reply.remark) == (1, "The specified topic is blank.")


def test_topics_with_messages_are_known_again_when_the_table_was_not_saved_before_a_crash(talk):
    talk.held_back = []
    talk.send("orders", queue_id=3)
    talk.held_back = None
    talk.broker.store.close(talk.instant)

    talk.open()

    assert talk.broker.topics.get("orders").read_queue_nums == 4
    assert talk.pull("orders", queue_id=3).code == 0


def test_topic_statistics_tell_the_ends_of_each_queue(talk):
    talk.send("orders", queue_id=1)

    found = from_json(TopicStatsTable, talk.ask(GetTopicStatsInfo(topic="orders")).body)

    assert set(found.offset_table) == {MessageQueue("orders", "broker-a", q) for q in range(4)}
    second = found.offset_table[MessageQueue("orders", "broker-a", 1)]
    assert (second.min_offset, second.max_offset, second.last_update_timestamp) == (0, 1, START_MS)
    assert talk.ask(GetTopicStatsInfo(topic="nothing")).code == 17


def test_system_topics_are_listed(talk):
    found = from_json(TopicList, talk.ask(GetSystemTopicListFromBroker()).body).topic_list

    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "DefaultCluster", "broker-a"} <= set(found)
    assert {"RMQ_SYS_TRACE_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "DefaultCluster_REPLY_TOPIC"} <= set(found)


# ---------------------------------------------------------------- groups


def test_a_group_made_by_command_is_there_also_after_a_restart(talk):
    assert (
        talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(SubscriptionGroupConfig(group_name="G", retry_max_times=3))).code == 0
    )

    talk.restart()

    assert from_json(SubscriptionGroupConfig, talk.ask(GetSubscriptiongroupConfig(group="G")).body).retry_max_times == 3
    assert "G" in from_json(SubscriptionGroupTable, talk.ask(GetAllSubscriptiongroupConfig()).body).subscription_group_table


def test_a_deleted_group_is_gone_and_its_progress_when_asked(talk):
    talk.send("orders")
    for group in ("G", "H"):
        talk.ask(UpdateConsumerOffset(consumer_group=group, topic="orders", queue_id=0, commit_offset=1))

    talk.ask(DeleteSubscriptiongroup(group_name="G"))
    talk.ask(DeleteSubscriptiongroup(group_name="H", remove_offset=True))

    assert talk.ask(GetSubscriptiongroupConfig(group="G")).code == 26
    assert talk.broker.offsets.get("G", "orders", 0) == 1
    assert talk.broker.offsets.get("H", "orders", 0) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"nope", b'{"groupName":"a b"}', b'{"groupName":""}'])
def test_a_group_that_cannot_be_is_refused(talk, body):
    assert talk.ask(UpdateAndCreateSubscriptiongroup(), body).code == 1


def test_groups_of_a_list_are_made_together_or_none(talk):
    def make(*names):
        wanted = [SubscriptionGroupConfig(group_name=name, retry_max_times=2) for name in names]
        return talk.ask(UpdateAndCreateSubscriptiongroupList(), to_json(SubscriptionGroupList(group_config_list=wanted))).code

    assert make("C", "a b") == 1
    assert make("A", "B") == 0
    talk.restart()

    assert [talk.broker.groups.get(name) is not None for name in "ABC"] == [True, True, False]
    assert talk.broker.groups.get("B").retry_max_times == 2


def test_of_a_list_for_which_there_is_no_room_no_group_is_made(make_talk):
    talk = make_talk(groups_max=100)
    wanted = [SubscriptionGroupConfig(group_name=f"g{k}") for k in range(100)]

    assert talk.ask(UpdateAndCreateSubscriptiongroupList(), to_json(SubscriptionGroupList(group_config_list=wanted))).code == 2
    assert talk.broker.groups.get("g0") is None


# ---------------------------------------------------------------- figures


def test_figures_count_what_was_put_and_read(talk):
    for _ in range(3):
        talk.send("orders")
    talk.wait(10_000)
    talk.send("orders")
    talk.pull("orders", group="G")
    talk.wait(10_000)

    info = from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table
    put = from_json(BrokerStatsData, talk.ask(ViewBrokerStatsData(stats_name="TOPIC_PUT_NUMS", stats_key="orders")).body)

    assert info["msgPutTotalTodayNow"] == "4"
    assert info["msgGetTotalTodayNow"] == "4"
    assert put.stats_minute.sum == 4
    assert put.stats_minute.tps == pytest.approx(0.2)
    assert talk.ask(ViewBrokerStatsData(stats_name="TOPIC_PUT_NUMS", stats_key="nothing")).code == 1


def test_rates_are_three_numbers_as_tools_split_them(talk):
    info = from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table

    for name in ("putTps", "getTransferedTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert len([float(part) for part in info[name].split(" ")]) == 3
    for name in ("brokerVersionDesc", "sendThreadPoolQueueSize", "commitLogDiskRatio", "earliestMessageTimeStamp", "runtime"):
        assert name in info


def runtime(talk):
    return from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table


def test_what_the_communitys_exporter_reads_without_a_check_is_there(talk):
    info = runtime(talk)

    for name in ("putLatency99", "putLatency999", "putMessageAverageSize", "commitLogDiskRatio", "consumeQueueDiskRatio"):
        float(info[name])
    for name in (
        "putMessageEntireTimeMax", "getMessageEntireTimeMax", "dispatchMaxBuffer", "dispatchBehindBytes", "putMessageTimesTotal",
        "remainTransientStoreBufferNumbs", "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity",
        "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity", "pageCacheLockTimeMills",
    ):  # fmt: skip
        int(info[name])
    assert info["putMessageDistributeTime"] == "null"  # as Apache's in its first minute
    assert re.fullmatch(r"Total : \d+\.\d [KMGTPE]iB, Free : \d+\.\d [KMGTPE]iB\.", info["commitLogDirCapacity"])


def test_the_turn_that_stored_and_read_is_timed(talk):
    for took_ms in (0, 7, 3000):
        talk.send("orders")
        talk.pull("orders", group="G")
        talk.broker.stats.turned(took_ms)
    talk.broker.stats.turned(9999)  # nothing was stored or read in that one
    talk.wait(60_000)

    info = runtime(talk)

    assert (info["putMessageEntireTimeMax"], info["getMessageEntireTimeMax"]) == ("3000", "3000")
    assert info["putMessageDistributeTime"] == (
        "[<=0ms]:1 [0~10ms]:1 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 [2~3s]:0 [3~4s]:1 "
        "[4~5s]:0 [5~10s]:0 [10s~]:0 "
    )
    assert (info["putLatency99"], info["putLatency999"]) == ("3999.00", "3999.00")


def test_with_sync_flush_a_put_lasts_until_the_device_has_it(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.held_back = []
    talk.post(send_header("BenchmarkTest"), b"x")
    talk.turn()
    talk.broker.stats.turned(0)
    talk.now += 30
    talk.release()

    assert runtime(talk)["putMessageEntireTimeMax"] == "30"


def test_reads_that_find_and_reads_that_miss_have_rates_of_their_own(talk):
    talk.send("orders", b"x")
    talk.send("orders", b"x")
    talk.pull("orders", group="G")
    for _ in range(3):
        talk.pull("orders", group="G", offset=2)
    talk.wait(10_000)

    info = runtime(talk)

    rates = {name: float(info[name].split()[0]) for name in ("getFoundTps", "getMissTps", "getTotalTps", "getTransferedTps")}
    assert rates == {"getFoundTps": 0.1, "getMissTps": 0.3, "getTotalTps": 0.4, "getTransferedTps": 0.2}


def test_a_level_that_delivered_shows_its_progress_and_its_end(talk):
    talk.send("orders", properties="DELAY\x011\x02")
    talk.send("orders", properties="DELAY\x012\x02")
    talk.wait(2_000)
    talk.send("orders", properties="DELAY\x011\x02")

    info = runtime(talk)

    assert {name: text for name, text in info.items() if name.startswith("schedule")} == {"scheduleMessageOffset_1": "1,2"}


def test_sizes_count_from_the_start_of_the_broker(talk):
    for _ in range(5):
        talk.send("orders", b"x" * 100)
    talk.restart()
    talk.send("orders", b"x" * 100)

    info = runtime(talk)

    assert info["putMessageTimesTotal"] == "1"
    assert 100 < int(info["putMessageSizeTotal"]) == float(info["putMessageAverageSize"]) < 300


def test_settings_are_told_under_their_java_keys(talk):
    found = parse_config_text(talk.ask(GetBrokerConfig()).body)

    assert (found["brokerName"], found["flushDiskType"], found["listenPort"]) == ("broker-a", "ASYNC_FLUSH", "10911")


def test_settings_that_have_one_value_here_are_told_too_for_the_tools_that_read_them(talk):
    found = parse_config_text(talk.ask(GetBrokerConfig()).body)

    for key in ("brokerRole", "filterServerNums", "slaveReadEnable", "traceOn", "useTLS"):  # exportConfigs fails without one
        assert key in found
    assert found["brokerRole"] == "ASYNC_MASTER"


def test_system_topics_that_tools_must_not_take_for_users_topics_are_listed(talk):
    listed = from_json(TopicList, talk.ask(GetSystemTopicListFromBroker()).body).topic_list

    assert {"rmq_sys_wheel_timer", "rmq_sys_HALFMOON_BATCHES", "SCHEDULE_TOPIC_XXXX"} <= set(listed)


# ---------------------------------------------------------------- what is no request


def test_an_unknown_request_gets_code_3(talk):
    reply = talk.ask(GetBrokerConfig(), code=9999)

    assert (reply.code, reply.remark) == (3, " request type 9999 not supported")


def test_an_unknown_request_that_is_one_way_gets_nothing(talk):
    opaque = talk.post(GetBrokerConfig(), code=9999, oneway=True)
    talk.turn()

    assert talk.answer(opaque) is None


def test_a_header_that_does_not_decode_closes_its_connection_only(talk):
    talk.feed(1, bytes.fromhex("0000000800000004") + b"nope")
    talk.turn()

    assert 1 in talk.closed
    assert talk.ask(GetBrokerConfig(), peer=2).code == 0


def test_a_missing_field_gets_code_1_and_names_it(talk):
    opaque = talk.post(GetBrokerConfig(), code=30)
    talk.turn()

    reply = talk.answer(opaque)
    assert reply.code == 1
    assert "topic" in reply.remark


def test_an_answer_nobody_asked_for_is_ignored(talk):
    reply = encode_reply()
    talk.feed(1, reply)
    talk.turn()

    assert talk.received[1] == []
    assert talk.closed == {}


def encode_reply():
    from halfmoon.wire.command import Command, encode

    return encode(Command(0, 1, 424242))


@pytest.mark.parametrize("topic", ["broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "TBW102", "rmq_sys_x"])
def test_the_brokers_own_topics_are_not_made_by_command(talk, topic):
    assert create(talk, topic).remark == f"The topic[{topic}] is conflict with system topic."


def lag(talk):
    table = from_json(ConsumeStats, talk.ask(GetConsumeStats(consumer_group="G", topic="orders")).body).offset_table
    return {queue.queue_id: wrapper.broker_offset - wrapper.consumer_offset for queue, wrapper in table.items()}


def test_a_topic_with_fewer_queues_is_said_to_hide_messages_and_its_lag_counts_them(talk, caplog):
    create(talk, write_queue_nums=3)
    talk.consume("orders")
    for _ in range(4):
        talk.send("orders", queue_id=2)
    assert create(talk, read_queue_nums=1, write_queue_nums=1).code == 0

    (said,) = [text for text in caplog.messages if "fewer queues" in text]
    assert "topic=orders queues=1 before=3 messages that nobody is given: 4" in said
    assert lag(talk) == {0: 0, 1: 0, 2: 4}
    talk.restart()
    talk.consume("orders")
    assert lag(talk) == {0: 0, 1: 0, 2: 4}

    create(talk, read_queue_nums=3, write_queue_nums=1)
    assert len([text for text in caplog.messages if "fewer queues" in text]) == 1


def test_rates_are_those_of_the_last_10_seconds_minute_and_10_minutes(talk):
    for _ in range(60):
        talk.send("orders")
        talk.wait(1_000)
    talk.wait(10_000)

    info = from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table

    assert [float(part) for part in info["putTps"].split()] == pytest.approx([0, 50 / 60, 60 / 70], abs=0.01)


def test_a_counter_a_week_old_is_small(talk):
    item = Item()
    for hour in range(168):
        for window in range(3):
            item.sample(window, hour)

    assert [len(samples) // 3 for samples in item.samples] == [7, 7, 25]


# ---------------------------------------------------------------- tables and the disk


def test_tables_on_a_full_disk_are_tried_again_each_round_and_saved_once_there_is_room(talk, caplog):
    save, tries = talk.disk.save, []

    def fail(path, data, **kw):
        tries.append(path)
        raise OSError(28, "No space left on device")

    talk.disk.save = fail
    create(talk, "orders")
    talk.wait(60_000)
    assert 10 <= tries.count("config/topics.json") <= 15
    assert len([text for text in caplog.messages if "cannot be saved" in text and "topics" in text]) == 1

    talk.disk.save = save
    talk.wait(5_000)
    assert "orders" in talk.disk.read("config/topics.json").decode()


def test_progress_that_came_while_its_table_was_being_saved_is_saved_before_a_clean_stop_ends(talk):
    talk.send("orders")
    talk.held_back = []
    talk.ask(UpdateConsumerOffset(consumer_group="G", topic="orders", queue_id=0, commit_offset=3))
    talk.wait(5_000)  # the save of offset 3 is under way
    talk.ask(UpdateConsumerOffset(consumer_group="G", topic="orders", queue_id=0, commit_offset=4))

    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.release()

    assert b'"orders@G":{0:4}' in talk.disk.read("config/consumerOffset.json")


def test_the_latency_of_reads_is_told_for_the_queues_that_a_group_read(talk):
    def asked(key):
        return talk.ask(ViewBrokerStatsData(stats_name="GROUP_GET_LATENCY", stats_key=key))

    talk.send("orders")
    assert asked("0@orders@G").code == 1
    talk.pull("orders")

    assert from_json(BrokerStatsData, asked("3@orders@G").body) == BrokerStatsData()
    for key in ("4@orders@G", "-1@orders@G", "x@orders@G", "0@orders@H", "0@bills@G", "0@orders", "", "99999999@orders@G"):
        assert (asked(key).code, asked(key).remark) == (1, f"The stats <GROUP_GET_LATENCY> <{key}> not exist")


def test_the_latency_of_reads_is_the_time_of_their_turns_and_not_the_age_of_messages(talk):
    talk.send("orders")
    talk.send("orders", queue_id=1)
    talk.broker.stats.turned(500)  # nobody read in it
    talk.wait(5_000)
    for queue_id, took_ms in ((0, 7), (1, 0), (0, 0), (0, 2)):
        talk.pull("orders", queue_id=queue_id)
        talk.broker.stats.turned(took_ms)
    talk.wait(20_000)

    def minute(queue_id):
        key = f"{queue_id}@orders@G"
        data = talk.ask(ViewBrokerStatsData(stats_name="GROUP_GET_LATENCY", stats_key=key)).body
        return from_json(BrokerStatsData, data).stats_minute

    assert (minute(0).sum, minute(0).avgpt) == (9, 3.0)
    assert minute(1).sum == 0
    talk.ask(DeleteTopicInBroker(topic="orders"))
    assert talk.broker.stats.item("GROUP_GET_LATENCY", "0@orders@G") is None
