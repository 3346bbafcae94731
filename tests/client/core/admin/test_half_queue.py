"""Transactions of brokers that keep no table of them, as half and op queues tell: Apache's brokers."""

from __future__ import annotations

import pytest

from halfmoon.client.core.admin.half_queue import EXPIRED_TOPIC as EXPIRED
from halfmoon.client.core.admin.half_queue import HALF_TOPIC as HALF
from halfmoon.client.core.admin.half_queue import OP_TOPIC as OP
from halfmoon.client.core.admin.half_queue import decided_by
from halfmoon.client.core.admin.transactions import (
    check_transaction,
    decide_transaction,
    expired_page,
    expired_transactions,
    pending_page,
    pending_transactions,
    transaction,
    transaction_stats,
)
from halfmoon.errors import BrokerError, QueryNotFound, RequestNotSupported, UsageError
from halfmoon.wire.bodies import (
    ClientConnection,
    ProducerConnection,
    to_json,
)
from halfmoon.wire.headers.admin import GetBrokerConfig
from halfmoon.wire.headers.client import GetProducerConnectionList
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply, QueryConsumerOffset, SearchOffsetByTimestamp
from halfmoon.wire.headers.pull import (
    PullMessage,
    PullMessageReply,
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageReply,
    ViewMessageById,
)
from halfmoon.wire.headers.transaction import (
    CheckTransaction,
    EndTransaction,
    GetTransaction,
    GetTransactionStats,
    ListPendingTransactions,
)
from halfmoon.wire.ids import offset_msg_id
from halfmoon.wire.properties import encode
from halfmoon.wire.record import encode_record
from tests.client.core.admin.test_admin import admin
from tests.client.core.admin.test_transactions import HOST, UNKNOWN_REQUEST
from tests.client.scripted import START_MS, Reply, Scripted, Seen


def test_what_expired_is_told_with_reason_history_and_whether_it_was_resumed():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    more = {
        "TRANSACTION_EXPIRED_REASON": "15 checks",
        "TRANSACTION_CHECK_HISTORY": "1700000000:UNKNOWN:00000a 1700000060:NONE:00000b",
    }
    apache.queues = {HALF: [], EXPIRED: [], OP: [], "orders": []}
    apache.half("A")
    base = {"PGROUP": "P", "REAL_TOPIC": "orders", "TRANSACTION_CHECK_TIMES": "15"}
    apache.queues[EXPIRED] = [(b"b", {**base, "UNIQ_KEY": "A", **more}), (b"b", {**base, "UNIQ_KEY": "B"})]

    first, second = script.run(expired_transactions(core))

    assert (first.msg_id, first.group, first.topic, first.reason, first.checks_sent) == ("A", "P", "orders", "15 checks", 15)
    assert [(check.sent_ms, check.answer, check.producer) for check in first.checks] == [
        (1_700_000_000_000, "UNKNOWN", "00000a"),
        (1_700_000_060_000, "NONE", "00000b"),
    ]
    assert (first.resumed, first.not_reported, second.reason, bool(second.not_reported)) == (False, [], "", True)
    assert [each.msg_id for each in script.run(expired_transactions(core, count_max=1))] == ["B"]

    apache.queues = {EXPIRED: apache.queues[EXPIRED], HALF: apache.queues[HALF], OP: [], "orders": []}  # its half lies behind now
    assert [each.resumed for each in script.run(expired_transactions(core))] == [True, False]


def test_expired_ones_are_paged_the_newest_first_also_while_more_expire():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    apache.queues[EXPIRED] = [(b"b", {"UNIQ_KEY": f"U{number}"}) for number in range(7)]

    sizes, names, cursor = [], [], None
    while not sizes or cursor:
        part = script.run(expired_page(core, count=3, after=cursor))
        sizes.append(len(part.transactions))
        names += [each.msg_id for each in part.transactions]
        cursor = part.next
        apache.queues[EXPIRED].append((b"b", {"UNIQ_KEY": "later"}))

    assert (sizes, names) == ([3, 3, 1], [f"U{number}" for number in reversed(range(7))])
    assert script.run(expired_page(core, count=1)).transactions[0].msg_id == "later"


def test_a_half_queue_is_paged_by_what_copies_share_so_a_check_between_two_pages_loses_and_repeats_nothing():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    for unique in "EDCBA":
        apache.half(unique)

    first = script.run(pending_page(core, count=2))
    for unique in "ABCD":
        apache.half(unique, checks=1)
    rest = script.run(pending_page(core, count=3, after=first.next))

    assert ([each.msg_id for each in first.transactions], [each.msg_id for each in rest.transactions]) == (
        ["A", "B"],
        ["C", "D", "E"],
    )
    assert rest.next is None
    assert script.run(pending_page(core, group="Q")).transactions == []


