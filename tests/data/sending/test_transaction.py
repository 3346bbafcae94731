"""Batch transactions of rows against brokers made up here: what is visible after any history of runs, kills and repeats."""

from __future__ import annotations

import pickle
from concurrent.futures import Future

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.client.batches import BatchName, DecideResult, PrepareResult
from halfmoon.data.sending.transaction import NotDecided, PrepareReport, abort_attempts, commit_batch, prepare, sum_of_rows
from halfmoon.errors import ConnectionLost, UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.wire.bodies.batches import BatchPromise, piece_checksum, sum_of
from halfmoon.wire.properties import value_of
from halfmoon.wire.record import decode_batch

BATCH = BatchName("query-1", 0)
OPTIONS = SinkOptions(endpoints="x:1", topic="orders", batch_bytes=1024, in_flight=2)


class Killed(Exception):
    """The process ends here."""


class Brokers:
    """Two brokers and a coordinator that keep what the protocol says. ``left``: so many calls until the caller is killed."""

    def __init__(self) -> None:
        self.held: dict[tuple, list] = {}
        self.decisions: dict[BatchName, tuple[dict, str]] = {}
        self.published: set[tuple[BatchName, str]] = set()
        self.topic: list[bytes] = []
        self.aborted: set[str] = set()
        self.left = 10**9
        self.after = False
        self.calls: list[str] = []
        self.coordinators = {"b-0": "b-0", "b-1": "b-0"}
        self.born = [100, 120]

    def _call(self, name: str) -> None:
        self.calls.append(name)
        self.left -= 1
        if self.left < 0:
            raise Killed(name)

    def queues(self, topic):
        """Return four queues of two brokers."""
        return [MessageQueue(topic, f"b-{i % 2}", i // 2) for i in range(4)]

    def births(self, topic):
        """Return when the topic was created at both."""
        return self.born

    def prepare(self, batch, attempt, partition, queue, first_seq, count, body):
        """Keep a piece."""
        self._call("prepare")
        future: Future = Future()
        decided = batch in self.decisions or any(batch == each for each, _ in self.published)
        checksum = piece_checksum(queue.topic, queue.queue_id, first_seq, body)
        if not decided:
            pieces = self.held.setdefault((batch, attempt, queue.broker_name), [])
            pieces.append((partition, queue, first_seq, count, checksum, body))
        future.set_result(PrepareResult(decided, checksum, self.coordinators[queue.broker_name]))
        return future

    def vote(self, batch, broker, coordinator, attempts):
        """Say whether all is here."""
        self._call("vote")
        for name, promise in attempts.items():
            pieces = self.held.get((batch, name, broker), [])
            if (sum(p[3] for p in pieces), sum_of(p[4] for p in pieces)) != (promise.count, promise.checksum):
                return f"{name} is not whole"
        return None

    def decide(self, batch, coordinator, parts, digest):
        """Record the first decision."""
        self._call("decide")
        if batch in self.decisions:
            recorded, first_digest = self.decisions[batch]
            complete = all((batch, b) in self.published for b in recorded)
            last = max(each.number for each in self.decisions if each.owner == batch.owner)
            if complete and batch.number < last:  # of these one number is kept
                return DecideResult({}, already=True, complete=True, last=last)
            return DecideResult(recorded, already=True, digest=first_digest, complete=complete, last=last)
        if self.aborted & {name for attempts in parts.values() for name in attempts}:
            return DecideResult({}, refused="an attempt was aborted")
        self.decisions[batch] = (parts, digest)
        return DecideResult(parts, digest=digest)

    def apply(self, batch, broker, coordinator, attempts):
        """Publish once, by partition and sequence."""
        self._call("apply")
        if (batch, broker) in self.published:
            return
        self.published.add((batch, broker))
        assert attempts == self.decisions[batch][0][broker]
        pieces = [piece for name in attempts for piece in self.held[batch, name, broker]]
        for piece in sorted(pieces, key=lambda p: (p[0], p[1], p[2])):
            self.topic += [item.body for item in decode_batch(piece[5])]

    def abort(self, batch, broker, attempts):
        """Drop what is not decided."""
        self.calls.append("abort")
        if batch not in self.decisions:
            for name in attempts:
                self.held.pop((batch, name, broker), None)


def rows(bodies: list[str]) -> pa.RecordBatch:
    """Return rows."""
    return pa.RecordBatch.from_pydict({"body": bodies})


def run(brokers: Brokers, tasks: list[list[str]], batch: BatchName = BATCH, options: SinkOptions = OPTIONS) -> list[PrepareReport]:
    """Run a batch as Spark does: its tasks, then the commit; where that raises, an abort."""
    said = [prepare(brokers, options, batch, number, [rows(bodies)]) for number, bodies in enumerate(tasks)]
    try:
        commit_batch(brokers, options, said)
    except Killed:
        raise
    except Exception:
        abort_attempts(brokers, said)
        raise
    return said


def test_nothing_is_visible_before_the_commit_and_all_of_it_after():
    brokers = Brokers()
    tasks = [[f"{t}-{i}" * 20 for i in range(60)] for t in range(3)]
    said = [prepare(brokers, OPTIONS, BATCH, number, [rows(bodies)]) for number, bodies in enumerate(tasks)]
    assert brokers.topic == []

    commit_batch(brokers, OPTIONS, said)

    assert sorted(brokers.topic) == sorted(body.encode() for bodies in tasks for body in bodies)
    assert brokers.calls.count("vote") == brokers.calls.count("apply") == 2
    assert brokers.calls.count("decide") == 1


@pytest.mark.slow
@given(st.lists(st.lists(st.text("ab", min_size=1, max_size=3), max_size=6), min_size=1, max_size=3), st.lists(st.integers(0, 12)))
@settings(max_examples=300)
def test_whatever_is_killed_and_run_again_each_row_is_there_once(tasks: list[list[str]], kills: list[int]):
    brokers = Brokers()
    for batch in (BATCH, BatchName("query-1", 1)):
        for calls in kills:
            brokers.left = calls
            try:
                run(brokers, tasks, batch)
            except Killed:
                continue
        brokers.left = 10**9
        run(brokers, tasks, batch)

    assert sorted(brokers.topic) == sorted(body.encode() for bodies in tasks for body in bodies for _ in range(2))


def test_a_commit_that_raised_after_the_decision_is_carried_out_by_the_next_run():
    brokers = Brokers()
    brokers.left = 3  # prepare, vote, decide
    with pytest.raises(Killed, match="apply"):
        run(brokers, [["a"]])
    brokers.left = 10**9

    said = run(brokers, [["a"]])

    assert said[0].decided
    assert brokers.topic == [b"a"]
    assert brokers.calls[-3:] == ["prepare", "decide", "apply"]


def test_a_task_sends_no_more_once_the_batch_is_decided():
    brokers = Brokers()
    run(brokers, [["a"]])
    brokers.calls.clear()

    prepare(brokers, OPTIONS, BATCH, 0, (rows(["x" * 900] * 5) for _ in range(20)))

    assert len(brokers.calls) <= OPTIONS.in_flight + 1


def test_other_rows_under_a_decided_number_are_an_error_unless_told_otherwise():
    brokers = Brokers()
    run(brokers, [["a", "b"]])

    with pytest.raises(UsageError, match=r"batch 0 of query-1 was written with other rows .*backup"):
        run(brokers, [["a", "c"]])
    run(brokers, [["b"], ["a"]])  # the same rows, shared out in another way
    run(brokers, [["a", "c"]], options=SinkOptions(endpoints="x:1", topic="orders", strict_replay=False))
    assert brokers.topic == [b"a", b"b"]


@pytest.mark.parametrize(("column", "first", "then"), [
    ("keys", ["k1", "k2"], ["k2", "k1"]), ("tags", ["red", None], ["blue", None]),
    ("properties", [{"a": "1"}, {}], [{"a": "2"}, {}]), ("properties", [{"a": "1"}, None], [None, {"a": "1"}]),
])  # fmt: skip
def test_other_keys_tags_or_properties_under_a_decided_number_are_an_error(column, first, then):
    brokers, kind = Brokers(), pa.map_(pa.string(), pa.string()) if column == "properties" else pa.string()

    def attempt(values):
        batch = pa.RecordBatch.from_arrays([pa.array(["a", "b"]), pa.array(values, type=kind)], names=["body", column])
        commit_batch(brokers, OPTIONS, [prepare(brokers, OPTIONS, BATCH, 0, [batch])])

    attempt([list(value.items()) if isinstance(value, dict) else value for value in first])
    attempt([list(value.items()) if isinstance(value, dict) else value for value in first])
    with pytest.raises(UsageError, match="was written with other rows"):
        attempt([list(value.items()) if isinstance(value, dict) else value for value in then])


@pytest.mark.parametrize("strict", [True, False])
def test_a_number_that_was_written_to_one_topic_is_not_taken_for_written_to_another(strict: bool):
    brokers = Brokers()
    first, second = (SinkOptions(endpoints="x:1", topic=name, strict_replay=strict) for name in ("orders", "refunds"))
    run(brokers, [["a", "b"]], options=first)
    run(brokers, [["a", "b"]], options=first)

    with pytest.raises(UsageError, match=r"batch 0 of query-1 was written before, and to other topics: nothing is written now"):
        run(brokers, [["a", "b"]], options=second)


@pytest.mark.parametrize(("born", "is_another"), [
    ([100, 120], False), ([120], False), ([100, 120, 300], False), ([], False), ([300, 310], True)
])  # fmt: skip
def test_a_target_that_was_deleted_is_not_taken_for_written(born: list[int], is_another: bool):
    """A broker may leave or join; where all have the topic newly, it is another one."""
    brokers = Brokers()
    run(brokers, [["a", "b"]])
    brokers.born = born

    if is_another:
        with pytest.raises(UsageError, match="a topic that was deleted since: nothing is written now"):
            run(brokers, [["a", "b"]])
    else:
        run(brokers, [["a", "b"]])
    assert brokers.topic == [b"a", b"b"]


def test_a_digest_is_short_enough_for_its_coordinator():
    brokers = Brokers()
    brokers.born = [2**43, 2**44]
    for count in (1, 2, 3, 50):
        rows = pa.RecordBatch.from_pydict({"body": ["x"] * count, "topic": [f"topic-{number}" * 10 for number in range(count)]})
        batch, options = BatchName("query-2", count), SinkOptions(endpoints="x:1")
        commit_batch(brokers, options, [prepare(brokers, options, batch, 0, [rows])])
        assert len(brokers.decisions[batch][1]) <= 128 - len(str(2**64))


@pytest.mark.parametrize(("column", "first", "then"), [
    ("topic", "orders", "refunds"), ("queueId", 0, 1), ("shardingKey", "k", "l"), ("delayLevel", 1, 2), ("deliverAt", 10**12, 10),
])  # fmt: skip
def test_rows_are_others_in_another_topic_or_queue_at_another_time_or_with_another_key(column: str, first: object, then: object):
    sums = [sum_of_rows(pa.RecordBatch.from_pydict({"body": ["a"], column: [value]})) for value in (first, first, then, None)]

    assert sums[0] == sums[1]
    assert len({*sums}) == 3


def test_rows_are_others_if_a_value_moves_to_another_column_or_row():
    rows = [{"body": "a", "keys": "b"}, {"body": "a", "tags": "b"}, {"body": "ab"}, {"body": "a", "keys": "", "tags": "b"}]
    names = ["body", "keys", "tags"]
    sums = [sum_of_rows(pa.RecordBatch.from_pylist([{**dict.fromkeys(names), **row}])) for row in rows[:3]]
    assert len({*sums}) == 3
    assert sum_of_rows(pa.RecordBatch.from_pylist([{**dict.fromkeys(names), **row} for row in rows])) == sum([*sums, sums[1]])


def test_a_slice_of_rows_has_the_sum_of_its_own_rows():
    rows = pa.RecordBatch.from_pydict({"body": ["a", "bc", "def"], "keys": [None, "k", ""]})
    assert sum_of_rows(rows) == sum(sum_of_rows(rows.slice(at, 1)) for at in range(3))
    assert sum_of_rows(rows.slice(3)) == 0


def test_the_order_of_properties_makes_no_other_rows():
    kind = pa.map_(pa.string(), pa.string())
    sums = [
        sum_of_rows(pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array([pairs], type=kind)], names=["body", "properties"]))
        for pairs in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    ]
    assert sums[0] == sums[1]


