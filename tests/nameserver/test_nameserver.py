"""The whole core, spoken to in frames, in virtual time: liveness, durable values, bad input."""

from __future__ import annotations

import json
import zlib
from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import StoreError, StoreLocked
from halfmoon.nameserver.routes import METRICS, samples
from halfmoon.wire.codes import ROCKETMQ
from halfmoon.wire.command import Command, encode
from halfmoon.wire.peer import OVERLOAD, REQUESTS_A_TURN, WAITING_MAX, Peer
from tests.nameserver.house import House, MemoryDisk, register_body, register_fields

# ---------------------------------------------------------------- liveness


def test_a_silent_broker_is_forgotten_at_the_first_look_after_120_seconds_and_its_connection_closed() -> None:
    house = House()
    peer = house.connect()
    house.register(peer=peer)
    house.wait(119_000)
    assert house.route() != 17
    house.wait(12_000)
    assert house.route() == 17
    assert peer in house.closed


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_makes_no_broker_and_no_connection_silent_and_keeps_none_longer(by_ms: int) -> None:
    house = House()
    peer = house.connect()
    house.register(peer=peer)
    idle = house.connect()
    house.wait(60_000)
    house.set_clock(by_ms)
    house.wait(59_000)
    assert house.route() != 17
    assert house.closed == {}
    house.wait(40_000)
    assert house.route() == 17
    assert {peer, idle} <= house.closed.keys()


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_neither_ends_nor_draws_out_the_wait_for_brokers_after_a_start(by_ms: int) -> None:
    house = House(need_wait_for_service=True, wait_for_service_seconds=45)
    house.register()
    house.wait(20_000)
    house.set_clock(by_ms)
    house.wait(20_000)
    before = house.route()
    house.wait(6_000)
    assert before != house.route()


def test_a_broker_names_its_own_time_to_live() -> None:
    house = House(scan_ms=1000)
    peer = house.connect()
    house.register(peer=peer, fields={"heartbeatTimeoutMillis": "3000"})
    house.wait(6_000)
    assert house.route() == 17


def test_a_heartbeat_keeps_a_broker() -> None:
    house = House(scan_ms=1000)
    peer = house.connect()
    house.register(peer=peer, fields={"heartbeatTimeoutMillis": "3000"})
    who = register_fields()
    for _ in range(5):
        house.wait(2_000)
        assert house.ask(904, {name: who[name] for name in ("brokerName", "brokerAddr", "clusterName")}, peer=peer).code == 0
    assert house.route() != 17


def test_the_address_of_a_broker_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    house = House()
    peer = house.connect()
    house.register(peer=peer, fields={"brokerAddr": "10.0.0.9:10911\r\n2026-01-01 ERROR forged\x1b[2J\x00"})
    house.core.lost(peer, house.instant)
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.isprintable() for line in lines)
    assert any(r"10911\r\n2026-01-01 ERROR forged\x1b[2J\x00" in line for line in lines)


def test_a_lost_connection_removes_its_brokers_at_once() -> None:
    house = House()
    peer = house.connect()
    house.register(peer=peer)
    house.register("broker-b")
    house.core.lost(peer, house.instant)
    assert [each["brokerName"] for each in house.route()["brokerDatas"]] == ["broker-b"]


def test_an_idle_connection_is_closed_and_a_registering_one_is_not() -> None:
    house = House()
    idle, broker = house.connect(), house.connect()
    for _ in range(6):
        house.register(peer=broker)
        house.wait(30_000)
    assert idle in house.closed
    assert broker not in house.closed


def test_unregistering_removes_the_broker() -> None:
    house = House()
    house.register()
    who = register_fields()
    fields = {name: who[name] for name in ("brokerName", "brokerAddr", "clusterName", "brokerId")}
    assert house.ask(104, fields).code == 0
    assert house.route() == 17


# ---------------------------------------------------------------- durable values


def test_a_value_is_answered_only_once_it_is_durable() -> None:
    house = House(disk := MemoryDisk())
    peer = house.connect()
    house.core.feed(peer, encode(Command(code=100, opaque=1, fields={"namespace": "n", "key": "k", "value": "v"})))
    house.core.commit(house.instant)
    house.carry_out(work=False)
    assert house.taken(peer) == []
    house.work()
    house.carry_out()
    assert [reply.code for reply in house.taken(peer)] == [0]
    assert json.loads(disk.files["kvConfig.json"]) == {"configTable": {"n": {"k": "v"}}}


