"""Batch transactions in the console: ids, attempts, and brokers that have none."""

from __future__ import annotations

from halfmoon.client.core.admin.batches import BatchesAt
from halfmoon.wire.bodies.batches import BatchAttempt, BatchId
from tests.console.conftest import Site


async def test_ids_are_paged_and_one_is_shown_with_its_attempts(site: Site):
    ids = [BatchId(transactional_id=f"<i>{n:03}", attempts=[BatchAttempt(7, "one", age_ms=5000, count=3)]) for n in range(150)]

    async def batches(name: str | None, *, failing: list[str]) -> list[BatchesAt]:
        mine = [each for each in ids if name in (None, each.transactional_id)]
        return [BatchesAt(broker="broker-a", ids=mine), BatchesAt(broker="old", supported=False)]

    site.answers(batches=batches)
    first = await site.json("/batches")
    second = await site.json("/batches", after=first["next"])
    assert [each["transactional_id"] for part in (first, second) for each in part["batches"]] == [
        each.transactional_id for each in ids
    ]
    assert (second["next"], first["batches"][0]["attempts"], first["batches"][0]["oldest_ms"]) == (None, [], 5000)

    page = await site.text("/batches", id="<i>007")
    assert "&lt;i&gt;007" in page
    assert "<i>007" not in page
    assert "Undecided at broker-a" in page
    assert "Without batch transactions: old." in page


async def test_a_broker_that_has_no_batches_yet_says_so(site: Site):
    assert "There are no batch transactions." in await site.text("/batches")
