"""A consumer's state for operators (request 307). Changes nothing."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING

from halfmoon.wire.bodies import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData

if TYPE_CHECKING:
    from halfmoon.client.core.consume.pull_loop import PullLoop


def running_info(member: PullLoop, extra: dict[str, str]) -> ConsumerRunningInfo:
    """Return settings, subscriptions, the messages held of each queue and the rates of each topic.

    Follows DefaultMQPushConsumerImpl.consumerRunningInfo. Differs: a pull consumer tells how fast it pulls, too.
    """
    properties = {
        "PROP_CLIENT_VERSION": "V4_9_8",
        "PROP_CONSUME_TYPE": member.consume_type.name,
        "PROP_CONSUMER_START_TIMESTAMP": str(member.begun_ms),
        "PROP_NAMESERVER_ADDR": member.settings.nameserver + ";",
        **extra,
    }
    for field in fields(member.settings):
        if field.metadata.get("secret"):
            continue  # whoever may ask a broker for this must not learn who the consumer is to others
        value = getattr(member.settings, field.name)
        properties[field.metadata["java"] or field.name] = value.name if isinstance(value, Enum) else str(value)
    queues = {}
    for queue, held in sorted(member.held.items()):
        oldest, newest = held.window.offsets()
        queues[queue] = ProcessQueueInfo(
            commit_offset=max(member.offsets.memory(queue), 0),
            cached_msg_count=len(held.window),
            cached_msg_min_offset=oldest,
            cached_msg_max_offset=newest,
            cached_msg_size_in_mib=held.window.size_bytes >> 20,
            droped=held.window.dropped,
            last_pull_timestamp=held.window.last_pull_ms,
            last_consume_timestamp=held.window.last_consume_ms,
        )
    return ConsumerRunningInfo(
        properties=properties,
        mq_table=queues,
        status_table={topic: member.rates_of(topic).snapshot() for topic in sorted(member.topics())},
        subscription_set=[SubscriptionData.of(wanted) for wanted in member.subscriptions.values()],
    )
