"""A field left out of a request: our broker answers with the code that Apache's 4.9.7 gave, or differs for a reason given."""

import pytest

from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command, encode
from tests.interop import leaving_out


@pytest.mark.mission("000-01")
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("code", leaving_out.BROKER)
def test_a_request_without_one_of_its_fields_is_answered_as_by_apache(talk, code, serialization):
    def connect():
        peer = talk.connect(len(talk.inboxes) + 1)

        def ask(question):
            fields = {name: str(value) for name, value in question.fields.items()}
            talk.feed(peer, encode(Command(question.code, 0, 7, 0, 409, None, fields, question.body, serialization)))
            talk.turn()
            return talk.answer(7, peer=peer).code

        return ask

    assert leaving_out.answers(code, connect) == leaving_out.expected(code)


def test_every_request_that_the_broker_answers_is_asked(talk):
    since_5_x = {18, 60, 61, 225, 343, 345, 351, 352, 353, 361, 370, 400, 401, 402, 907}
    relayed, properties_as_body = {223, 309, 324, 325}, {25}  # see test_relay.py and test_reply_messages.py
    accounts = {*range(50, 55)}  # see access/test_administration.py
    transactions, ours = (
        {37, 323},
        {*range(31001, 31006), 31010, 31020, *range(31030, 31038), 31040, 31041, 31050, 31051, 31060, 31061},
    )

    asked_elsewhere = since_5_x | transactions | ours | relayed | properties_as_body | accounts
    assert talk.broker.codes() == set(leaving_out.BROKER) | asked_elsewhere