def test_a_batch_that_later_ones_followed_is_an_error_unless_told_otherwise():
    brokers, first, third = Brokers(), BatchName("query-1", 0), BatchName("query-1", 2)
    for number in range(3):
        run(brokers, [[f"row-{number}"]], BatchName("query-1", number))

    with pytest.raises(UsageError, match=r"batch 0 of query-1 was written long ago, batch 2 after it.*backup.*transactionalId"):
        run(brokers, [["row-0", "row-1", "row-2", "row-3"]], first)
    run(brokers, [["row-2"]], third)
    run(brokers, [["row-0"]], first, SinkOptions(endpoints="x:1", topic="orders", strict_replay=False))

    assert brokers.topic == [b"row-0", b"row-1", b"row-2"]


def test_a_coordinator_that_forgot_a_published_batch_is_an_error_and_no_batch_without_rows():
    brokers = Brokers()
    run(brokers, [["a"]])
    brokers.decisions.clear()

    with pytest.raises(UsageError, match="b-0, which decides, knows nothing of it"):
        run(brokers, [["a"]])
    with pytest.raises(UsageError, match="rows of a decision that was lost"):
        run(brokers, [["a"]])


def test_a_broker_that_lost_a_piece_prevents_the_decision():
    brokers = Brokers()
    said = [prepare(brokers, OPTIONS, BATCH, 0, [rows(["a" * 900, "b" * 900])])]
    brokers.held.popitem()

    with pytest.raises(NotDecided, match=r"batch 0 of query-1: broker b-\d does not hold it whole"):
        commit_batch(brokers, OPTIONS, said)
    assert brokers.decisions == {}
    abort_attempts(brokers, said)
    assert brokers.held == {}


