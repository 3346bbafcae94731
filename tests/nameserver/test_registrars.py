"""Tests of who may change what a name server tells: a walk over all its requests, secrets, machines, and bounded guesses."""

from __future__ import annotations

import pytest

from halfmoon.columns.signing import Signer
from halfmoon.nameserver.registrars import GUESSES_A_MINUTE
from halfmoon.wire.table import REQUESTS
from tests.nameserver.house import House, register_body, register_fields

SECRET = "the secret of brokers"
READS = frozenset((101, 105, 106, 206, 219, 224, 304, 311, 312, 313, 319, 901))
"""Requests of a name server that change nothing. Whatever is not among them wants the right to register."""
LACKING = "needs the right to register"


def lacks(house, code, fields=None, body=b"", who=None, names=()):
    """Whether a request is refused for lack of the right, signed by ``who`` on a connection with a certificate of these names."""
    fields, peer = fields or {}, house.connect()
    house.core.certified(peer, names)
    reply = house.ask(code, {**fields, **(Signer(*who, "").sign(fields, body) if who else {})}, body, peer=peer)
    return reply.code == 1 and LACKING in (reply.remark or "")


def register(house, who=None, names=()):
    return lacks(house, 103, register_fields(), register_body(), who, names)


LIMITS = [{"register_secret": SECRET}, {"register_from": "10.0.0.0/8"}, {"register_certificates": "broker-a"}]


@pytest.mark.parametrize("settings", LIMITS, ids=str)
def test_every_request_that_changes_what_is_told_wants_the_right_and_no_other_does(settings):
    house = House(**settings)
    codes = house.core.codes()

    assert {code for code in codes if lacks(house, code)} == codes - READS
    assert {code for code in codes if REQUESTS[code].needs.registers} == codes - READS


def test_a_broker_registers_with_the_shared_secret_and_nobody_else_takes_its_place():
    house = House(register_secret=SECRET)

    assert register(house)
    assert register(house, ("halfmoon-broker", "another secret of them"))
    assert house.route() == 17
    assert not register(house, ("halfmoon-broker", SECRET))
    assert house.route()["brokerDatas"][0]["brokerName"] == "broker-a"


def test_brokers_register_with_the_previous_secret_too_while_they_get_the_new_one():
    house = House(register_secret=SECRET, register_secret_previous="the secret before it")

    assert not register(house, ("halfmoon-broker", SECRET))
    assert not register(house, ("halfmoon-broker", "the secret before it"))
    assert register(house, ("halfmoon-broker", "another secret of them"))


def test_an_administrators_secrets_count_as_they_are_at_the_time_of_the_request():
    house, until_ms = House(register_secret=SECRET), 0
    house.core.registrars.administrator = lambda _key, now: (b"the old secret",) if now < until_ms else ()
    operator = ("operator", "the old secret")

    assert lacks(house, 216, {"topic": "t"}, who=operator)
    until_ms = house.now + 1
    assert not lacks(house, 216, {"topic": "t"}, who=operator)


@pytest.mark.parametrize(("networks", "lacking"), [("192.0.2.0/24", False), ("10.0.0.1, 192.0.2.1", False), ("10.0.0.0/8", True)])
def test_machines_that_are_listed_register_without_a_secret(networks, lacking):
    assert register(House(register_from=networks)) is lacking


@pytest.mark.parametrize(("names", "lacking"), [
    (("broker-a",), False), (("host", "spiffe://brokers/b"), False), (("broker-A",), True), (("broker",), True), ((), True),
])  # fmt: skip
def test_who_shows_a_certificate_that_is_listed_registers_without_a_secret(names, lacking, caplog):
    house = House(register_certificates=" broker-a, spiffe://brokers/b ,")

    assert register(house, names=names) is lacking
    assert (f"certificate={names!r}" in caplog.text) is lacking


def test_an_empty_list_of_certificates_lets_nobody_in_by_an_empty_name():
    assert register(House(register_secret=SECRET), names=("",))


def test_without_a_list_a_secret_and_accounts_everybody_registers_as_at_apaches():
    assert not register(House())


def test_beside_brokers_with_accounts_their_administrators_may():
    house = House(register_secret=SECRET)
    house.core.registrars.administrator = lambda key, _now: (b"the secret of operators",) if key == "operator" else ()

    house.core.registrars.is_administrator = {("operator-cert",): True, ("reader",): False}.get

    assert not lacks(house, 216, {"topic": "t"}, who=("operator", "the secret of operators"))
    assert not lacks(house, 216, {"topic": "t"}, names=("operator-cert",))
    assert lacks(house, 216, {"topic": "t"}, names=("reader",))
    assert lacks(house, 216, {"topic": "t"}, who=("operator", "a wrong secret"))
    assert lacks(house, 216, {"topic": "t"}, who=("stranger", "the secret of operators"))


def test_a_secret_can_be_guessed_only_so_often_in_a_minute():
    house = House(register_secret=SECRET)
    for number in range(GUESSES_A_MINUTE):
        assert register(house, ("guesser", f"the guess number {number}"))

    assert register(house, ("halfmoon-broker", SECRET))
    house.wait(60_000)
    assert not register(house, ("halfmoon-broker", SECRET))


def test_what_is_remembered_of_addresses_is_bounded():
    house = House(register_secret=SECRET)
    house.core.registrars.hosts_max = 0
    for number in range(GUESSES_A_MINUTE):
        assert register(house, ("guesser", f"the guess number {number}"))

    assert not register(house, ("halfmoon-broker", SECRET)), "nothing is remembered of this address"


def test_refusals_are_logged_with_the_name_of_the_request_and_who_sent_it(caplog):
    register(House(register_secret=SECRET))

    assert "refused: request=REGISTER_BROKER from=192.0.2.1:10001" in caplog.text
    assert SECRET not in caplog.text
