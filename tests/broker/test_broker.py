"""The broker core: its table of handlers, its due time, and requests that nobody handles."""

from halfmoon.wire.command import Command, encode, request_command
from halfmoon.wire.headers.offset import GetMaxOffset
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
    parts = [broker.stats.due(), broker.transactions.due(), broker.delays.due(), broker.batches.due(), broker.store.due()]
    assert broker.due() <= min(due for due in parts if due is not None)


def test_a_stop_saves_the_tables_and_says_what_could_not_be_saved(talk):
    talk.broker.topics.ensure("T", 1, talk.now)

    def fail(path, data, **kw):
        raise OSError(28, "No space left on device")

    talk.disk.save = fail
    talk.broker.stop(talk.now)
    talk.run_effects()
    assert "config/topics.json: [Errno 28] No space left on device" in talk.broker.lost_at_stop()


def asked(count, header):
    return b"".join(encode(request_command(header, opaque=number)) for number in range(count))


def test_a_connection_that_asks_by_the_thousand_gets_a_share_of_each_turn_and_refusals_beyond_the_bound(talk):
    count = REQUESTS_A_TURN + WAITING_MAX + 100
    talk.feed(1, asked(count, GetMaxOffset(topic="T", queue_id=0)))
    talk.feed(2, asked(1, GetMaxOffset(topic="T", queue_id=0)))
    assert talk.broker.commit(talk.now), "more is left"
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
    # no queue is open to the reader any more: these go one by one
    for number in range(200):
        talk.post(send_header("T", queue_id=0), b"%d" % number)
    assert talk.broker.commit(talk.now), "more is left"
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
    talk.broker.commit(talk.now)
    talk.run_effects()
    length = len(talk.received[1][0].body)
    assert (len(talk.received[1]) - 1) * length < ANSWERED_BYTES_A_TURN < 30 * length
    talk.turn()
    assert [reply.opaque for reply in talk.received[1]] == list(range(30))


def test_nothing_is_handled_for_a_connection_that_does_not_read(talk):
    talk.feed(1, asked(100, GetMaxOffset(topic="T", queue_id=0)))
    talk.broker.commit(talk.now)
    talk.broker.slow(1, is_slow=True)
    talk.turn()
    assert len(talk.received[1]) == REQUESTS_A_TURN
    talk.broker.slow(1, is_slow=False)
    talk.turn()
    assert len(talk.received[1]) == 100
