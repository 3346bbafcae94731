"""Cluster that jobs read: wrong options are refused before anything starts, and no text shows a secret."""

from __future__ import annotations

import pytest

from halfmoon.errors import UsageError
from halfmoon.spark.cluster import Cluster

CLUSTER = Cluster("127.0.0.1:1", {"fetchBytes": "8MiB", "accessKey": "me", "secretKey": "hidden-word"})


def test_options_that_the_source_does_not_know_are_refused_before_spark_starts():
    with pytest.raises(UsageError):
        Cluster("127.0.0.1:1", {"fetchBites": "8MiB"}).client()


def test_an_audit_reads_half_messages_and_keeps_the_other_options():
    assert CLUSTER.with_half_messages().options == {**CLUSTER.options, "halfMessages": "true"}
    assert "halfMessages" not in CLUSTER.options


def test_options_are_checked_once_and_no_text_shows_their_values():
    assert CLUSTER.checked is CLUSTER.checked
    assert "hidden-word" not in f"{CLUSTER!r} {CLUSTER.checked!r}"
