"""The broker core: its table of handlers, its due time, and requests that nobody handles."""

from msgspec.structs import replace

from halfmoon.wire.command import Command, encode, request_command
from halfmoon.wire.headers.offset import GetMaxOffset, QueryConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.topic import GetAllTopicConfig, UpdateAndCreateTopic
from halfmoon.wire.peer import ANSWERED_BYTES_A_TURN, REQUESTS_A_TURN, WAITING_MAX
from halfmoon.wire.record import decode_records
from halfmoon.wire.table import REQUESTS
from tests.broker.talk import pull_header, send_header


def test_a_request_code_without_a_handler_is_answered_3(talk):
    talk.feed(1, encode(Command(9999, 0, 5, 0, 409, None, {}, b"", 0)))
    talk.turn()
    reply = talk.answer(5)
    assert (reply.code, reply.remark) == (3, " request type 9999 not supported")


def test_each_request_code_is_declared_by_one_service(talk):
    broker = talk.broker
    services = [
        broker.gate, broker.transactions, broker.delays, broker.redelivery, broker.pulls, broker.membership, broker.locks,
        broker.progress, broker.resets, broker.relay, broker.admin, broker.cleaning,
        broker.configuration, broker.assignment, broker.queries, broker.batches,
    ]  # fmt: skip
    declared = [header for service in services for header in service.handlers()]
    assert len(declared) == len(set(declared))


def test_what_each_request_needs_stands_in_the_protocol_table(talk):
    assert talk.broker.codes() <= REQUESTS.keys()  # access control lets any account send a code that is not there


def test_it_wants_to_be_called_when_the_first_of_its_parts_does(talk):
    broker = talk.broker
    parts = [*broker.services.dues(talk.instant), broker.store.due(), broker.peers.due(), broker._next_save_at]
    assert broker.due(talk.instant) <= min(due for due in parts if due is not None)


def test_a_stop_saves_the_tables_and_says_what_could_not_be_saved(talk):
    talk.broker.topics.ensure("T", 1, talk.now)

    def fail(path, data, **kw):
        raise OSError(28, "No space left on device")

    talk.disk.save = fail
    talk.broker.stop(talk.instant)
    talk.run_effects()
    assert "config/topics.json: [Errno 28] No space left on device" in talk.broker.lost_at_stop()


def asked(count, header):
    return b"".join(encode(request_command(header, opaque=number)) for number in range(count))


def test_a_connection_that_asks_by_the_thousand_gets_a_share_of_each_turn_and_refusals_beyond_the_bound(talk):
    count = REQUESTS_A_TURN + WAITING_MAX + 100
    talk.feed(1, asked(count, GetMaxOffset(topic="T", queue_id=0)))
    talk.feed(2, asked(1, GetMaxOffset(topic="T", queue_id=0)))
    assert talk.broker.commit(talk.instant), "more is left"
    talk.run_effects()
    assert len(talk.received[2]) == 1
    assert len(talk.received[1]) == REQUESTS_A_TURN + 100

    talk.turn()
    refused = [reply for reply in talk.received[1] if reply.code == 2]
    assert {reply.remark for reply in refused} == {"[OVERLOAD]system busy, start flow control for a while"}
    assert [reply.opaque for reply in refused] == list(range(count - 100, count))
    assert [reply.opaque for reply in talk.received[1] if reply.code == 0] == list(range(count - 100))


def test_sends_do_not_overtake_those_of_their_connection_that_wait(talk):
    talk.ask(send_header("T", queue_id=0), b"first")
    talk.ask(UpdateAndCreateTopic(topic="other", read_queue_nums=1, write_queue_nums=1, perm=6, topic_filter_type="SINGLE_TAG"))
    # no queue is open to the reader any more, and they stand behind another request: these go one by one
    talk.post(GetMaxOffset(topic="T", queue_id=0))
    for number in range(200):
        talk.post(send_header("T", queue_id=0), b"%d" % number)
    assert talk.broker.commit(talk.instant), "more is left"
    talk.run_effects()
    for number in range(200, 300):
        talk.post(send_header("T", queue_id=0), b"%d" % number)
    talk.turn()

    pulled = b"".join(bytes(talk.ask(pull_header("T", offset=at), peer=9).body) for at in range(0, 301, 32))
    stored = [message.body for message in decode_records(pulled)]
    assert stored == [b"first", *(b"%d" % number for number in range(300))]


def test_what_stood_before_bytes_that_are_no_frame_is_answered_however_much_it_was(talk):
    talk.feed(1, asked(5 * REQUESTS_A_TURN, GetMaxOffset(topic="T", queue_id=0)) + b"no frame" * 100)
    talk.turn()

    assert len(talk.received[1]) == 5 * REQUESTS_A_TURN
    assert 1 in talk.closed


def test_long_answers_to_one_connection_are_spread_over_turns(talk):
    for number in range(500):
        talk.broker.topics.ensure(f"T{number}", 1, talk.now)
    talk.feed(1, asked(30, GetAllTopicConfig()))
    talk.broker.commit(talk.instant)
    talk.run_effects()
    length = len(talk.received[1][0].body)
    assert (len(talk.received[1]) - 1) * length < ANSWERED_BYTES_A_TURN < 30 * length
    talk.turn()
    assert [reply.opaque for reply in talk.received[1]] == list(range(30))