def test_changes_during_a_save_share_the_next_one() -> None:
    house = House(MemoryDisk())
    peer = house.connect()
    for key in "abcd":
        house.core.feed(peer, encode(Command(code=100, fields={"namespace": "n", "key": key, "value": "v"})))
        house.core.commit(house.instant)
        house.carry_out(work=False)
    assert len(house.works) == 1
    house.work()
    house.carry_out(work=False)
    assert (len(house.taken(peer)), len(house.works)) == (1, 1)
    house.work()
    house.carry_out()
    assert len(house.taken(peer)) == 3


def reborn(disk: MemoryDisk) -> House:
    disk.release()  # as when the process before was killed
    return House(disk)


def test_values_outlive_a_restart_and_a_damaged_file_is_read_from_the_one_before() -> None:
    house = House(disk := MemoryDisk())
    for value in ("1", "2"):
        house.ask(100, {"namespace": "n", "key": "k", "value": value})
    assert reborn(disk).ask(101, {"namespace": "n", "key": "k"}).fields == {"value": "2"}
    disk.files["kvConfig.json"] = b"{"
    assert reborn(disk).ask(101, {"namespace": "n", "key": "k"}).fields == {"value": "1"}
    disk.files["kvConfig.json.bak"] = b"{"
    with pytest.raises(StoreError, match=r"kvConfig\.json: .*kvConfig\.json\.bak: "):
        reborn(disk)
    assert not disk.is_locked


def test_a_directory_belongs_to_one_name_server_until_its_last_save_is_done() -> None:
    house = House(disk := MemoryDisk())
    with pytest.raises(StoreLocked):
        House(disk)
    peer = house.connect()
    house.core.feed(peer, encode(Command(code=100, fields={"namespace": "n", "key": "k", "value": "v"})))
    house.core.commit(house.instant)
    house.carry_out(work=False)
    house.core.stop(house.instant)
    house.carry_out(work=False)
    assert disk.is_locked
    house.work()
    house.carry_out()
    assert not disk.is_locked


def test_a_failed_save_is_told_to_who_asked() -> None:
    house = House(disk := MemoryDisk())
    disk.fails = True
    reply = house.ask(100, {"namespace": "n", "key": "k", "value": "v"})
    assert reply.code == 1
    assert "not saved" in (reply.remark or "")
    disk.fails = False
    assert house.ask(100, {"namespace": "n", "key": "k2", "value": "v"}).code == 0
    assert json.loads(disk.files["kvConfig.json"]) == {"configTable": {"n": {"k": "v", "k2": "v"}}}


# ---------------------------------------------------------------- bad input


def test_an_unknown_request_is_answered_3() -> None:
    reply = House().ask(9999)
    assert (reply.code, reply.remark) == (3, " request type 9999 not supported")


@pytest.mark.parametrize("code", [103, 104, 217, 901, 904])
def test_a_missing_field_is_answered_1_with_its_name(code: int) -> None:
    reply = House().ask(code)
    assert reply.code == 1
    assert "missing required field" in (reply.remark or "")


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b'"x"', b"\xff\xfe", b'{"topicConfigSerializeWrapper":3}', b"[" * 200_000, b'{"a":' * 100_000,
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"readQueueNums":99999999999}}}}',
        zlib.compress(b"x" * 100), zlib.compress(bytes(64 * 1024 * 1024)), zlib.compress(pack(">i", 2**31 - 1)), b"\x78\x9cjunk",
    ],
    ids=lambda body: f"{len(body)}-{body[:8].hex()}",
)  # fmt: skip
def test_a_body_that_is_no_registration_is_refused_and_the_connection_goes_on(body: bytes) -> None:
    house = House()
    peer = house.connect()
    assert house.ask(103, register_fields(), body, peer=peer).code == 1
    assert house.ask(106, peer=peer).code == 0
    assert bytes(house.ask(106).body) == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
    assert house.closed == {}


def test_a_oneway_request_works_and_is_never_answered() -> None:
    house = House()
    peer = house.connect()
    house.send(peer, encode(Command(code=103, flag=2, fields=register_fields(), body=register_body())))
    house.send(peer, encode(Command(code=9999, flag=2)), encode(Command(code=105, flag=2)))
    assert house.taken(peer) == []
    assert house.route() != 17


def test_a_response_that_nobody_asked_for_is_ignored() -> None:
    house = House()
    peer = house.connect()
    house.send(peer, encode(Command(code=0, flag=1)))
    assert (house.taken(peer), house.closed) == ([], {})


@pytest.mark.parametrize(
    "data",
    [
        pack(">ii", 2**31 - 1, 0),
        pack(">ii", -1, 0),
        pack(">ii", 4, 100),
        pack(">iI", 6, 2) + b"no",
        pack(">iI", 6, 9 << 24 | 2) + b"{}",
    ],
)
def test_bytes_that_are_no_frame_close_their_connection_and_no_other(data: bytes) -> None:
    house = House()
    bad, good = house.connect(), house.connect()
    house.send(bad, encode(Command(code=106)) + data)
    assert len(house.taken(bad)) == 1
    assert list(house.closed) == [bad]
    assert house.ask(106, peer=good).code == 0


