"""Requests about topics at a broker: configuration and statistics. Declares fields, decides nothing."""

from __future__ import annotations

from halfmoon.wire.needs import ADMIN, ADMIN_LOOKS, LOOK, REGISTERS, account, look
from halfmoon.wire.table import I32, I64, Header, request


@request(17, "UPDATE_AND_CREATE_TOPIC", changes=True, needs=ADMIN)
class UpdateAndCreateTopic(Header, kw_only=True):
    """Create or change a topic."""

    topic: str
    default_topic: str | None = None
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str  # SINGLE_TAG or MULTI_TAG
    order: bool = False
    topic_sys_flag: I32 | None = None
    attributes: str | None = None  # 5.x: "+k=v,-k"
    force: bool | None = None  # 5.x


@request(18, "UPDATE_AND_CREATE_TOPIC_LIST", since="5.3.0", changes=True, needs=ADMIN)
class UpdateAndCreateTopicList(Header):
    """Create or change topics: body `TopicConfigList`."""


@request(21, "GET_ALL_TOPIC_CONFIG", needs=account(LOOK))
class GetAllTopicConfig(Header):
    """Ask for the configuration of all topics: reply body `TopicConfigTable`."""


@request(202, "GET_TOPIC_STATS_INFO", needs=look(topic="topic"))
class GetTopicStatsInfo(Header):
    """Ask for the ends of each queue of a topic: reply body `TopicStatsTable`."""

    topic: str


@request(215, "DELETE_TOPIC_IN_BROKER", changes=True, needs=ADMIN)
class DeleteTopicInBroker(Header):
    """Delete a topic."""

    topic: str = ""


@request(300, "QUERY_TOPIC_CONSUME_BY_WHO", needs=look(topic="topic"))
class QueryTopicConsumeByWho(Header):
    """Ask for the groups that consume a topic: reply body `GroupList`."""

    topic: str


@request(303, "QUERY_CONSUME_TIME_SPAN", needs=look(topic="topic", group="group"))
class QueryConsumeTimeSpan(Header):
    """Ask for the age of the messages that a group consumes: reply body `ConsumeTimeSpans`."""

    topic: str
    group: str = ""


@request(305, "GET_SYSTEM_TOPIC_LIST_FROM_BROKER", needs=account(LOOK))
class GetSystemTopicListFromBroker(Header):
    """Ask for the broker's own topics: reply body `TopicList`."""


@request(351, "GET_TOPIC_CONFIG", since="5.0.0", needs=look(topic="topic"))
class GetTopicConfig(Header):
    """Ask for the configuration of one topic: reply body `TopicConfig`."""

    topic: str
    lo: bool | None = None  # 5.x: the topic is a static one


class QueryDataVersionReply(Header):
    """Answer whether the name server has another version; its own is in the body (`DataVersion`)."""

    changed: bool


@request(322, "QUERY_DATA_VERSION", reply=QueryDataVersionReply, needs=REGISTERS)
class QueryDataVersion(Header):
    """Ask whether the name server has a broker's newest topics: body `DataVersion`."""

    broker_name: str = ""
    broker_addr: str = ""
    cluster_name: str = ""
    broker_id: I64 = 0


# ---------------------------------------------------------------- Halfmoon's own; an Apache broker answers 3


@request(31050, "GET_TOPIC_FIGURES", since="Halfmoon", needs=ADMIN_LOOKS)
class GetTopicFigures(Header):
    """Ask for messages, rate, size and groups of topics: body `TopicList`, reply body `TopicFiguresTable`.

    A reply may be about the first topics only: ask again for the others.
    """


@request(31051, "TRIM_TOPIC", since="Halfmoon", changes=True, needs=ADMIN)
class TrimTopic(Header):
    """Raise the lowest offset of a topic's queues: to ``offset``, or to the first message stored at ``before_ms`` or later.

    Reply body `TrimmedQueues`. With ``dry_run`` nothing changes. Log files keep the messages until they expire.
    """

    topic: str
    queue_id: I32 | None = None  # only this queue
    offset: I64 | None = None
    before_ms: I64 | None = None
    dry_run: bool | None = None
