"""Locks of ordered consumption: one owner a queue, renewed or over, given back with the connection; who waits is told."""

import pytest

from halfmoon.broker.consumers.locks import NOBODY, Locks
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import LockBatchReply, LockBatchRequest, from_json, to_json
from halfmoon.wire.headers.client import LockBatchMq, UnlockBatchMq
from tests.broker.consumers.test_membership import notices


@pytest.fixture
def talk(talk):
    talk.send("T")  # makes the topic with its four queues
    return talk


def queue(queue_id=0, topic="T", broker="broker-a"):
    return MessageQueue(topic, broker, queue_id)


def body(client_id, *queues, group="G"):
    return to_json(LockBatchRequest(client_id, group, list(queues or [queue()])))


def lock(talk, client_id, *queues, peer=1, release=None, **kw):
    header = LockBatchMq(release_on_close=release)
    reply = talk.ask(header, body(client_id, *queues, **kw), peer=peer)
    assert reply.code == 0
    return [q.queue_id for q in from_json(LockBatchReply, reply.body).lock_ok_mq_set]


def unlock(talk, client_id, *queues, peer=1, **kw):
    return talk.ask(UnlockBatchMq(), body(client_id, *queues), peer=peer, **kw)


@pytest.mark.mission("004-15")
def test_a_queue_has_one_owner_and_the_owner_may_ask_again(talk):
    assert lock(talk, "a", queue(0), queue(1)) == [0, 1]
    assert lock(talk, "b", queue(0), queue(2), peer=2) == [2]
    assert lock(talk, "a", queue(0), queue(1), queue(2)) == [0, 1]
    assert lock(talk, "b", group="other", peer=2) == [0]


def test_the_bodies_are_those_of_java(talk):
    reply = talk.ask(
        LockBatchMq(), b'{"clientId":"c@1","consumerGroup":"G","mqSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}'
    )

    assert bytes(reply.body) == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}'


def test_a_lock_that_is_not_renewed_is_over_after_a_minute(talk):
    lock(talk, "a")
    talk.wait(59_000)
    assert lock(talk, "b", peer=2) == []
    talk.wait(1_001)
    assert lock(talk, "b", peer=2) == [0]
    assert lock(talk, "a") == []


def test_a_lock_that_is_renewed_goes_on(talk):
    for _ in range(6):
        assert lock(talk, "a") == [0]
        talk.wait(20_000)
        assert lock(talk, "b", peer=2) == []


def test_only_the_owner_gives_a_queue_back(talk):
    lock(talk, "a")
    assert unlock(talk, "b", peer=2).code == 0
    assert lock(talk, "b", peer=2) == []

    assert unlock(talk, "a").code == 0
    assert lock(talk, "b", peer=2) == [0]


def test_unlocking_one_way_is_not_answered(talk):
    lock(talk, "a")
    assert unlock(talk, "a", oneway=True) is None
    assert lock(talk, "b", peer=2) == [0]


def test_locks_go_with_the_connection_when_their_owner_asked_for_that(talk):
    lock(talk, "a", queue(0), queue(1), release=True)
    talk.lose(1)
    assert lock(talk, "b", queue(0), queue(1), peer=2) == [0, 1]


def test_locks_do_not_go_with_a_connection_that_the_broker_closes_for_its_owner_may_not_hear_of_it(talk):
    lock(talk, "a", release=True)
    talk.feed(1, b"\xff" * 100)
    talk.turn()
    assert 1 in talk.closed
    talk.lose(1)
    talk.wait(29_000)
    assert lock(talk, "b", peer=2) == []
    talk.wait(1_001)
    assert lock(talk, "b", peer=2) == [0]


def test_other_locks_end_when_java_takes_them_for_lost(talk):
    lock(talk, "a")
    talk.wait(10_000)
    talk.lose(1)
    talk.wait(19_000)
    assert lock(talk, "b", peer=2) == []
    talk.wait(1_001)
    assert lock(talk, "b", peer=2) == [0]


def test_an_owner_that_is_back_on_another_connection_keeps_its_locks(talk):
    lock(talk, "a", release=True)
    assert lock(talk, "a", peer=2, release=True) == [0]
    talk.lose(1)
    assert lock(talk, "b", peer=3) == []


def test_who_was_refused_is_told_when_the_queue_is_free(talk):
    talk.consume("T", peer=1)
    talk.consume("T", peer=2)
    lock(talk, "client-1", queue(0), queue(1))
    notices(talk, 2)

    unlock(talk, "client-1", queue(1))
    assert notices(talk, 2) == []
    assert lock(talk, "client-2", queue(0), peer=2) == []
    unlock(talk, "client-1", queue(0))
    assert notices(talk, 2) == ["G"]


