"""Requests about consumer groups at a broker: configuration and progress. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN, LOOK, account, look
from halfmoon.wire.table import Header, request


@request(200, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", changes=True, needs=ADMIN)
class UpdateAndCreateSubscriptiongroup(Header):
    """Create or change a consumer group: body `SubscriptionGroupConfig`."""


@request(201, "GET_ALL_SUBSCRIPTIONGROUP_CONFIG", needs=account(LOOK))
class GetAllSubscriptiongroupConfig(Header):
    """Ask for the configuration of all groups: reply body `SubscriptionGroupTable`."""


@request(207, "DELETE_SUBSCRIPTIONGROUP", changes=True, needs=ADMIN)
class DeleteSubscriptiongroup(Header):
    """Delete a group and, when asked, its progress."""

    group_name: str
    remove_offset: bool | None = None  # 4.9
    clean_offset: bool | None = None  # 5.x name of the same


@request(208, "GET_CONSUME_STATS", needs=look(topic="topic", group="consumer_group"))
class GetConsumeStats(Header):
    """Ask for the progress of a group against the ends of its queues: reply body `ConsumeStats`."""

    consumer_group: str
    topic: str | None = None  # None or blank: all topics of the group
    topic_list: str | None = None  # 5.x: topics joined by ";"
    health: bool | None = None  # ours alone: with `OffsetWrapper.unmoved_ms` and `ConsumeStats.delayed_redeliveries`


@request(225, "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", since="5.3.1", changes=True, needs=ADMIN)
class UpdateAndCreateSubscriptiongroupList(Header):
    """Create or change consumer groups: body `SubscriptionGroupList`."""


@request(317, "GET_BROKER_CONSUME_STATS", needs=account(LOOK))
class GetBrokerConsumeStats(Header):
    """Ask for the progress of all groups: reply body `BrokerConsumeStats`."""

    is_order: bool = False


@request(343, "QUERY_TOPICS_BY_CONSUMER", since="5.0.0", needs=look(group="group"))
class QueryTopicsByConsumer(Header):
    """Ask for the topics in which a group has progress: reply body `TopicList`."""

    group: str


@request(345, "QUERY_SUBSCRIPTION_BY_CONSUMER", since="5.0.0", needs=look(topic="topic", group="group"))
class QuerySubscriptionByConsumer(Header):
    """Ask for the subscription of an online group to a topic: reply body `GroupSubscription`."""

    group: str
    topic: str = ""


@request(352, "GET_SUBSCRIPTIONGROUP_CONFIG", since="5.0.0", needs=look(group="group"))
class GetSubscriptiongroupConfig(Header):
    """Ask for the configuration of one group: reply body `SubscriptionGroupConfig`."""

    group: str


@request(353, "UPDATE_AND_GET_GROUP_FORBIDDEN", since="5.0.0", changes=True, needs=ADMIN)
class UpdateAndGetGroupForbidden(Header):
    """Allow or forbid a group to read a topic, if ``readable`` is given; ask whether it may: reply body `GroupForbidden`."""

    group: str
    topic: str
    readable: bool | None = None
