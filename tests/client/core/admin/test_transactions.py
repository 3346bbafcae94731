"""What operators ask about transactions: several brokers merged, names that several know, and brokers that keep no table."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.client.core.admin.transactions import (
    PAGE_REQUESTS_MAX,
    check_transaction,
    decide_transaction,
    history_of,
    pending_page,
    pending_transactions,
    transaction,
    transaction_stats,
)
from halfmoon.errors import BrokerError, ConnectFailed, QueryNotFound, UsageError
from halfmoon.wire.bodies import (
    GroupTransactions,
    PendingTransactions,
    SentCheck,
    Transaction,
    TransactionStats,
    to_json,
)
from halfmoon.wire.headers.pull import (
    QueryMessage,
    QueryMessageReply,
)
from halfmoon.wire.headers.transaction import (
    CheckTransaction,
    DecideTransaction,
    GetTransaction,
    GetTransactionStats,
    ListPendingTransactions,
)
from halfmoon.wire.ids import pack_host
from halfmoon.wire.properties import encode
from halfmoon.wire.record import encode_record
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import START_MS, Reply, Scripted

HALF, OP, EXPIRED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"
HOST = pack_host("10.0.0.2:10911")
UNKNOWN_REQUEST = Reply(3, remark="request type not supported")


def one(index: int, stored_ms: int, **values) -> Transaction:
    return Transaction(index=index, msg_id=f"ID{index}", group="P", topic="orders", stored_ms=stored_ms, **values)


def page(*found: Transaction, following: int = -1) -> Reply:
    return Reply(body=to_json(PendingTransactions(START_MS, len(found), following, list(found))))


def by_broker(**replies: Reply):
    """Answer for broker-a and broker-b."""
    return lambda seen: replies[seen.address[7]]


# ---------------------------------------------------------------- brokers that keep a table


def test_what_is_pending_at_all_masters_is_merged_the_oldest_first():
    script = Scripted()
    core = admin(script)
    script.on(ListPendingTransactions, by_broker(a=page(one(0, 10), one(1, 30)), b=page(one(0, 20))))

    result = script.run(pending_transactions(core, group="P", older_than_ms=7, count_max=2))

    assert [(each.broker, each.address, each.index, each.since_ms) for each in result] == [
        ("broker-a", "broker-a:1", 0, 10),
        ("broker-b", "broker-b:1", 0, 20),
    ]
    request = script.asked(ListPendingTransactions)[0].request
    assert (request.group, request.start, request.count, request.older_than_ms) == ("P", 0, 2, 7)


def test_pages_are_followed_also_those_with_nothing_of_the_group_and_never_in_a_circle():
    script = Scripted()
    core = admin(script)
    pages = {0: page(one(0, 10), following=5), 5: page(following=9), 9: page(one(9, 20), following=9)}
    empty = page()
    script.on(ListPendingTransactions, lambda seen: pages[seen.request.start] if seen.address == "broker-a:1" else empty)

    result = script.run(pending_transactions(core))

    assert [each.index for each in result] == [0, 9]
    assert [seen.request.start for seen in script.asked(ListPendingTransactions) if seen.address == "broker-a:1"] == [0, 5, 9]


def test_a_list_that_lacks_a_broker_is_an_error():
    script = Scripted()
    core = admin(script)
    lists = ((ListPendingTransactions, each) for each in (pending_transactions, pending_page))
    for request, operation in (*lists, (GetTransactionStats, transaction_stats)):
        script.on(request, lambda seen: page() if seen.address == "broker-a:1" else ConnectFailed("refused", "broker-b:1"))
        with pytest.raises(ConnectFailed):
            script.run(operation(core))


class Tables:
    """Two brokers with tables of pending transactions, each of whose answers looks at five of them and gives three."""

    def __init__(self, script: Scripted, random: Random, count: int) -> None:
        self.of = {
            address: [one(index, time) for index, time in enumerate(sorted(random.choices(range(1, 50), k=count)))]
            for address in ("broker-a:1", "broker-b:1")
        }
        for table in self.of.values():
            for each in table:
                each.group = random.choice("PPQ")
        script.on(ListPendingTransactions, self.listed)

    def listed(self, seen) -> Reply:
        """Answer as a broker does."""
        pending = [each for each in self.of[seen.address] if each.state == "PREPARED" and each.index >= seen.request.start]
        looked = pending[:5]
        meant = [each for each in looked if seen.request.group in (None, each.group)][: min(3, seen.request.count)]
        behind = looked if len(meant) < min(3, seen.request.count) else meant
        return page(*meant, following=behind[-1].index + 1 if behind and behind[-1] is not pending[-1] else -1)

    def pending(self, group: str | None) -> list[tuple[int, str, int]]:
        """Return what a list has to have: time, broker, index."""
        return sorted(
            (each.stored_ms, address.partition(":")[0], each.index)
            for address, table in self.of.items()
            for each in table
            if each.state == "PREPARED" and group in (None, each.group)
        )


@given(st.randoms(use_true_random=False), st.integers(0, 40), st.sampled_from([None, "P", "Q", "none"]), st.integers(1, 9))
def test_all_pages_together_are_the_whole_list_in_its_order_while_transactions_are_decided(random, count, group, size):
    script = Scripted()
    core, tables = admin(script), Tables(script, random, count)
    before, seen, cursor, sizes = tables.pending(group), [], None, []
    while not sizes or cursor is not None:
        part = script.run(pending_page(core, group=group, count=size, after=cursor))
        seen += [(each.since_ms, each.broker, each.index) for each in part.transactions]
        sizes.append(len(part.transactions))
        cursor = part.next
        for table in tables.of.values():
            for each in random.sample(table, min(random.choice([0, 2]), len(table))):
                each.state = "COMMITTED"
        assert len(sizes) < 200
    left = set(tables.pending(group))

    assert max(sizes) <= size
    assert len(seen) == len(set(seen))
    assert [time for time, *_ in seen] == sorted(time for time, *_ in seen)
    assert left & set(before) <= set(seen) <= set(before)


def test_a_page_of_a_group_with_few_of_many_ends_after_so_many_requests_and_says_where_to_go_on():
    script = Scripted()
    core = admin(script)
    script.on(ListPendingTransactions, lambda seen: page(following=seen.request.start + 8192))

    found = script.run(pending_page(core, group="rare"))

    assert (found.transactions, len(script.asked(ListPendingTransactions))) == ([], 2 * PAGE_REQUESTS_MAX)
    script.run(pending_page(core, group="rare", after=found.next))
    assert script.asked(ListPendingTransactions)[-1].request.start == (2 * PAGE_REQUESTS_MAX - 1) * 8192


@pytest.mark.parametrize("cursor", ["", "x", "é", "e30", "eyJhIjoxfQ", "eyJhIjpbIngiLDFdfQ", "eyJhIjpbLTIsIiJdfQ", "A" * 9000])
def test_a_damaged_cursor_is_refused_in_words(cursor):
    script = Scripted()
    core = admin(script)
    script.on(ListPendingTransactions, by_broker(a=page(one(0, 10)), b=page()))

    with pytest.raises(UsageError, match="begin at its first page"):
        script.run(pending_page(core, after=cursor))


def test_one_transaction_is_found_at_whichever_broker_has_it():
    script = Scripted()
    core = admin(script)
    found = Reply(body=to_json(one(7, 10, checks=[SentCheck(5, "aa", "UNKNOWN")])))
    script.on(GetTransaction, by_broker(a=Reply(22, remark="no half message"), b=found))

    got = script.run(transaction(core, "ID7"))

    assert (got.broker, got.index, got.last_answer) == ("broker-b", 7, "UNKNOWN")


def test_a_name_that_two_brokers_know_is_refused_with_names_that_one_knows():
    script = Scripted()
    core = admin(script)
    replies = {name: Reply(body=to_json(one(7, 10, offset_msg_id=f"PLACE-{name}"))) for name in "ab"}
    script.on(GetTransaction, by_broker(**replies))

    with pytest.raises(UsageError, match="PLACE-a, PLACE-b"):
        script.run(transaction(core, "7"))


@pytest.mark.parametrize(
    "other", [Reply(1, remark="the key 'k' names 2 transactions, give one of: X, Y"), ConnectFailed("refused", "b")]
)
def test_a_key_that_another_broker_knows_too_or_may_know_is_refused_and_an_id_is_not(other):
    script = Scripted()
    core = admin(script)
    found = one(7, 10, offset_msg_id="PLACE-a")
    script.on(GetTransaction, by_broker(a=Reply(body=to_json(found)), b=other))

    with pytest.raises(UsageError, match=f"PLACE-a.*{'X, Y' if isinstance(other, Reply) else 'refused'}"):
        script.run(transaction(core, "k"))
    assert script.run(transaction(core, found.msg_id)).offset_msg_id == "PLACE-a"


def test_nobody_who_knows_it_is_not_found_and_a_broker_that_is_away_is_said():
    script = Scripted()
    core = admin(script)
    script.on(GetTransaction, Reply(22, remark="none"))
    with pytest.raises(QueryNotFound):
        script.run(transaction(core, "x"))

    script.on(GetTransaction, by_broker(a=Reply(22, remark="none"), b=Reply(2, remark="busy")))
    with pytest.raises(BrokerError, match="busy"):
        script.run(transaction(core, "x"))


def test_a_check_and_a_decision_go_to_the_broker_that_has_it_by_the_name_that_is_its_own():
    script = Scripted()
    core = admin(script)
    script.on(GetTransaction, by_broker(a=Reply(22), b=Reply(body=to_json(one(7, 10)))))
    script.on(CheckTransaction, Reply(body=to_json(one(7, 10, checks_sent=1))))
    script.on(DecideTransaction, Reply(body=to_json(one(7, 10, state="COMMITTED"))))

    assert script.run(check_transaction(core, "key")).checks_sent == 1
    assert script.run(decide_transaction(core, "key", commit=True, operator="Ada")).state == "COMMITTED"

    [check], [decide] = script.asked(CheckTransaction), script.asked(DecideTransaction)
    assert (check.address, check.request.offset) == ("broker-b:1", 7)
    assert (decide.address, decide.fields) == ("broker-b:1", {"offset": "7", "commit": "true", "operator": "Ada"})


@pytest.mark.parametrize(("place", "state"), [(50, "ROLLED_BACK"), (500_000, "EXPIRED")])
def test_what_a_broker_rolled_back_itself_is_told_from_a_decision_by_the_copy_behind_it(place, state):
    script = Scripted()
    core = admin(script)
    found = Reply(body=to_json(one(7, 10, state="ROLLED_BACK", commit_log_offset=100)))
    copy = encode_record(
        topic=EXPIRED, queue_id=0, queue_offset=0, physical_offset=place, body=b"", properties=encode({"UNIQ_KEY": "ID7"}),
        born_ms=1, born_host=HOST, store_ms=2, store_host=HOST,
    )  # fmt: skip
    script.on(GetTransaction, by_broker(a=found, b=Reply(22)))
    script.on(QueryMessage, Reply(0, QueryMessageReply(index_last_update_timestamp=0, index_last_update_phyoffset=0), copy))

    assert script.run(transaction(core, "ID7")).state == state


def test_names_inside_a_namespace_are_the_users():
    script = Scripted()
    core = admin(script, namespace="N")
    within = Transaction(index=0, group="N%P", topic="N%orders")
    script.on(ListPendingTransactions, page(within))
    script.on(GetTransactionStats, Reply(body=to_json(TransactionStats(groups=[GroupTransactions("N%P", 1, 5, 1)]))))

    result = script.run(pending_transactions(core, group="P"))

    assert script.asked(ListPendingTransactions)[0].request.group == "N%P"
    assert {(each.group, each.topic) for each in result} == {("P", "orders")}
    assert {group.group for each in script.run(transaction_stats(core)) for group in each.groups} == {"P"}


# ---------------------------------------------------------------- brokers that keep none


def test_a_history_that_is_none_is_left_out():
    assert history_of("") == history_of("rubbish 1:2 x:NONE:a 99999999999999:NONE:a") == []