def test_who_was_refused_is_told_when_a_lock_runs_out(talk):
    talk.consume("T", peer=2)
    lock(talk, "gone", peer=1)
    lock(talk, "client-2", peer=2)
    talk.wait(20_000)
    lock(talk, "gone", peer=1)
    notices(talk, 2)
    talk.lose(1)

    talk.wait(29_000)
    assert notices(talk, 2) == []
    talk.wait(1_002)
    assert notices(talk, 2) == ["G"]
    assert lock(talk, "client-2", peer=2) == [0]


def test_queues_that_the_broker_does_not_have_are_not_granted(talk):
    absent = [queue(4), queue(-1), queue(topic="unknown"), queue(broker="broker-b")]
    assert lock(talk, "a", *absent, queue(1)) == [1]
    assert len(talk.broker.locks) == 1


def test_what_is_no_request_for_locks_is_refused(talk):
    for data in (b"", b"\xff{", b'{"clientId":"","consumerGroup":"G"}', b'{"clientId":"a","consumerGroup":"a b"}'):
        assert talk.ask(LockBatchMq(), data).code == 1
        assert talk.ask(UnlockBatchMq(), data).code == 1
    assert talk.ask(LockBatchMq(), b'{"clientId":"%s","consumerGroup":"G"}' % (b"a" * 1025)).code == 1


def test_there_are_no_more_locks_than_the_bound(talk):
    talk.broker.locks.locks_max = 2
    assert lock(talk, "a", queue(0), queue(1), queue(2)) == [0, 1]
    assert lock(talk, "a", queue(0), queue(1)) == [0, 1]


def test_forgotten_locks_cost_no_memory(talk):
    lock(talk, "a", queue(0), queue(1))
    talk.wait(75_000)
    assert len(talk.broker.locks) == 0


def test_locks_of_clients_that_notice_a_lost_connection_are_not_kept_over_a_restart(talk):
    lock(talk, "a", release=True)
    talk.restart()
    assert lock(talk, "b", peer=2) == [0]


def test_after_a_restart_no_other_member_gets_the_queues_of_a_client_that_may_go_on_consuming(talk):
    lock(talk, "a", queue(0), queue(1))
    lock(talk, "c", queue(2), peer=3)
    unlock(talk, "a", queue(1))
    talk.restart()
    talk.wait(29_000)
    assert lock(talk, "b", queue(0), queue(1), queue(2), peer=2) == [1]
    assert lock(talk, "c", queue(2), peer=4) == [2]
    talk.wait(1_001)
    assert lock(talk, "b", queue(0), queue(1), queue(2), peer=2) == [0, 1]
    assert talk.broker.locks.owner("G", "T", 2, talk.instant.steady) == "c"


def test_a_member_that_was_refused_after_a_restart_is_told_when_the_old_lock_ends(talk):
    lock(talk, "a")
    talk.restart()
    talk.consume("T", peer=2)
    assert lock(talk, "client-2", peer=2) == []
    notices(talk, 2)
    talk.wait(29_000)
    assert notices(talk, 2) == []
    talk.wait(1_002)
    assert notices(talk, 2) == ["G"]
    assert lock(talk, "client-2", peer=2) == [0]


def test_saved_locks_are_no_more_than_the_bound(talk):
    lock(talk, "a", queue(0), queue(1), queue(2))
    talk.broker.stop(talk.instant)
    talk.run_effects()
    talk.broker.close(talk.instant)
    before, Locks.locks_max = Locks.locks_max, 2
    try:
        talk.open()
    finally:
        Locks.locks_max = before
    assert len(talk.broker.locks) == 2
    assert len(talk.broker.locks._of(NOBODY)) == 2


def test_the_owner_of_a_queue_can_be_asked(talk):
    lock(talk, "a")
    assert talk.broker.locks.owner("G", "T", 0, talk.instant.steady) == "a"
    assert talk.broker.locks.owner("G", "T", 0, talk.now + 60_001) is None
    assert talk.broker.locks.owner("G", "T", 1, talk.instant.steady) is None


def test_taking_asking_and_giving_back_without_end_fills_no_memory(talk):
    locks = talk.broker.locks
    for _ in range(1_500):
        lock(talk, "a", queue(0), queue(1))
        lock(talk, "b", queue(0), queue(1), peer=2)
        unlock(talk, "a", queue(0), queue(1))

    assert len(locks) == 0
    assert len(locks._ends) <= 1_010


def test_a_queue_that_is_waited_for_is_freed_after_the_sweep_too(talk):
    talk.consume("T", peer=2)
    for _ in range(1_100):
        lock(talk, "a", queue(0))
        lock(talk, "b", queue(0), peer=2)
        unlock(talk, "a", queue(0))
    lock(talk, "a", queue(1))
    lock(talk, "client-2", queue(1), peer=2)
    notices(talk, 2)

    talk.wait(60_002)
    assert notices(talk, 2) == ["G"]