def test_an_attempt_that_was_aborted_is_not_decided_and_may_run_again():
    brokers = Brokers()
    said = [prepare(brokers, OPTIONS, BATCH, 0, [rows(["a"])])]
    brokers.aborted.add(said[0].attempt)

    with pytest.raises(NotDecided, match="aborted"):
        commit_batch(brokers, OPTIONS, said)
    assert NotDecided.retry

    run(brokers, [["a"]])
    assert brokers.topic == [b"a"]


def test_an_abort_after_the_decision_takes_nothing_away():
    brokers = Brokers()
    brokers.left = 3
    said = [prepare(brokers, OPTIONS, BATCH, 0, [rows(["a"])])]
    with pytest.raises(Killed):
        commit_batch(brokers, OPTIONS, said)
    brokers.left = 10**9
    abort_attempts(brokers, said)

    run(brokers, [["a"]])

    assert brokers.topic == [b"a"]


def test_an_abort_that_cannot_be_told_is_no_error():
    class Gone(Brokers):
        def abort(self, batch, broker, attempts):
            raise ConnectionLost("gone")

    brokers = Gone()
    abort_attempts(brokers, [prepare(brokers, OPTIONS, BATCH, 0, [rows(["a"])]), None])


def test_brokers_that_name_different_coordinators_prevent_the_decision():
    brokers = Brokers()
    brokers.coordinators["b-1"] = "b-1"

    with pytest.raises(NotDecided, match="do not agree on who coordinates query-1: b-0, b-1"):
        run(brokers, [["a"], ["b"]])
    assert "decide" not in brokers.calls


