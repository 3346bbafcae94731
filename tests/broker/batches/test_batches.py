"""Batch transactions at one broker: pieces, votes, decisions, publishing, and what a restart finds."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import BATCH_TOPIC
from halfmoon.wire.bodies import KVTable, from_json, to_json
from halfmoon.wire.bodies.batches import ONE_RUN, BatchList, BatchPromise, BatchPromises
from halfmoon.wire.codes import COMPRESSED, ZLIB
from halfmoon.wire.compression import compress, decompress
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.headers.batch import ListBatches, PrepareBatchReply, VoteBatch, VoteBatchReply
from halfmoon.wire.properties import encode
from halfmoon.wire.record import BatchItem, encode_batch
from tests.broker.batch import Driver, bodies, body_of, visible

FLUSH = pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def talk(request, make_talk):
    talk = make_talk(store={"flush_disk_type": request.param})
    talk.send("orders")
    return talk


@pytest.fixture
def driver(talk):
    return Driver(talk)


def test_a_piece_waits_for_no_sync_and_a_vote_does(talk, driver):
    driver.stored(0, "a", "one")
    talk.held_back = []
    assert driver.stored(0, "a", "two") == "STORED"
    header = VoteBatch(transactional_id="q", batch_id=0, coordinator="broker-a")
    opaque = talk.post(header, to_json(BatchPromises(driver.promises(0, "a"))))
    talk.turn()
    assert talk.answer(opaque) is None
    talk.release()
    talk.turn()
    assert talk.answer(opaque).header(VoteBatchReply).result == "YES"


def read(talk, queue_id=0):
    """What consumers see beside the first message, by which the topic was made."""
    found = bodies(talk, queue_id=queue_id)
    return found[1:] if queue_id == 0 else found


def test_a_batch_is_visible_once_it_is_applied_and_not_before(talk, driver):
    assert driver.stored(0, "a", "one", "two") == "STORED"
    assert driver.vote(0, "a").result == "YES"
    assert read(talk) == []
    assert driver.decide(0, "a")[0].result == "DECIDED"
    assert read(talk) == []
    reply = driver.apply(0, "a")
    assert (reply.result, reply.count) == ("APPLIED", 2)
    assert read(talk) == ["one", "two"]


def test_a_long_batch_becomes_visible_at_once_in_each_queue_with_what_others_sent_meanwhile(talk, driver, monkeypatch):
    talk.broker.batches.publishing.messages_a_turn = 2
    seen = []
    for number in range(8):
        driver.stored(0, "a", f"{number}", queue_id=number % 2)
    driver.vote(0, "a")
    driver.decide(0, "a")
    publishing = talk.broker.batches.publishing
    publish = publishing._publish

    def published(*arguments):
        seen.append((len(read(talk)), len(read(talk, 1))))
        return publish(*arguments)

    monkeypatch.setattr(publishing, "_publish", published)
    talk.ask(*driver.apply_request(0, "a"))
    talk.send("orders")
    talk.wait(2000)
    assert len(seen) == 8
    assert set(seen) == {(0, 0)}
    assert sorted(read(talk)[:4] + read(talk, 1)) >= [f"{number}" for number in range(8)]
    assert len(read(talk)) == 5


def test_a_batch_that_a_stop_cut_is_visible_at_once_after_the_next_start(talk, driver):
    talk.broker.batches.publishing.messages_a_turn = 2
    for number in range(8):
        driver.stored(0, "a", f"{number}")
    driver.vote(0, "a")
    driver.decide(0, "a")
    begin = talk.broker.store.end_offset
    talk.ask(*driver.apply_request(0, "a"))
    assert talk.broker.store.end_offset > begin
    assert read(talk) == []
    talk.restart()
    talk.broker.batches.publishing.messages_a_turn = 2
    assert read(talk) == []
    seen = set()
    for _ in range(100):
        talk.wait(1)
        seen.add(len(read(talk)))
    assert read(talk) == [f"{number}" for number in range(8)]
    assert seen <= {0, 8}


def test_messages_say_how_their_bodies_are_compressed_after_a_restart_too(talk, driver):
    body = encode_batch([BatchItem(compress(b"one " * 100), b""), BatchItem(compress(b"two " * 100), b"")])
    driver.stored(0, "a", "one", "two", body=body, sys_flag=COMPRESSED | ZLIB)
    driver.vote(0, "a")
    driver.decide(0, "a")
    talk.restart()
    driver.apply(0, "a")

    found = visible(talk)[1:]
    assert [decompress(message.body, message.sys_flag) for message in found] == [b"one " * 100, b"two " * 100]


def test_a_piece_says_nothing_else_of_its_messages(talk, driver):
    assert driver.prepare(0, "a", "x", sys_flag=0x4).code == 29
    assert driver.prepare(0, "a", "x", sys_flag=-1).code == 29


def test_messages_are_published_by_partition_and_then_by_sequence(talk, driver):
    driver.stored(0, "late", "3", partition=1)
    driver.stored(0, "early", "1", partition=0)
    driver.stored(0, "late", "4", partition=1)
    driver.stored(0, "early", "2", partition=0)
    driver.stored(0, "early", "other", partition=0, queue_id=1)
    assert driver.vote(0, "early", "late").result == "YES"
    driver.decide(0, "late", "early")
    driver.apply(0, "late", "early")
    assert read(talk) == ["1", "2", "3", "4"]
    assert read(talk, 1) == ["other"]


def test_a_message_keeps_what_its_sender_gave_it(talk, driver):
    properties = encode({"KEYS": "k7", "TAGS": "blue", "mine": "yes"})
    driver.whole(0, "x", body=body_of("x", properties=properties))
    record = visible(talk)[-1]
    assert {name: record.properties.get(name) for name in ("KEYS", "TAGS", "mine")} == {"KEYS": "k7", "TAGS": "blue", "mine": "yes"}
    assert record.prepared_transaction_offset > 0
    assert record.sys_flag & 0xC == 0


def test_a_piece_that_comes_twice_is_kept_once(talk, driver):
    driver.stored(0, "a", "one")
    assert driver.stored(0, "a", "one", first_seq=0) == "STORED"
    assert talk.broker.store.queue_max(BATCH_TOPIC, 0) == 1 or talk.wait(100) or talk.broker.store.queue_max(BATCH_TOPIC, 0) == 1
    driver.vote(0, "a")
    driver.decide(0, "a")
    driver.apply(0, "a")
    assert read(talk) == ["one"]


def test_another_piece_at_the_same_place_is_refused(driver):
    driver.stored(0, "a", "one")
    assert driver.prepare(0, "a", "two", first_seq=0).code == 13


def test_a_vote_is_no_unless_all_of_the_attempt_is_here(driver):
    driver.stored(0, "a", "one", "two")
    whole = driver.promises(0, "a")["a"]
    assert driver.vote(0, promises={"a": BatchPromise(3, whole.checksum)}).result == "NO"
    assert driver.vote(0, promises={"a": BatchPromise(2, whole.checksum + 1)}).result == "NO"
    assert driver.vote(0, promises={"a": whole, "b": BatchPromise(1, 5)}).result == "NO"
    assert driver.vote(0, "a").result == "YES"
    assert driver.vote(0, "a").result == "YES"


def test_pieces_with_a_gap_get_no_vote(driver):
    driver.stored(0, "a", "one")
    driver.next[0, "a", "orders", 0] = 5
    driver.stored(0, "a", "six")
    reply = driver.vote(0, "a")
    assert reply.result == "NO"
    assert "follow" in reply.reason


def test_the_first_decision_holds(driver):
    driver.stored(0, "a", "one")
    driver.stored(0, "b", "one")
    driver.vote(0, "a", "b")
    assert driver.decide(0, "a", digest="d1")[0].result == "DECIDED"
    header, decision = driver.decide(0, "b", digest="d2")
    assert (header.result, header.last, header.digest, header.complete) == ("ALREADY", 0, "d1", False)
    assert list(decision.participants["broker-a"]) == ["a"]


def test_what_was_decided_takes_no_more_pieces_and_votes(talk, driver):
    driver.whole(0, "one", attempt="a")
    assert driver.stored(0, "zombie", "one") == "DECIDED"
    assert driver.vote(0, promises={"zombie": BatchPromise(1, 1)}).result == "NO"
    assert driver.decide(0, "a")[0].result == "ALREADY"
    assert driver.apply(0, "a").result == "APPLIED"
    assert read(talk) == ["one"]


def test_losers_of_a_batch_are_forgotten_with_it(talk, driver):
    driver.stored(0, "winner", "one")
    driver.stored(0, "loser", "one")
    driver.vote(0, "winner", "loser")
    driver.decide(0, "winner")
    driver.apply(0, "winner")
    assert read(talk) == ["one"]
    assert driver.listed().attempt_count == 0
    assert talk.broker.batches.streams.held_bytes == talk.broker.batches.streams.piece_count == 0


def test_an_attempt_that_was_aborted_cannot_be_decided(driver):
    driver.stored(0, "a", "one")
    driver.vote(0, "a")
    assert driver.resolve(0, "a") == "UNDECIDED"
    assert driver.resolve(0, "a", abort=True) == "ABORT"
    header, _ = driver.decide(0, "a")
    assert header.result == "REFUSED"
    assert "aborted" in header.reason
    assert driver.decide(0)[0].result == "DECIDED"


def test_nothing_is_kept_of_an_id_whose_decisions_are_refused(talk):
    for number in range(3):
        header, _ = Driver(talk, id=f"nobody-told-of-{number}").decide(0)
        assert (header.result, header.last) == ("REFUSED", -1)
        assert "no broker coordinates" in header.reason
    assert not talk.broker.batches.streams.table


def test_the_coordinator_says_what_became_of_an_attempt(driver):
    driver.stored(0, "a", "one")
    driver.stored(0, "b", "one")
    driver.vote(0, "a", "b")
    driver.decide(0, "a")
    assert driver.resolve(0, "a", abort=True) == "COMMIT"
    assert driver.resolve(0, "b", abort=True) == "ABORT"


def test_what_nobody_decides_is_aborted_in_time(talk, driver):
    driver.stored(0, "a", "one", timeout_ms=5000)
    driver.vote(0, "a")
    talk.wait(4000)
    assert driver.listed().attempt_count == 1
    talk.wait(3000)
    assert driver.listed().attempt_count == 0
    assert driver.decide(0, "a")[0].result == "REFUSED"


def test_what_was_decided_is_published_when_its_driver_is_gone(talk, driver):
    driver.stored(0, "a", "one", timeout_ms=5000)
    driver.vote(0, "a")
    driver.decide(0, "a")
    talk.wait(7000)
    assert read(talk) == ["one"]


def test_an_abort_drops_what_was_not_voted_for_and_asks_about_the_rest(talk, driver):
    driver.stored(0, "a", "one")
    driver.stored(0, "b", "one")
    driver.vote(0, "b")
    driver.decide(0, "b")
    driver.abort(0, "a", "b")
    talk.wait(2000)
    assert read(talk) == ["one"]
    assert driver.listed().attempt_count == 0


def test_an_apply_with_missing_messages_is_refused(talk, driver):
    driver.stored(0, "a", "one")
    with pytest.raises(AssertionError, match="has no attempt other"):
        driver.apply(0, promises={"other": BatchPromise(1, 1)})
    assert read(talk) == []


def test_an_earlier_batch_in_doubt_is_cleared_up_before_a_later_one_is_published(talk, driver):
    driver.stored(0, "a", "first")
    driver.vote(0, "a")
    driver.decide(0, "a")
    driver.stored(1, "b", "second")
    driver.vote(1, "b")
    driver.decide(1, "b")
    with pytest.raises(AssertionError, match="in doubt"):
        driver.apply(1, "b")
    talk.wait(1500)
    assert driver.apply(1, "b").result == "APPLIED"
    assert read(talk) == ["first", "second"]


def test_a_restart_changes_nothing(talk, driver):
    driver.whole(0, "zero")
    driver.stored(1, "a", "one", "two")
    driver.vote(1, "a")
    driver.stored(1, "loser", "one")
    driver.decide(1, "a", digest="d")
    before = driver.shown()
    talk.restart()
    after = driver.shown()
    assert (before.applied, before.decided, before.attempt_count) == (0, 1, 2)
    assert (after.applied, after.decided, after.attempt_count) == (0, 1, 2)
    assert driver.stored(0, "z", "zero") == "DECIDED"
    header, decision = driver.decide(1, digest="other")
    assert (header.result, header.digest, list(decision.participants["broker-a"])) == ("ALREADY", "d", ["a"])
    assert driver.apply(1, "a").result == "APPLIED"
    assert read(talk) == ["zero", "one", "two"]


def test_an_attempt_that_was_aborted_stays_so_over_a_restart(talk, driver):
    driver.stored(0, "a", "one")
    driver.vote(0, "a")
    driver.resolve(0, "a", abort=True)
    talk.restart()
    assert driver.decide(0, "a")[0].result == "REFUSED"


def test_a_start_needs_only_what_lies_behind_the_last_snapshot(talk, driver):
    for batch in range(5):
        driver.whole(batch, f"m{batch}")
    driver.stored(5, "a", "five")
    driver.vote(5, "a")
    before = driver.shown()
    talk.broker.batches.snapshot(talk.instant)
    talk.wait(1000)
    place = talk.broker.batches.needed_from()
    talk.restart()
    assert driver.shown().applied == before.applied == 4
    assert talk.broker.batches._steps <= 2  # told to the coordinator, perhaps
    assert talk.broker.batches.needed_from() <= place
    driver.decide(5, "a")
    driver.apply(5, "a")
    assert read(talk) == [f"m{batch}" for batch in range(5)] + ["five"]


def test_log_files_with_something_undecided_stay(talk, driver):
    driver.stored(0, "a", "one")
    place = talk.broker.batches.streams.get("q").attempts[0, "a"].pieces["orders", 0, 0].physical_offset
    assert talk.broker.batches.needed_from() == place


def long(talk, driver, minutes):
    """Let time pass; the connection is used, or it would be closed."""
    for _ in range(minutes):
        talk.wait(60_000)
        driver.listed()


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_decided_is_known_however_long_nobody_asks(make_talk, restarts):
    talk = make_talk(batch_retention_ms=60_000)
    talk.send("orders")
    driver = Driver(talk)
    driver.whole(0, "one", attempt="a")
    long(talk, driver, 60)
    if restarts:
        talk.restart()
    assert driver.stored(0, "again", "one") == "DECIDED"
    assert driver.decide(0, "again")[0].result == "ALREADY"
    assert read(talk) == ["one"]


def test_the_id_of_one_run_is_forgotten(make_talk):
    talk = make_talk(batch_retention_ms=60_000)
    talk.send("orders")
    Driver(talk, id=f"{ONE_RUN}7").whole(0, "one")
    talk.wait(30_000)
    assert talk.broker.batches.streams.get(f"{ONE_RUN}7") is not None
    talk.wait(150_000)
    assert talk.broker.batches.streams.get(f"{ONE_RUN}7") is None
    talk.restart()
    assert talk.broker.batches.streams.get(f"{ONE_RUN}7") is None


def test_at_the_bound_only_ids_are_forgotten_whose_messages_have_left_the_log(make_talk, monkeypatch):
    talk = make_talk(batch_ids_max=2, batch_retention_ms=60_000)
    talk.send("orders")
    for name in ("first", "second"):
        Driver(talk, id=name).whole(0, name)
        talk.wait(1000)
    long(talk, Driver(talk), 10)
    refused = Driver(talk, id="third").prepare(0, "a", "third")
    assert (refused.code, "batch_ids_max" in refused.remark) == (2, True)

    monkeypatch.setattr(talk.broker.store, "earliest_ms", lambda: talk.now - 1000)
    assert Driver(talk, id="third").prepare(0, "a", "third").code == 2, "dates prove nothing where a clock was set back"
    for stream in talk.broker.batches.streams.table.values():
        stream.place = -1  # as if the log began behind it
    Driver(talk, id="third").whole(0, "third")
    assert sorted(talk.broker.batches.streams.table) == ["second", "third"]


def test_a_timeout_is_kept_or_refused_and_never_cut(make_talk):
    talk = make_talk(batch_timeout_ms=60_000, batch_timeout_max_ms=7_200_000)
    talk.send("orders")
    driver = Driver(talk)
    refused = driver.prepare(0, "a", "one", timeout_ms=7_200_001)
    assert (refused.code, "batch_timeout_max_ms" in refused.remark) == (29, True)
    assert driver.prepare(0, "a", "one", timeout_ms=999).code == 29
    driver.stored(0, "a", "one", timeout_ms=7_200_000)
    long(talk, driver, 118)
    driver.vote(0, "a")
    assert driver.decide(0, "a")[0].result == "DECIDED"


def test_a_timeout_counts_from_the_last_sign_of_life_of_the_batch(talk, driver):
    driver.stored(0, "quick", "one", timeout_ms=5000)
    driver.stored(1, "other", "one", timeout_ms=5000)
    for number in range(4):
        talk.wait(4000)
        driver.stored(0, "slow", f"{number}", partition=1, timeout_ms=5000)
    assert {(each.batch_id, each.attempt) for each in driver.shown().attempts} == {(0, "quick"), (0, "slow")}
    talk.wait(4000)
    assert driver.vote(0, "quick", "slow").result == "YES"
    talk.wait(4000)
    talk.restart()
    talk.wait(4000)
    assert driver.decide(0, "quick", "slow")[0].result == "DECIDED"
    driver.apply(0, "quick", "slow")
    assert read(talk) == ["one", "0", "1", "2", "3"]


def test_a_topic_that_is_deleted_before_a_batch_is_applied_is_made_anew(talk, driver):
    driver.stored(0, "a", "one")
    driver.vote(0, "a")
    driver.decide(0, "a")
    talk.broker.store.delete_topic("orders", talk.now)
    talk.broker.topics.delete("orders", talk.now)
    assert driver.apply(0, "a").result == "APPLIED"
    talk.wait(100)
    assert bodies(talk)[-1:] == ["one"]
    assert talk.broker.topics.get("orders") is not None


@pytest.mark.parametrize(
    ("settings", "prepare", "code"),
    [
        ({"batch_ids_max": 1}, None, 2),
        ({"batch_attempts_max": 1}, (0, "other", "x"), 2),
        ({"batch_pieces_max": 1}, (0, "a", "x"), 2),
    ],
)
def test_what_grows_has_a_bound(make_talk, settings, prepare, code):
    talk = make_talk(**settings)
    talk.send("orders")
    driver = Driver(talk)
    driver.stored(0, "a", "one")
    if prepare is None:
        assert Driver(talk, id="other").prepare(0, "a", "one").code == code
    else:
        assert driver.prepare(*prepare).code == code
    assert driver.vote(0, "a").result == "YES"


@pytest.mark.parametrize(
    ("arguments", "kw", "code"),
    [
        ((0, "a"), {"body": b""}, 13),
        ((0, "a", "x"), {"body": b"nonsense"}, 13),
        ((0, "a", "x", "y"), {"body": body_of("x")}, 13),
        ((0, "a", "x"), {"body": body_of("x", properties=encode({"DELAY": "soon"}))}, 13),
        ((0, "a", "x"), {"topic": BATCH_TOPIC}, 16),
        ((0, "a", "x"), {"topic": "bad topic"}, 1),
        ((0, "a", "x"), {"queue_id": 99}, 1),
        ((-1, "a", "x"), {}, 29),
        ((0, "a\x01b", "x"), {}, 29),
        ((0, "a" * 256, "x"), {}, 29),
        ((0, "a", "x"), {"partition": -1}, 29),
    ],
)
def test_a_bad_piece_is_refused_and_leaves_nothing(make_talk, arguments, kw, code):
    talk = make_talk()
    talk.send("orders")
    driver = Driver(talk)
    assert driver.prepare(*arguments, first_seq=0, **kw).code == code
    assert driver.listed().attempt_count == 0


def test_a_body_that_is_no_promise_is_refused(talk):
    header = VoteBatch(transactional_id="q", batch_id=0, coordinator="broker-a")
    assert talk.ask(header, b"{").code == 1
    assert talk.ask(header, b'{"attempts":{"a":3}}').code == 1


def test_nobody_sends_to_the_topic_of_batches(talk):
    assert talk.send(BATCH_TOPIC).code == 16


def test_a_participant_says_who_coordinates(talk, driver):
    driver.stored(0, "a", "one")
    other = Driver(talk, coordinator="broker-z")
    reply = other.prepare(0, "b", "one")
    assert reply.header(PrepareBatchReply).coordinator == "broker-a"
    assert other.vote(0, "b").result == "NO"


def test_runtime_information_tells_how_much_is_undecided(driver, talk):
    driver.stored(0, "a", "one")
    table = from_json(KVTable, talk.ask(GetBrokerRuntimeInfo()).body).table
    assert (table["batchIds"], table["batchAttemptsUndecided"]) == ("1", "1")
    assert int(table["batchBytesUndecided"]) > 91


def test_ids_are_listed_a_page_at_a_time(talk):
    for number in range(5):
        Driver(talk, id=f"id-{number}").stored(0, "a", "x")
    page = from_json(BatchList, talk.ask(ListBatches(count=3)).body)
    assert ([each.transactional_id for each in page.ids], page.next) == (["id-0", "id-1", "id-2"], "id-2")
    page = from_json(BatchList, talk.ask(ListBatches(count=3, after=page.next)).body)
    assert ([each.transactional_id for each in page.ids], page.next) == (["id-3", "id-4"], None)
    page = from_json(BatchList, talk.ask(ListBatches(transactional_id="id-4")).body)
    assert [each.transactional_id for each in page.ids] == ["id-4"]


def test_counters_say_what_happened(driver, talk):
    driver.whole(0, "one", "two")
    driver.decide(0, "a0")
    counters = driver.listed().counters
    expected = {"prepared": 2, "votes_yes": 1, "decided": 1, "already": 1, "applied": 1, "published": 2, "dropped": 0}
    assert {name: counters[name] for name in expected} == expected
