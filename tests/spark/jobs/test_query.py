"""Names of topics in a query, and where archive and log meet."""

from __future__ import annotations

import pytest

from halfmoon.errors import UsageError
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs.query import ArchiveGap, Reference, behind_the_seam, references, sql

QUEUE = ("orders", "broker-a", 0)


def test_topics_become_views_and_texts_and_comments_stay():
    text, found = references(
        "select 'topic.no', t.x /* topic.no */ from topic.orders t join topic.`a-b` on true -- topic.no\nwhere my.topic.no = 1"
    )

    assert found == [Reference("orders"), Reference("a-b")]
    assert text == (
        "select 'topic.no', t.x /* topic.no */ from halfmoon_topic_orders t join halfmoon_topic_a_2d_b on true -- topic.no\n"
        "where my.topic.no = 1"
    )


def test_a_topic_may_be_asked_for_as_of_a_time():
    text, found = references("select * from topic.orders TIMESTAMP AS OF '1970-01-01T00:00:01.500' a, topic.orders b")

    assert found == [Reference("orders", 1_500), Reference("orders")]
    assert text == "select * from halfmoon_topic_orders_1500 a, halfmoon_topic_orders b"


def test_what_is_no_time_is_refused():
    with pytest.raises(UsageError, match="'yesterday' is not a time"):
        references("select * from topic.orders timestamp as of 'yesterday'")


def test_views_of_different_topics_have_different_names():
    assert len({Reference(name).view for name in ("a-b", "a_b", "a%b", "ab", "a_2d_b")}) == 5


def test_the_log_is_read_from_where_the_archive_ends():
    live = {QUEUE: (5, 30), ("orders", "broker-a", 1): (0, 7)}

    assert behind_the_seam(live, {QUEUE: 20}) == {QUEUE: (20, 30), ("orders", "broker-a", 1): (0, 7)}


@pytest.mark.parametrize(("archived", "text"), [(4, "messages in between are lost"), (31, "not the log that was archived")])
def test_messages_that_are_in_neither_are_an_error(archived, text):
    with pytest.raises(ArchiveGap, match=text):
        behind_the_seam({QUEUE: (5, 30)}, {QUEUE: archived})


@pytest.mark.slow
def test_a_query_for_a_topic_that_is_not_there_is_refused(spark, cluster, topic):
    with pytest.raises(UsageError, match=topic):
        sql(spark, Cluster(cluster.nameserver), f"select * from topic.{topic}")