def test_a_batch_without_rows_asks_nobody():
    brokers = Brokers()

    commit_batch(brokers, OPTIONS, [prepare(brokers, OPTIONS, BATCH, 0, [rows([])]), None])

    assert brokers.calls == []


def test_what_a_task_says_does_not_grow_with_its_rows():
    brokers = Brokers()
    sizes = [len(pickle.dumps(prepare(brokers, OPTIONS, BATCH, 0, [rows(["x"] * count)]))) for count in (1000, 20_000)]

    assert sizes[1] - sizes[0] < 32


def test_promises_are_what_the_broker_was_sent():
    brokers = Brokers()

    said = prepare(brokers, OPTIONS, BATCH, 1, [rows([f"{i}" * 100 for i in range(50)]), rows(["last"])])

    for broker, promise in said.parts().items():
        pieces = brokers.held[BATCH, said.attempt, broker]
        assert promise == BatchPromise(sum(p[3] for p in pieces), sum_of(p[4] for p in pieces))
        by_queue: dict = {}
        for _, queue, first_seq, count, _, _ in pieces:
            assert first_seq == by_queue.get(queue, 0)
            by_queue[queue] = first_seq + count
    assert sum(said.counts.values()) == said.rows == 51


def test_delayed_rows_travel_with_the_others():
    brokers = Brokers()
    batch = pa.RecordBatch.from_pydict({"body": ["a", "b", "c"], "delayLevel": [3, 0, None]})

    said = prepare(brokers, OPTIONS, BATCH, 0, [batch])

    (piece,) = [piece for pieces in brokers.held.values() for piece in pieces]
    assert said.rows == piece[3] == 3
    delays = [value_of(item.properties, b"DELAY") for item in decode_batch(piece[5])]
    assert delays == [b"3", None, None]


def test_rows_that_are_too_large_go_as_dead_letters_and_are_counted():
    brokers = Brokers()
    options = SinkOptions(endpoints="x:1", topic="orders", message_bytes=2_048, on_too_large="dlq", dlq_topic="dead")

    said = prepare(brokers, options, BATCH, 0, [rows(["small", "x" * 5_000, "also small"])])

    topics = {piece[1].topic: piece[3] for pieces in brokers.held.values() for piece in pieces}
    assert (topics, said.rows, said.too_large) == ({"orders": 2, "dead": 1}, 3, 1)
