"""The broker core: its table of handlers, its due time, and requests that nobody handles."""

from halfmoon.wire.command import Command, encode


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
