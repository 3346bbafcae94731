"""The metrics of a broker as they are declared."""

from __future__ import annotations

import re

from halfmoon.broker.metrics.declared import METRICS


def test_names_are_names_of_prometheus_each_once_and_counters_end_as_it_wants() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"(rocketmq|halfmoon)_[a-z0-9_]+", metric.name), metric.name
        assert all(re.fullmatch("[a-zA-Z_]+", label) for label in metric.labels)
        assert metric.kind in ("gauge", "counter", "histogram")
        assert (metric.kind == "counter") == (metric.name.startswith("halfmoon_") and metric.name.endswith("_total"))
        assert metric.text.endswith(".")


def test_what_the_communitys_exporter_has_of_a_broker_has_its_name_and_labels_here() -> None:
    labels = {metric.name: metric.labels for metric in METRICS}
    for name in (
        "rocketmq_producer_tps",
        "rocketmq_producer_message_size",
        "rocketmq_producer_offset",
        "rocketmq_topic_retry_offset",
    ):
        assert labels[name] == ("cluster", "broker", "topic")
    for name in (
        "rocketmq_consumer_tps", "rocketmq_consumer_message_size", "rocketmq_consumer_offset", "rocketmq_message_accumulation",
        "rocketmq_send_back_nums", "rocketmq_group_get_latency_by_storetime",
    ):  # fmt: skip
        assert labels[name] == ("cluster", "broker", "topic", "group")
    for name in ("rocketmq_group_diff", "rocketmq_group_retrydiff", "rocketmq_group_dlqdiff"):
        assert labels[name] == ("group", "topic", "countOfOnlineConsumers", "msgModel")
    for name in ("rocketmq_broker_tps", "rocketmq_broker_qps"):
        assert labels[name] == ("cluster", "brokerIP", "broker")
    for name in ("rocketmq_topic_dlq_offset", "rocketmq_producer_count"):
        assert labels[name] == ("cluster", "broker", "group")
    runtime = {name for name in labels if name.startswith("rocketmq_brokeruntime_")}
    assert {labels[name] for name in runtime} == {("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")}
    assert len(runtime) == 63