@given(st.lists(st.integers(0, 4000), max_size=8))
def test_requests_cut_at_any_bytes_are_answered_the_same(cuts: list[int]) -> None:
    house = House()
    peer = house.connect()
    stream = encode(Command(code=103, opaque=1, fields=register_fields(), body=register_body()))
    stream += encode(Command(code=105, opaque=2, fields={"topic": "t"}, serialization=ROCKETMQ)) + encode(
        Command(code=9999, opaque=3)
    )
    places = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    for begin, end in pairwise(places):
        house.send(peer, stream[begin:end])
    assert [(reply.opaque, reply.code) for reply in house.taken(peer)] == [(1, 0), (2, 0), (3, 3)]


@given(st.binary(max_size=200))
def test_any_bytes_leave_the_name_server_in_order(data: bytes) -> None:
    house = House()
    peer = house.connect()
    house.send(peer, pack(">iI", 4 + len(data), len(data)) + data)
    house.send(peer, data)
    assert house.ask(106).code == 0


# ---------------------------------------------------------------- overload


def test_a_connection_that_asks_by_the_thousand_gets_a_share_of_each_turn_and_refusals_beyond_the_bound() -> None:
    house = House()
    loud, quiet = house.connect(), house.connect()
    count = REQUESTS_A_TURN + WAITING_MAX + 5
    house.core.feed(loud, b"".join(encode(Command(code=105, opaque=number, fields={"topic": "T"})) for number in range(count)))
    house.core.feed(quiet, encode(Command(code=105, opaque=1, fields={"topic": "T"})))
    assert house.core.commit(house.instant), "more is left"
    house.carry_out()
    assert len(house.taken(quiet)) == 1
    replies = house.taken(loud)
    assert [(reply.code, reply.remark) for reply in replies[REQUESTS_A_TURN:]] == [(2, OVERLOAD)] * 5

    house.core.slow(loud, is_slow=True)
    assert not house.core.commit(house.instant)
    house.core.slow(loud, is_slow=False)
    while house.core.commit(house.instant):
        house.carry_out()
    house.carry_out()
    assert len(house.taken(loud)) == WAITING_MAX


def puts(count: int) -> bytes:
    """So many one-way requests, each for a key of its own."""
    fields = [{"namespace": "n", "key": f"k{number}", "value": "v"} for number in range(count)]
    return b"".join(encode(Command(code=100, opaque=number, flag=2, fields=fields[number])) for number in range(count))


def test_what_a_connection_asked_one_way_before_it_was_lost_is_carried_out_and_nothing_is_answered() -> None:
    house = House()
    peer = house.connect()
    house.core.feed(peer, puts(100) + encode(Command(code=105, opaque=1, fields={"topic": "T"})))
    assert house.core.commit(house.instant), "more is left"
    house.carry_out()
    house.core.lost(peer, house.instant)
    while house.core.commit(house.instant):
        house.carry_out()
    assert [house.core.values.get("n", f"k{number}") for number in range(100)] == ["v"] * 100
    assert house.taken(peer) == []
    assert not house.core.unanswered(peer)


def test_a_mistake_with_one_request_costs_its_connection_and_no_other_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    house = House()
    mistaken, other = house.connect(), house.connect()
    refuse = house.core._refuse

    def failing(peer: Peer, command: Command, exc: Exception) -> None:
        if peer.number == mistaken:
            raise RuntimeError("a mistake of ours")
        refuse(peer, command, exc)

    monkeypatch.setattr(house.core, "_refuse", failing)
    for peer in (mistaken, other):
        house.core.feed(peer, encode(Command(code=105, opaque=1, fields={"topic": "T"})))
    house.core.commit(house.instant)
    house.carry_out()
    assert house.closed == {mistaken: "what it asked failed"}
    assert [reply.code for reply in house.taken(other)] == [17]
    assert "a mistake of ours" in caplog.text


def metrics(house: House) -> dict[str, object]:
    return {metric.name: value for metric, _, value in filter(None, samples(house.core.routes))}


def test_brokers_and_topics_are_counted_and_refusals_by_code() -> None:
    house = House()
    assert metrics(house)["halfmoon_nameserver_brokers"] == 0
    house.register()
    assert house.route("nowhere") == 17

    assert metrics(house).keys() == {metric.name for metric in METRICS}
    assert metrics(house)["halfmoon_nameserver_brokers"] == 1
    assert metrics(house)["halfmoon_nameserver_topics"] == len(house.core.routes.topics()) > 0
    assert house.core.peers.refusals == {17: 1}
