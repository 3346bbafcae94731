"""Queries about batch transactions: pages of ids, and counters."""

from halfmoon.wire.bodies.batches import BatchList
from halfmoon.wire.headers.batch import ListBatches
from halfmoon.wire.json import from_json


def page(talk, **fields):
    return from_json(BatchList, talk.ask(ListBatches(**fields)).body)


def test_ids_are_listed_in_pages_by_name(talk):
    for name in ("b", "a", "c"):
        talk.broker.batches.streams.ensure(name, talk.now, 0)
    first = page(talk, count=2)
    assert ([shown.transactional_id for shown in first.ids], first.next) == (["a", "b"], "b")
    second = page(talk, count=2, after="b")
    assert ([shown.transactional_id for shown in second.ids], second.next) == (["c"], None)
    assert [shown.transactional_id for shown in page(talk, count=1, transactional_id="c").ids] == ["c"]


def test_counters_begin_at_zero_and_runtime_information_has_the_undecided(talk):
    counters = talk.broker.batches.listing.counters()
    assert {"pieces", "published", "skipped"} <= counters.keys()
    assert set(counters.values()) == {0}
    assert talk.broker.batches.listing.texts()["batchAttemptsUndecided"] == "0"