def test_nothing_is_handled_for_a_connection_that_does_not_read(talk):
    talk.feed(1, asked(100, GetMaxOffset(topic="T", queue_id=0)))
    talk.broker.commit(talk.instant)
    talk.broker.slow(1, is_slow=True)
    talk.turn()
    assert len(talk.received[1]) == REQUESTS_A_TURN
    talk.broker.slow(1, is_slow=False)
    talk.turn()
    assert len(talk.received[1]) == 100


def progress(group):
    return UpdateConsumerOffset(consumer_group=group, topic="T", queue_id=0, commit_offset=1)


def groups_with_progress(talk):
    asked = QueryConsumerOffset(consumer_group="", topic="T", queue_id=0)
    return [
        number for number in range(100) if talk.ask(replace(asked, consumer_group=f"G{number}"), peer=9).fields["offset"] == "1"
    ]


def test_what_a_connection_asked_one_way_before_it_was_lost_is_carried_out_and_what_wants_a_reply_is_counted(talk, caplog):
    talk.send("T")
    talk.consume("T", group="Mine", peer=1)
    for number in range(100):
        talk.post(progress(f"G{number}"), oneway=number % 2 == 0)
    assert talk.broker.commit(talk.instant), "more is left"
    talk.lose(1)
    assert talk.broker.clients.member("Mine", "client-1"), "it is known as long as it asks"
    talk.turn()
    assert not talk.broker.clients.member("Mine", "client-1")
    assert talk.broker.peers.get(1) is None
    assert groups_with_progress(talk) == [number for number in range(100) if number % 2 == 0 or number < REQUESTS_A_TURN]
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "requests were not carried out: UPDATE_CONSUMER_OFFSET (its connection was gone)"


def test_what_a_lost_connection_asked_while_it_did_not_read_is_carried_out(talk):
    talk.send("T")
    talk.feed(1, asked(REQUESTS_A_TURN, GetMaxOffset(topic="T", queue_id=0)))
    talk.broker.slow(1, is_slow=True)
    for number in range(40):
        talk.post(progress(f"G{number}"), oneway=True)
    talk.broker.commit(talk.instant)
    talk.lose(1)
    talk.turn()
    assert groups_with_progress(talk) == list(range(40))


def test_one_way_requests_that_are_too_many_to_wait_are_counted_by_name(talk, caplog):
    talk.broker.backlog.waiting_max = 10
    talk.send("T")
    for number in range(100):
        talk.post(progress(f"G{number}"), oneway=True)
    talk.turn()
    assert groups_with_progress(talk) == list(range(REQUESTS_A_TURN + 10))
    talk.wait(60_000)
    assert [record.getMessage() for record in caplog.records] == [
        "requests were not carried out: UPDATE_CONSUMER_OFFSET (one-way, and too many wait)",
        "requests were not carried out: UPDATE_CONSUMER_OFFSET (one-way, and too many wait), 57 times in the last minute",
    ]


def test_what_came_together_with_a_header_that_is_none_is_carried_out_and_nothing_later(talk):
    talk.send("T")
    bad = encode(request_command(progress("G0"), opaque=1, oneway=True)).replace(b"consumerGroup", b'"}nsumerGroup')
    talk.feed(1, bad)
    for number in range(1, 60):
        talk.post(progress(f"G{number}"), oneway=True)
    talk.turn()
    assert 1 in talk.closed
    talk.post(progress("G60"), oneway=True)
    talk.lose(1)
    talk.turn()
    assert groups_with_progress(talk) == list(range(1, 60))


def test_a_mistake_with_one_request_costs_its_connection_and_no_other_request(talk, monkeypatch, caplog):
    talk.send("T")
    broker, check = talk.broker, talk.broker._handle_frame

    def mistaken(peer, *arguments, **named):
        if peer.number == 1:
            raise RuntimeError("a mistake of ours")
        check(peer, *arguments, **named)

    monkeypatch.setattr(broker, "_handle_frame", mistaken)
    monkeypatch.setattr(broker.pulls, "turn", lambda now: 1 / 0)
    talk.feed(1, asked(3, GetMaxOffset(topic="T", queue_id=0)))
    talk.feed(2, asked(3, GetMaxOffset(topic="T", queue_id=0)))
    talk.turn()
    assert talk.closed == {1: "what it asked failed"}
    assert len(talk.received[2]) == 3
    assert "a mistake of ours" in caplog.text
    assert "division by zero" in caplog.text


def test_what_no_longer_fits_when_it_is_put_back_is_refused_in_a_turn_that_comes_by_itself(talk):
    for number in range(500):
        talk.broker.topics.ensure(f"T{number}", 1, talk.now)
    talk.broker.backlog.waiting_bytes_max = 0
    talk.feed(1, asked(30, GetAllTopicConfig()))
    assert talk.broker.commit(talk.instant), "more is left"
    talk.turn()
    assert {reply.code for reply in talk.received[1]} == {0, 2}
    assert {reply.opaque for reply in talk.received[1]} == set(range(30))
