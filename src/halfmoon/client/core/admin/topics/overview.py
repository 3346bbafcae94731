"""Figures of topics: messages, incoming rate, size, groups. Asks every master for many topics at once; changes nothing.

Halfmoon's brokers answer for hundreds of topics in one request. Others are asked about one topic after the other, with requests of
RocketMQ's own, and do not report sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from halfmoon.client.core.admin.admin import GROUPS_AT_ONCE, AdminCore, answers_of
from halfmoon.client.core.admin.pages import Master, masters
from halfmoon.client.core.admin.transactions import ask_halfmoon
from halfmoon.client.core.ask import ask
from halfmoon.client.core.names import unwrap
from halfmoon.effects import Op, gather
from halfmoon.errors import BrokerError, PeerError, RequestNotSupported, SystemError_, TopicNotFound
from halfmoon.results import TopicOverview
from halfmoon.wire.bodies import (
    BrokerStatsData,
    GroupList,
    TopicFigures,
    TopicFiguresTable,
    TopicList,
    TopicStatsTable,
    from_json,
    to_json,
)
from halfmoon.wire.headers.admin import ViewBrokerStatsData
from halfmoon.wire.headers.topic import GetTopicFigures, GetTopicStatsInfo, QueryTopicConsumeByWho

TOPICS_AT_ONCE = 1000
"""Topics of one request to a Halfmoon broker."""
ONE_BY_ONE_MAX = 200
"""Topics for which another broker is asked, three requests each. The figures of further ones stay unknown."""

_Rows = dict[str, tuple[TopicFigures, bool]]
"""By topic on the wire: its figures at one broker, and whether that reports the size."""


def topic_overview(admin: AdminCore, names: Sequence[str], *, failing: list[str] | None = None) -> Op[list[TopicOverview]]:
    """Return messages, incoming rate, size and groups of topics, in the order of the names.

    Costs a request for each 256 queues with messages at a broker of Halfmoon, and three for each topic at another one, which is
    asked about the first 200 topics only: figures of the others are None. Brokers that were not asked about all topics, and those
    that fail, whose part is missing in the sums, are named in ``failing`` (see `answers_of`).
    """
    brokers, wanted = (yield from masters(admin)), [admin.wire(name) for name in dict.fromkeys(names)]
    outcomes = yield from gather([_figures(admin, broker, wanted) for broker in brokers])
    tables = answers_of(zip([broker.name for broker in brokers], outcomes), failing)
    for broker, asked, _ in tables:
        if len(asked) < len(wanted) and failing is not None:
            failing.append(f"{broker}: reports topics one by one, and was asked about {len(asked)} of {len(wanted)}")
    return [_merged(admin, name, tables) for name in names]


def _merged(admin: AdminCore, name: str, tables: list[tuple[str, set[str], _Rows]]) -> TopicOverview:
    topic = admin.wire(name)
    rows = [rows[topic] for _, _, rows in tables if topic in rows]
    if not rows or any(topic not in asked for _, asked, _ in tables):
        return TopicOverview(name)
    rates = [row.in_per_second for row, _ in rows]
    known_rates = [rate for rate in rates if rate is not None]
    return TopicOverview(
        name, sum(row.messages for row, _ in rows), sum(known_rates) if len(known_rates) == len(rates) else None,
        sum(row.size_bytes for row, _ in rows) if all(has_size for _, has_size in rows) else None,
        sorted({unwrap(group, admin.settings.namespace) for row, _ in rows for group in row.groups}),
    )  # fmt: skip


def _figures(admin: AdminCore, broker: Master, topics: list[str]) -> Op[tuple[str, set[str], _Rows]]:
    """Return a broker's name, the topics that it was asked about, and the figures of those that it has."""
    rows: _Rows = {}
    at = 0
    while at < len(topics):
        body = to_json(TopicList(topic_list=topics[at : at + TOPICS_AT_ONCE]))
        try:
            table = from_json(TopicFiguresTable, (yield from ask_halfmoon(admin, broker.address, GetTopicFigures(), body)))
        except RequestNotSupported:
            return broker.name, set(topics[:ONE_BY_ONE_MAX]), (yield from _one_by_one(admin, broker, topics[:ONE_BY_ONE_MAX]))
        if table.answered < 1:
            raise PeerError(f"broker {broker.name} answered none of {len(topics) - at} topics")
        rows |= {row.topic: (row, True) for row in table.topics}
        at += table.answered
    return broker.name, set(topics), rows


def _one_by_one(admin: AdminCore, broker: Master, topics: list[str]) -> Op[_Rows]:
    rows: _Rows = {}
    for some in (topics[at : at + GROUPS_AT_ONCE] for at in range(0, len(topics), GROUPS_AT_ONCE)):
        for topic, outcome in zip(some, (yield from gather([_one(admin, broker.address, topic) for topic in some]))):
            if isinstance(outcome, TopicNotFound):
                continue
            if isinstance(outcome, Exception):
                raise outcome
            rows[topic] = outcome, False
    return rows


def _one(admin: AdminCore, address: str, topic: str) -> Op[TopicFigures]:
    """Ask any broker about one topic. Raises TopicNotFound."""
    timeout_ms = admin.settings.request_timeout_ms
    stats = from_json(TopicStatsTable, (yield from ask(address, GetTopicStatsInfo(topic=topic), b"", timeout_ms)).body)
    groups = from_json(GroupList, (yield from ask(address, QueryTopicConsumeByWho(topic=topic), b"", timeout_ms)).body)
    try:
        request = ViewBrokerStatsData(stats_name="TOPIC_PUT_NUMS", stats_key=topic)
        reply = yield from ask(address, request, b"", timeout_ms)
        rate: float | None = from_json(BrokerStatsData, reply.body).stats_minute.tps
    except SystemError_:  # nothing was stored since the broker started
        rate = 0.0
    except BrokerError:
        rate = None
    messages = sum(max(0, ends.max_offset - ends.min_offset) for ends in stats.offset_table.values())
    return TopicFigures(topic, messages, rate, 0, groups.group_list)
