"""A field left out of a request: our name server answers with the code that Apache's 4.9.7 gave, or differs for a reason given."""

import pytest

from halfmoon.wire.codes import JSON, ROCKETMQ
from tests.interop import leaving_out
from tests.nameserver.house import House


@pytest.mark.mission("000-01")
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("code", leaving_out.NAME_SERVER)
def test_a_request_without_one_of_its_fields_is_answered_as_by_apache(code, serialization):
    house = House()

    def connect():
        peer = house.connect()

        def ask(question):
            fields = {name: str(value) for name, value in question.fields.items()}
            return house.ask(question.code, fields, question.body, peer=peer, serialization=serialization).code

        return ask

    assert leaving_out.answers(code, connect) == leaving_out.expected(code)


def test_every_request_that_the_name_server_answers_is_asked():
    since_5_x, properties_as_body = {217, 901, 904}, {318}

    assert House().core.codes() == set(leaving_out.NAME_SERVER) | since_5_x | properties_as_body
