"""Who coordinates a transactional id: brokers made up here, asked by clients that see some of them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple

import pytest

from halfmoon.client.core.produce.coordinator import coordinator
from halfmoon.effects import Call, Gather
from halfmoon.errors import ConnectFailed, NetworkError, RequestNotSupported, UsageError
from halfmoon.wire.headers.batch import CoordinateBatches, CoordinateBatchesReply


class Broker:
    """What one broker knows of the id, and its rule."""

    def __init__(self, name: str, known: str = "", last: int = -1) -> None:
        self.name, self.known, self.last = name, known, last
        self.failure: Exception | None = None

    def asked(self, h: CoordinateBatches) -> CoordinateBatchesReply:
        """Answer as a broker does."""
        if self.failure is not None:
            raise self.failure
        given_away = self.known == h.instead_of and not (self.known == self.name and self.last >= 0)
        if h.coordinator and (not self.known or given_away):
            self.known = h.coordinator
        return CoordinateBatchesReply(coordinator=self.known, last=self.last)


def client(brokers: Iterable[Broker], absent: tuple[str, ...] = ()):
    """Return the operation of a client that sees these brokers."""

    def ask(address, header):
        return (yield Call(address, header, b"", 1))

    return coordinator("q", {broker.name: broker.name for broker in brokers}, absent, ask)


def steps(operation, brokers: dict[str, Broker]):
    """Run an operation; yields before each request, and returns its result."""
    try:
        effect = next(operation)
        while True:
            try:
                value = yield from _answer(effect, brokers)
            except Exception as exc:
                effect = operation.throw(exc)
            else:
                effect = operation.send(value)
    except StopIteration as stop:
        return stop.value


def _answer(effect, brokers):
    if isinstance(effect, Gather):
        found = []
        for each in effect.operations:
            try:
                found.append((yield from steps(each, brokers)))
            except Exception as exc:
                found.append(exc)
        return found
    yield
    reply = brokers[effect.address].asked(effect.request)
    return _Reply(reply)


class _Reply(NamedTuple):
    said: CoordinateBatchesReply

    def header(self, header_class):
        return self.said


def run(brokers: Iterable[Broker], absent: tuple[str, ...] = ()) -> str:
    """Run one client to its end."""
    known = {broker.name: broker for broker in brokers}
    going = steps(client(known.values(), absent), known)
    while True:
        try:
            next(going)
        except StopIteration as stop:
            return stop.value


def test_an_id_that_nobody_knows_gets_a_coordinator_that_everyone_is_told():
    brokers = [Broker("a"), Broker("b"), Broker("c")]
    one = run(brokers)
    assert {broker.known for broker in brokers} == {one}


@pytest.mark.parametrize("joining", [f"x{number}" for number in range(8)])
def test_a_broker_that_joins_is_told_and_changes_nothing(joining):
    brokers = [Broker("a")]
    run(brokers)
    brokers.append(Broker(joining))
    assert run(brokers) == "a"
    assert brokers[1].known == "a"


def test_a_broker_that_leaves_changes_nothing_unless_it_coordinates():
    brokers = [Broker("a"), Broker("b"), Broker("c")]
    one = run(brokers)
    others = [broker for broker in brokers if broker.name != one]
    staying = [broker for broker in brokers if broker is not others[0]]
    assert run(staying) == one
    with pytest.raises(NetworkError, match=f"{one} coordinates q, and no name server knows it"):
        run(others)


def test_nobody_is_chosen_while_a_broker_that_may_know_cannot_be_asked():
    silent = Broker("b")
    silent.failure = ConnectFailed("nobody is there", "b:1")
    with pytest.raises(NetworkError, match="knows who coordinates q, and b may: nobody is there"):
        run([Broker("a"), silent])
    with pytest.raises(NetworkError, match="and c may: no name server knows its master"):
        run([Broker("a")], ("c",))
    assert run([Broker("a", "a", 3), silent]) == "a"


def test_a_coordinator_that_knows_nothing_of_an_id_that_others_know_is_an_error():
    with pytest.raises(UsageError, match="a coordinates q and knows nothing of it: its store was lost"):
        run([Broker("a"), Broker("b", "a")])


def test_brokers_without_batch_transactions_are_no_coordinators():
    apache = Broker("z")
    apache.failure = RequestNotSupported(3, " request type 31037 not supported", "z:1")
    assert run([Broker("a"), apache]) == "a"
    with pytest.raises(UsageError, match="no broker of z knows batch transactions"):
        run([apache])


def test_without_any_broker_nothing_is_known_of_what_brokers_can():
    with pytest.raises(NetworkError, match="name servers know no broker now"):
        run([])


def test_of_two_that_were_chosen_at_once_the_one_that_decided_stays():
    brokers = [Broker("a", "a", 4), Broker("b", "b"), Broker("c", "b")]
    assert run(brokers) == "a"
    assert {broker.known for broker in brokers} == {"a"}
    with pytest.raises(UsageError, match="a and b have both decided"):
        run([Broker("a", "a", 4), Broker("b", "b", 2)])


def test_clients_that_see_different_brokers_at_once_never_end_with_two_that_decide():
    agreed = 0
    for seed in range(400):
        random, brokers = Random(seed), {name: Broker(name) for name in "abcd"}
        views = [["a", *random.sample("bcd", random.randint(0, 3))] for _ in range(3)]
        going = {number: steps(client(brokers[name] for name in view), brokers) for number, view in enumerate(views)}
        found: dict[int, str] = {}
        while going:
            number = random.choice(sorted(going))
            try:
                next(going[number])
            except StopIteration as stop:
                found[number] = stop.value
                if brokers[stop.value].known == stop.value:  # else a decision is refused, and the client asks again
                    brokers[stop.value].last = 0
                del going[number]
            except NetworkError:
                del going[number]
        decided = [broker.name for broker in brokers.values() if broker.last >= 0]
        assert len(decided) <= 1, (seed, views, found)
        agreed += len(set(found.values())) == 1
        assert run(brokers.values()) in (decided or "abcd")
        assert len({broker.known for broker in brokers.values()}) == 1
    assert agreed > 300
