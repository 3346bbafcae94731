"""Brokers and name servers log every administrative request: who asked what of which object, and what came of it."""

from __future__ import annotations

import logging

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.logs import LINES_A_MINUTE
from halfmoon.wire.headers.access import UpdateAndCreateAclConfig
from halfmoon.wire.headers.admin import GetBrokerConfig, UpdateBrokerConfig
from halfmoon.wire.headers.topic import DeleteTopicInBroker, UpdateAndCreateTopic
from halfmoon.wire.headers.transaction import DecideTransaction, ListPendingTransactions
from halfmoon.wire.signature import Credentials
from halfmoon.wire.table import REQUESTS
from tests.broker.access.rule_files import ADMIN, USER, write
from tests.broker.half import prepare
from tests.broker.talk import Talk
from tests.nameserver.house import House


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, "halfmoon.audit")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "halfmoon.audit"]


def create(topic="orders"):
    return UpdateAndCreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6, topic_filter_type="SINGLE_TAG"
    )


@pytest.fixture
def talk(tmp_path):
    write(tmp_path)
    return Talk(tmp_path, acl_enable=True)


def test_an_administrative_request_is_logged_with_account_object_and_result(talk, lines):
    talk.ask(create(), who=ADMIN)
    talk.ask(DeleteTopicInBroker(topic="orders"), who=USER)
    talk.ask(DeleteTopicInBroker(topic="orders"), who=Credentials(ADMIN.access_key, "guessed"))
    talk.ask(DeleteTopicInBroker(topic="orders"))

    done, refused, guessed, unsigned = lines()
    assert done.startswith("UPDATE_AND_CREATE_TOPIC (17) topic=orders ")
    assert done.endswith(f" by account {ADMIN.access_key} from 10.0.0.1:5000: done")
    assert refused.startswith("DELETE_TOPIC_IN_BROKER (215) topic=orders by the unproved account")
    assert ": refused (1): " in refused
    assert "Need admin permission" in refused
    assert f"the unproved account {ADMIN.access_key}" in guessed
    assert "by no account from" in unsigned


def test_no_secret_stands_in_the_log(talk, lines, caplog):
    talk.ask(UpdateAndCreateAclConfig(access_key="account3", secret_key="hunter22", admin=True), who=ADMIN)

    (line,) = lines()
    assert "accessKey=account3 secretKey=(left out) admin=true" in line
    assert "hunter22" not in caplog.text


def test_what_only_looks_is_not_logged(talk, lines):
    talk.ask(GetBrokerConfig(), who=ADMIN)
    talk.ask(ListPendingTransactions(), who=ADMIN)

    assert lines() == []


def test_refusals_that_anybody_causes_do_not_fill_the_log(talk, lines):
    for _ in range(LINES_A_MINUTE + 50):
        talk.ask(create())
    assert len(lines()) == LINES_A_MINUTE
    talk.now += 60_000
    talk.ask(create())
    assert "suppressed 50 more" in lines()[LINES_A_MINUTE]


def test_a_name_that_no_operator_would_type_is_cut(tmp_path, lines):
    Talk(tmp_path).ask(DeleteTopicInBroker(topic="x" * 5000))

    assert len(lines()[0]) < 1000


def test_who_decided_by_hand_is_the_account_and_not_the_name_that_the_client_gives(talk):
    prepare(talk, "u1", who=ADMIN)

    assert talk.ask(DecideTransaction(id="u1", commit=False, operator="ann"), who=ADMIN).code == 0

    (log,) = (talk.root / "commitlog").iterdir()
    assert f"DECIDED_BY\x01{ADMIN.access_key} (as ann)".encode() in log.read_bytes()


def test_a_name_server_logs_what_operators_change(lines):
    house = House()
    house.ask(100, {"namespace": "n", "key": "k", "value": "v"})
    house.ask(101, {"namespace": "n", "key": "k"})
    house.ask(102, {"namespace": "n", "key": "none"})

    put, delete = lines()
    assert put.startswith("PUT_KV_CONFIG (100) namespace=n key=k value=v from ")
    assert put.endswith(": done")
    assert delete.startswith("DELETE_KV_CONFIG (102) namespace=n key=none from ")


def test_every_request_whose_handler_saves_tables_or_that_only_administrators_change_things_with_is_logged(tmp_path):
    broker: Broker = Talk(tmp_path).broker
    of_clients = {"UPDATE_CONSUMER_OFFSET"}
    saving = {
        REQUESTS[code].name
        for code, handler in broker.services.handlers()
        if hasattr(handler, "saves") and not REQUESTS[code].operated
    }
    assert saving <= of_clients
    looks = {line.name for line in REQUESTS.values() if line.admin and not line.operated}
    assert all(name.startswith(("LIST_", "GET_")) for name in looks)
    assert REQUESTS[25].header is UpdateBrokerConfig