class Apache:
    """The queues of one broker that knows no request of ours, at both addresses; topics are lists of (body, properties)."""

    def __init__(self, script: Scripted, *, op_topic: bool = True) -> None:
        self.queues: dict[str, list[tuple[bytes, dict[str, str]]]] = {HALF: [], OP: [], EXPIRED: [], "orders": []}
        self.settled = {HALF: 0, OP: 0}
        self.op_topic = op_topic
        for request in (ListPendingTransactions, GetTransaction, GetTransactionStats):
            script.on(request, UNKNOWN_REQUEST)
        script.on(PullMessage, self._pull)
        script.on(QueryMessage, self._query)
        script.on(QueryConsumerOffset, self._progress)
        script.on(ViewMessageById, self._view)
        script.on(QueryConsumeQueue, self._entries)
        script.on(GetMinOffset, Reply(0, OffsetReply(offset=0)))
        script.on(GetMaxOffset, lambda seen: Reply(0, OffsetReply(offset=len(self._queue(seen)))))
        script.on(SearchOffsetByTimestamp, Reply(0, OffsetReply(offset=0)))
        script.on(GetBrokerConfig, Reply(body=b"transactionCheckMax=5\n"))
        script.on(GetProducerConnectionList, Reply(body=to_json(ProducerConnection([ClientConnection(client_id="one")]))))
        script.on(EndTransaction, Reply())

    def half(self, unique: str, checks: int = 0, **more: str) -> None:
        counted = {"TRANSACTION_CHECK_TIMES": str(checks)} if checks else {}
        found = {
            "UNIQ_KEY": unique,
            "PGROUP": "P",
            "REAL_TOPIC": "orders",
            "REAL_QID": "2",
            "KEYS": f"k-{unique}",
            **counted,
            **more,
        }
        self.queues[HALF].append((b"body", found))

    def _queue(self, seen: Seen) -> list[tuple[bytes, dict[str, str]]]:
        return self.queues.get(seen.request.topic, []) if seen.address == "broker-a:1" else []

    def place(self, topic: str, offset: int) -> int:
        return list(self.queues).index(topic) * 100_000 + 100 * offset

    def record(self, topic: str, offset: int) -> bytes:
        body, properties = self.queues[topic][offset]
        prepared = int(properties.get("prepared", "0"))
        return encode_record(
            topic=topic, queue_id=0, queue_offset=offset, physical_offset=self.place(topic, offset), body=body,
            properties=encode(properties), born_ms=START_MS - 60_000, born_host=HOST, store_ms=START_MS - 10_000 + offset,
            store_host=HOST, prepared_transaction_offset=prepared,
        )  # fmt: skip

    def _pull(self, seen: Seen) -> Reply:
        topic, at = seen.request.topic, seen.request.queue_offset
        if topic == OP and not self.op_topic:
            return Reply(17, remark="topic not exist")
        end = min(len(self._queue(seen)), at + min(2, seen.request.max_msg_nums))
        body = b"".join(self.record(topic, offset) for offset in range(at, end))
        header = PullMessageReply(suggest_which_broker_id=0, next_begin_offset=max(at, end), min_offset=0, max_offset=end)
        return Reply(0 if body else 19, header, body)

    def _query(self, seen: Seen) -> Reply:
        found = [
            self.record(seen.request.topic, offset)
            for offset, (_, properties) in enumerate(self._queue(seen))
            if seen.request.key in (properties.get("UNIQ_KEY"), properties.get("KEYS"))
        ]
        header = QueryMessageReply(index_last_update_timestamp=0, index_last_update_phyoffset=0)
        return Reply(0 if found else 22, header, b"".join(found))

    def _progress(self, seen: Seen) -> Reply:
        assert seen.request.consumer_group == "CID_RMQ_SYS_TRANS"
        return Reply(0, OffsetReply(offset=self.settled[seen.request.topic])) if seen.address == "broker-a:1" else Reply(22)

    def _view(self, seen: Seen) -> Reply:
        if seen.address == "broker-b:1":
            return Reply(1, remark="can not find message")
        topic, offset = list(self.queues)[seen.request.offset // 100_000], seen.request.offset % 100_000 // 100
        return Reply(body=self.record(topic, offset))

    def _entries(self, seen: Seen) -> Reply:
        end = len(self._queue(seen))
        offsets = range(seen.request.index, min(end, seen.request.index + seen.request.count))
        places = ",".join(f'{{"physicOffset":{self.place(OP, offset)}}}' for offset in offsets)
        return Reply(body=b'{"maxQueueIndex":%d,"queueData":[%s]}' % (end, places.encode()))


@pytest.mark.parametrize("op_topic", [True, False], ids=["pulled", "by place"])
@pytest.mark.parametrize("ops", [(b"1", b"3"), (b"1,3,",), (b"", b"x,1", b"3,")], ids=["4.x", "5.x", "odd"])
def test_pending_is_what_is_not_settled_and_no_op_record_names(ops, op_topic):
    script = Scripted()
    core, apache = admin(script), Apache(script, op_topic=op_topic)
    for unique in "ABCDE":
        apache.half(unique)
    apache.settled[HALF] = 1
    apache.queues[OP] = [(body, {"TAGS": "d"}) for body in ops]

    result = script.run(pending_transactions(core))

    assert [each.msg_id for each in result] == ["C", "E"]
    first = result[0]
    assert (first.index, first.group, first.topic, first.queue_id, first.keys) == (2, "P", "orders", 2, "k-C")
    assert (first.checks_sent, first.checks_left, first.next_check_ms, first.producers) == (0, 5, -1, 1)
    assert first.offset_msg_id == offset_msg_id(HOST, apache.place(HALF, 2))
    assert first.not_reported
    [at_a, at_b] = script.run(transaction_stats(core))
    assert (at_a.pending_count, [(g.group, g.pending) for g in at_a.groups], at_a.counters) == (2, [("P", 2)], {})
    assert at_b.pending_count == 0


def test_the_newest_copy_counts_and_its_age_is_that_of_the_message():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    apache.half("A")
    apache.half("B")
    apache.half("A", checks=2)

    result = script.run(pending_transactions(core))

    assert [(each.msg_id, each.index, each.checks_sent, each.checks_left) for each in result] == [("A", 2, 2, 3), ("B", 1, 0, 5)]
    assert [each.since_ms for each in result] == [START_MS - 60_000, START_MS - 10_000 + 1]
    assert [each.msg_id for each in script.run(pending_transactions(core, older_than_ms=30_000))] == ["A"]
    assert script.run(pending_transactions(core, group="Q")) == []


def test_a_message_that_was_too_young_is_decided_by_the_offset_it_had_first():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    apache.half("A", TRAN_PREPARED_QUEUE_OFFSET="17")
    apache.queues[OP] = [(b"17", {})]

    assert script.run(pending_transactions(core)) == []


@pytest.mark.parametrize("name", ["A", "k-A", 0, 1])
def test_one_transaction_is_its_newest_copy_by_any_name(name):
    script = Scripted()
    core, apache = admin(script), Apache(script)
    apache.half("A")
    apache.half("A", checks=1)

    assert script.run(transaction(core, name)).index == 1
    assert script.run(transaction(core, offset_msg_id(HOST, apache.place(HALF, 0)))).index == 1


def test_a_key_of_several_transactions_at_a_broker_of_another_kind_is_refused_with_their_ids():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    for name in ("A", "B"):
        apache.half(name, KEYS="shared")

    with pytest.raises(UsageError, match="the key 'shared' names 2 transactions"):
        script.run(transaction(core, "shared"))
    with pytest.raises(QueryNotFound):
        script.run(transaction(core, "0"))


def outcome(script: Scripted, core, what: str, apache: Apache) -> str:
    apache.half("A")
    if what == "COMMITTED":
        apache.queues["orders"].append((b"body", {"UNIQ_KEY": "A", "prepared": str(apache.place(HALF, 0))}))
    if what == "ROLLED_BACK":
        apache.queues[OP].append((b"0", {}))
    if what == "EXPIRED":
        apache.queues[EXPIRED].append((b"body", {"UNIQ_KEY": "A"}))
    if what not in ("PREPARED",):
        apache.settled[HALF] = 1
    return script.run(transaction(core, "A")).state


@pytest.mark.parametrize("what", ["PREPARED", "COMMITTED", "ROLLED_BACK", "EXPIRED", "UNCLEAR"])
def test_what_became_of_it_is_read_from_its_traces(what):
    script = Scripted()

    assert outcome(script, admin(script), what, Apache(script)) == what


@pytest.mark.parametrize(
    ("was", "commit", "sent"),
    [
        ("PREPARED", True, 1),
        ("PREPARED", False, 1),
        ("COMMITTED", True, 0),
        ("ROLLED_BACK", False, 1),
        ("COMMITTED", False, None),
        ("ROLLED_BACK", True, None),
        ("EXPIRED", True, None),
        ("UNCLEAR", False, None),
    ],
)
def test_a_decision_by_hand_never_delivers_twice_and_never_contradicts(was, commit, sent):
    script = Scripted()
    core, apache = admin(script), Apache(script)
    assert outcome(script, core, was, apache) == was

    if sent is None:
        with pytest.raises(BrokerError, match=f"decided: {was}"):
            script.run(decide_transaction(core, "A", commit=commit, operator="Ada"))
    else:
        done = script.run(decide_transaction(core, "A", commit=commit, operator="Ada"))
        assert done.state == ("COMMITTED" if commit else "ROLLED_BACK")
        assert any("written down nowhere" in text for text in done.not_reported)
    ends = script.asked(EndTransaction)
    assert len(ends) == (sent or 0)
    for seen in ends:
        assert (seen.request.producer_group, seen.request.tran_state_table_offset) == ("P", 0)
        assert (seen.request.commit_log_offset, seen.oneway) == (apache.place(HALF, 0), False)


def test_a_check_cannot_be_asked_for_there():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    apache.half("A")

    with pytest.raises(RequestNotSupported, match="no Halfmoon broker"):
        script.run(check_transaction(core, "A"))
    assert script.asked(CheckTransaction) == []


def test_op_records_with_rubbish_decide_nothing():
    script = Scripted()
    core, apache = admin(script), Apache(script)
    apache.half("A")
    apache.queues[OP] = [(b"\xff,-1,00x," + b"9" * 40, {})]

    assert decided_by([]) == frozenset()
    assert [each.msg_id for each in script.run(pending_transactions(core))] == ["A"]
