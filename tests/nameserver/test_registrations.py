"""Large registrations: read beside the event loop, taken in by chunks, and only while they are still the broker's last word."""

from __future__ import annotations

import zlib

import pytest

from halfmoon.nameserver import registrations
from halfmoon.wire.command import Command, encode
from tests.nameserver.house import House, register_body, register_fields

TOPICS = [f"topic-{k}" for k in range(12_000)]


@pytest.fixture(scope="module")
def large() -> bytes:
    body = register_body(topics=TOPICS)
    assert len(body) > registrations.INLINE_BYTES_MAX
    return body


def send(house: House, peer: int, body: bytes, **fields: str) -> None:
    """Send a registration and let a turn pass, in which nothing is done beside the loop."""
    house.core.feed(peer, encode(Command(code=103, opaque=5, fields=register_fields(**fields), body=body, version=409)))
    house.core.commit(house.instant)
    house.carry_out(work=False)


def step(house: House) -> None:
    house.work()
    house.carry_out(work=False)


def finish(house: House) -> None:
    while house.works:
        step(house)


def codes(house: House, peer: int) -> list[int]:
    return [reply.code for reply in house.taken(peer)]


def test_others_have_their_turn_between_the_chunks_and_the_answer_comes_with_the_last(large: bytes) -> None:
    house = House()
    peer = house.connect()
    send(house, peer, large)

    seen = []
    while house.works:
        other = house.connect()
        house.core.feed(other, encode(Command(code=105, fields={"topic": TOPICS[-1]})))
        house.core.commit(house.instant)
        step(house)
        seen.append(codes(house, other))

    assert seen == [[17], [17], [17]]  # read with its first chunk, the second, the third
    assert codes(house, peer) == [0]
    assert len(house.core.routes.topics()) == len(TOPICS)


def test_a_deflated_body_is_read_beside_the_loop_however_small(large: bytes) -> None:
    house = House()
    peer = house.connect()
    send(house, peer, zlib.compress(b"no registration"))
    assert (len(house.works), codes(house, peer)) == (1, [])

    finish(house)
    assert codes(house, peer) == [1]


def test_a_large_registration_of_a_known_version_takes_no_topics(large: bytes) -> None:
    house = House()
    peer = house.connect()
    send(house, peer, large)
    finish(house)
    assert house.core.routes.set_permission("broker-a", writable=False) == len(TOPICS)

    send(house, peer, large)
    step(house)

    assert (house.works, codes(house, peer)) == ([], [0, 0])
    assert house.route(TOPICS[-1])["queueDatas"][0]["perm"] == 4


def test_the_newest_registration_of_a_broker_counts(large: bytes) -> None:
    house = House()
    peer = house.connect()
    send(house, peer, large)
    send(house, peer, register_body(topics=("new",), counter=2))
    assert codes(house, peer) == [0]  # small: taken in at once

    finish(house)

    assert codes(house, peer) == [1]
    assert house.core.routes.topics() == ["new"]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_broker_that_is_gone_before_all_was_taken_in_leaves_nothing(large: bytes, steps: int) -> None:
    house = House()
    peer = house.connect()
    send(house, peer, large)
    for _ in range(steps):
        step(house)

    house.core.lost(peer, house.instant)
    finish(house)

    assert (house.core.routes.topics(), house.core.routes.groups()) == ([], [])


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_broker_that_leaves_before_all_was_taken_in_leaves_nothing(large: bytes, steps: int) -> None:
    house = House()
    peer = house.connect()
    send(house, peer, large)
    for _ in range(steps):
        step(house)

    house.core.feed(peer, encode(Command(code=104, opaque=6, fields=register_fields())))
    house.core.commit(house.instant)
    finish(house)

    assert sorted(codes(house, peer)) == [0, 1]
    assert (house.core.routes.topics(), house.core.routes.groups()) == ([], [])


def test_one_that_does_not_read_is_refused_and_the_next_is_read(large: bytes) -> None:
    house = House()
    peers = [house.connect() for _ in range(3)]
    send(house, peers[0], large[:-1])
    send(house, peers[1], large, name="broker-b")
    send(house, peers[2], b"[" * 200_000, name="broker-c")

    assert len(house.works) == 1  # one at a time
    finish(house)

    assert [codes(house, peer) for peer in peers] == [[1], [0], [1]]
    assert [group.name for group in house.core.routes.groups()] == ["broker-b"]


def test_what_waits_to_be_read_is_bounded(large: bytes) -> None:
    house = House()
    house.core.handlers.large_registrations.waiting_bytes_max = 2 * len(large)
    peers = [house.connect() for _ in range(3)]
    for peer, name in zip(peers, ("broker-a", "broker-b", "broker-c")):
        send(house, peer, large, name=name)
    assert codes(house, peers[2]) == [2]

    finish(house)
    send(house, peers[2], large, name="broker-c")
    finish(house)

    assert [codes(house, peer) for peer in peers] == [[0], [0], [0]]


def test_raw_words_are_read_in_small_registrations_alone(large: bytes) -> None:
    raw = large.replace(b'"order"', b"order")
    house = House()
    peer = house.connect()
    send(house, peer, raw[:-2].replace(b'"topicConfigTable"', b"x", 1) + b" " * 1024**2 + raw[-2:])
    finish(house)
    assert codes(house, peer) == [1]

    small = register_body(topics=("t",)).replace(b'"order"', b"order")
    send(house, peer, small)
    assert codes(house, peer) == [0]
