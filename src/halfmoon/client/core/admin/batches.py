"""Batch transactions for operators: ids, their last batches, what is undecided. Asks all masters; changes nothing."""

from __future__ import annotations

from halfmoon.client.core.admin.admin import AdminCore, answers_of
from halfmoon.client.core.admin.pages import Master, masters
from halfmoon.client.core.admin.transactions import ask_halfmoon
from halfmoon.effects import Op, gather
from halfmoon.errors import RequestNotSupported
from halfmoon.wire.bodies.batches import BatchList
from halfmoon.wire.headers.batch import ListBatches
from halfmoon.wire.json import from_json

PAGES_MAX = 1000


class BatchesAt(BatchList):
    """Transactional ids of one broker. ``supported`` False: it is no Halfmoon broker and has no batch transactions."""

    address: str = ""
    supported: bool = True


def batches(admin: AdminCore, transactional_id: str | None = None, *, failing: list[str] | None = None) -> Op[list[BatchesAt]]:
    """Return the transactional ids of batch transactions of every broker, or one of them, with what is undecided.

    Raises the error of any broker, unless it is named in ``failing`` (see `answers_of`); NetworkError when no master is registered.
    """
    brokers = yield from masters(admin)
    outcomes = yield from gather([_batches(admin, broker, transactional_id) for broker in brokers])
    return answers_of(zip([broker.name for broker in brokers], outcomes), failing)


def _batches(admin: AdminCore, broker: Master, transactional_id: str | None) -> Op[BatchesAt]:
    listed: BatchesAt | None = None
    after: str | None = None
    for _ in range(PAGES_MAX):
        request = ListBatches(transactional_id=transactional_id, after=after, count=1000)
        try:
            page = from_json(BatchesAt, (yield from ask_halfmoon(admin, broker.address, request)))
        except RequestNotSupported:
            return BatchesAt(broker=broker.name, address=broker.address, supported=False)
        if listed is None:
            listed = page
        else:
            listed.ids += page.ids
        after = page.next
        if after is None:
            break
    assert listed is not None
    listed.broker, listed.address = broker.name, broker.address
    return listed
