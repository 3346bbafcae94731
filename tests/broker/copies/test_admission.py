"""With access control a slave of ours signs its greeting as an administrator; nobody else is sent a byte of the log."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from halfmoon.broker.access.access import COPIES, GUESSES_A_MINUTE
from halfmoon.broker.copies.admission import CANNOT_SIGN, SIGN_MS, UNLISTED, UNSIGNED_MAX
from halfmoon.broker.copies.feeding import SLAVES_MAX
from halfmoon.wire.copying import (
    ACCESS_KEY_BYTES_MAX,
    CHALLENGE,
    REFUSAL,
    REPORTS,
    SIGNATURE,
    SIGNED,
    WHOLE_LOG,
    FrameReader,
    Hello,
    Signature,
    encode_signature,
    sign,
)
from halfmoon.wire.signature import Credentials
from tests.broker.access.rule_files import ADMIN, RULES, USER, write
from tests.broker.copies.slave import MEMBER, CopyingSlave, OurSlave, Port, hello, log_of, master_lease
from tests.broker.copies.test_feeding import FILE_BYTES
from tests.broker.talk import Talk

HELLO = Hello(MEMBER, 1, WHOLE_LOG)
LIMITED = RULES + "  topicPerms:\n  - topicC=SUB\n"
REMOTE = "10.0.0.9:4000"


def started(root: Path, rules: str = RULES, **settings: Any) -> Talk:
    """Return a master with access control and some messages."""
    write(root, rules)
    talk = Talk(root, acl_enable=True, **settings)
    for _ in range(3):
        assert talk.send("T", bytes(1000), who=ADMIN).code == 0
    return talk


@pytest.fixture
def talk(tmp_path: Path) -> Talk:
    return started(tmp_path)


@pytest.fixture
def port(talk: Talk) -> Port:
    return Port(talk)


def greet(port: Port, peer: int = 1, remote: str = REMOTE) -> bytes:
    """Connect a slave of ours that greets; return its challenge."""
    port.say(port.connect(peer, remote), hello())
    [(kind, number, challenge)] = FrameReader().read(port.take(peer))
    assert (kind, number) == (CHALLENGE, 0)
    return challenge


def signed(challenge: bytes, who: Credentials = ADMIN, greeting: Hello = HELLO) -> bytes:
    """Return the signature of a slave."""
    return encode_signature(sign(who.secret_key.encode(), challenge, greeting, who.access_key))


def told(port: Port, peer: int = 1) -> str:
    """Return why a slave was refused, as the master told it."""
    [(kind, _, text)] = FrameReader().read(port.take(peer))
    assert kind == REFUSAL
    return text.decode()


def read_again(talk: Talk, root: Path, rules: str) -> None:
    """Let the master read other rules."""
    write(root, rules)
    talk.wait(5_001)


def test_a_slave_that_signs_as_an_administrator_copies_everything(talk: Talk, port: Port) -> None:
    port.say(1, signed(greet(port)))
    slave = OurSlave(FILE_BYTES)
    slave.receive(port.take(1))
    assert bytes(slave.log) == log_of(talk)
    port.say(1, slave.report())
    assert port.core.slaves[1].copied == talk.broker.store.end_offset
    assert not port.closed


def test_a_signature_may_come_in_pieces_and_between_reports(talk: Talk, port: Port) -> None:
    data = REPORTS.pack(0, 0, 0) + signed(greet(port)) + REPORTS.pack(0, 0, 0)
    for at in range(len(data) - 1):
        port.say(1, data[at : at + 1])
    assert 1 in port.core.slaves
    port.say(1, data[-1:])
    slave = OurSlave(FILE_BYTES)
    slave.receive(port.take(1))
    assert bytes(slave.log) == log_of(talk)


def test_reports_that_come_with_the_signature_count(talk: Talk, port: Port) -> None:
    end = talk.broker.store.end_offset
    port.say(port.connect(1), hello(end))
    [(_, _, challenge)] = FrameReader().read(port.take(1))
    assert port.core.slaves == {}
    port.say(1, signed(challenge, greeting=HELLO._replace(offset=end)) + REPORTS.pack(end, 0, 0))
    assert port.core.slaves[1].reported == end


def test_a_slave_gets_nothing_before_it_has_signed_and_counts_as_none(talk: Talk, port: Port) -> None:
    greet(port)
    port.say(1, REPORTS.pack(0, 0, 0) * 3)
    talk.send("T", who=ADMIN)
    port.wait(SIGN_MS - 1)
    assert not port.take(1)
    assert not port.core.statuses(talk.instant.steady)
    assert not port.core.slaves


def test_a_slave_that_does_not_sign_in_time_is_closed(talk: Talk, port: Port) -> None:
    challenge = greet(port)
    silent = port.connect(2)
    port.wait(SIGN_MS - 1)
    port.say(1, REPORTS.pack(0, 0, 0))
    assert not port.closed
    port.wait(1)
    assert port.closed == dict.fromkeys((1, silent), f"it did not sign within {SIGN_MS // 1000} s")
    port.say(1, signed(challenge))
    assert not port.core.slaves


def test_a_recorded_greeting_is_worth_nothing(talk: Talk, port: Port) -> None:
    recorded = signed(greet(port))
    port.say(1, recorded)
    assert 1 in port.core.slaves
    for peer, data in ((2, hello() + recorded), (3, hello()), (4, hello() + b"".join(REPORTS.pack(0, 0, 0) for _ in range(3)))):
        port.connect(peer)
        port.say(peer, data)
        if peer not in port.closed:
            port.say(peer, recorded)
        assert port.closed[peer] == "the signature of accessKey=rocketmq2 is wrong"
    assert set(port.core.slaves) == {1}


def test_each_connection_has_another_challenge_and_so_has_each_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = Port(started(tmp_path / "a"))
    challenges = [greet(port, peer) for peer in range(1, 4)]
    monkeypatch.setattr("tests.broker.talk.Random", lambda seed: Random(seed + 1))
    port = Port(started(tmp_path / "b"))
    challenges += [greet(port, peer) for peer in range(1, 4)]
    assert len(set(challenges)) == 6


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (Credentials("nobody1", "12345678"), "No acl config for nobody1"),
        (ADMIN._replace(secret_key="876543210"), "the signature of accessKey=rocketmq2 is wrong"),
        (USER, f"{COPIES}, and accessKey=RocketMQ is none"),
    ],
)
def test_who_may_not_copy_is_closed_told_and_logged_once_with_its_address(
    port: Port, caplog: pytest.LogCaptureFixture, who: Credentials, why: str
) -> None:
    for peer in range(5):
        port.say(peer, signed(greet(port, peer), who))
        assert port.closed[peer] == why
        assert told(port, peer) == why
    assert [record.getMessage() for record in caplog.records] == [f"slave refused: from=10.0.0.9 reason={why}"]
    assert not port.core.slaves


def test_a_signature_of_another_greeting_is_none(port: Port) -> None:
    port.say(1, signed(greet(port), greeting=HELLO._replace(member=bytes(16))))
    assert port.closed[1] == "the signature of accessKey=rocketmq2 is wrong"


def test_an_administrator_with_permissions_for_single_topics_may_not_copy(tmp_path: Path) -> None:
    port = Port(started(tmp_path, LIMITED.replace("- topicC=SUB\n", "- T=PUB\n")))
    port.say(1, signed(greet(port)))
    assert COPIES in port.closed[1]


def test_secrets_cannot_be_guessed_at_this_port_either(talk: Talk, port: Port) -> None:
    for peer in range(GUESSES_A_MINUTE):
        port.say(peer, signed(greet(port, peer), ADMIN._replace(secret_key=f"guess{peer}")))
    port.say(100, signed(greet(port, 100)))
    assert port.closed[100] == "too many wrong signatures of accessKey=rocketmq2, wait a minute"
    port.say(101, signed(greet(port, 101, "10.0.0.8:4000")))
    assert 101 in port.core.slaves, "another address"
    talk.wait(60_001)
    port.say(102, signed(greet(port, 102)))
    assert 102 in port.core.slaves


def test_an_access_key_that_is_too_long_is_refused(port: Port) -> None:
    greet(port)
    port.say(1, SIGNATURE.pack(SIGNED, ACCESS_KEY_BYTES_MAX + 1, bytes(32)))
    assert "an access key of 1025 bytes" in port.closed[1]


def test_bytes_that_are_no_text_are_an_unknown_account(port: Port) -> None:
    greet(port)
    port.say(1, SIGNATURE.pack(SIGNED, 2, bytes(32)) + b"\xff\xfe")
    assert port.closed[1].startswith("No acl config for ")


def test_a_slave_of_rocketmq_cannot_copy_unless_its_address_is_listed(tmp_path: Path) -> None:
    port = Port(started(tmp_path, slaves_from="10.0.0.7"))
    port.report(port.connect(1), 0)
    assert port.closed[1] == CANNOT_SIGN
    slave = CopyingSlave(FILE_BYTES)
    port.report(port.connect(2, "10.0.0.7:4000"), 0)
    slave.receive(port.take(2))
    assert bytes(slave.log) == log_of(port.talk)


def test_a_slave_of_ours_at_a_listed_address_need_not_sign_and_others_still_may(tmp_path: Path) -> None:
    port = Port(started(tmp_path, slaves_from="10.0.0.7"))
    port.say(port.connect(1, "10.0.0.7:4000"), hello())
    port.say(2, signed(greet(port, 2)))
    assert set(port.core.slaves) == {1, 2}


def test_white_addresses_of_accounts_do_not_open_the_port(port: Port) -> None:
    for peer, remote in ((1, "10.10.103.5:4000"), (2, "192.168.1.5:4000")):
        greet(port, peer, remote)
    assert not port.core.slaves


def test_without_access_control_nobody_is_asked_to_sign(tmp_path: Path) -> None:
    port = Port(Talk(tmp_path))
    port.say(port.connect(1), hello())
    assert set(port.core.slaves) == {1}
    port = Port(Talk(tmp_path / "other", slaves_from="10.0.0.7"))
    port.say(port.connect(1), hello())
    assert port.closed[1] == UNLISTED


# ---------------------------------------------------------------- bounds


def test_those_that_do_not_sign_are_few_and_keep_nobody_out(port: Port) -> None:
    for peer in range(3 * SLAVES_MAX):
        port.connect(peer)
    assert len(port.closed) == 3 * SLAVES_MAX - UNSIGNED_MAX
    assert min(peer for peer in range(3 * SLAVES_MAX) if peer not in port.closed) == 3 * SLAVES_MAX - UNSIGNED_MAX
    port.say(1000, signed(greet(port, 1000)))
    assert set(port.core.slaves) == {1000}


def test_an_address_that_connects_again_and_again_does_not_keep_another_one_from_signing(port: Port) -> None:
    challenge = greet(port, 1000, "10.0.0.7:4000")
    for peer in range(3 * UNSIGNED_MAX):
        port.connect(peer, f"10.0.0.66:{5000 + peer}")
    port.say(1000, signed(challenge))
    assert set(port.core.slaves) == {1000}


def test_slaves_that_signed_are_bounded(port: Port) -> None:
    for peer in range(SLAVES_MAX + 1):
        port.say(peer, signed(greet(port, peer)))
    assert port.closed == {SLAVES_MAX: f"there are {SLAVES_MAX} slaves already"}
    admission = port.core._admission
    assert (len(admission._admitted), len(admission._unsigned)) == (SLAVES_MAX, 0)


def test_nothing_is_kept_of_connections_that_are_gone(talk: Talk, port: Port, caplog: pytest.LogCaptureFixture) -> None:
    for peer in range(200):
        data = (b"", hello()[:9], hello(), hello() + signed(bytes(32)), hello() + signed(bytes(32), USER), bytes(8))[peer % 6]
        port.say(port.connect(peer, f"10.0.{peer}.9:4000"), data)
        port.core.lost(peer, talk.instant)
    admission = port.core._admission
    assert (admission._admitted, admission._unsigned, port.core.slaves) == ({}, {}, {})
    assert admission.effects() == []
    assert 0 < len(caplog.records) <= 50, "those of further addresses are counted"


# ---------------------------------------------------------------- rules that change


@pytest.mark.parametrize(
    ("rules", "stays"),
    [
        (RULES.replace("rocketmq2", "rocketmq3"), False),
        (RULES.replace("admin: true", "admin: false"), False),
        (RULES.replace("87654321", "87654322"), False),
        (LIMITED, False),
        (RULES.replace("87654321", "99999999\n  previousSecretKey: 87654321\n  previousSecretUntil: 2033-01-01T00:00:00Z"), True),
        (RULES.replace("topicC=SUB", "topicC=PUB"), True),
    ],
)
def test_a_slave_whose_account_may_not_copy_any_more_is_cut(
    talk: Talk, port: Port, tmp_path: Path, caplog: pytest.LogCaptureFixture, rules: str, stays: bool
) -> None:
    port.say(1, signed(greet(port)))
    slave = OurSlave(FILE_BYTES)
    slave.receive(port.take(1))
    port.say(1, slave.report())
    real, woken = port.core.rules_changed, list[int]()

    def changed() -> None:
        before = port.wakes
        real()
        woken.append(port.wakes - before)

    port.core.rules_changed = changed
    read_again(talk, tmp_path, rules)
    port.turn()
    assert (1 in port.core.slaves) is stays
    assert woken == [not stays], "the port is a core of its own"
    if not stays:
        why = "accessKey=rocketmq2, with which it signed, may not copy any more"
        assert port.closed == {1: why}
        assert [kind for kind, _, _ in FrameReader().read(port.take(1))][-1] == REFUSAL
        assert f"slave refused: from=10.0.0.9 reason={why}" in caplog.text


def test_a_secret_that_expires_cuts_the_slaves_that_signed_with_it(tmp_path: Path) -> None:
    until = "previousSecretKey: 87654321\n  previousSecretUntil: 2023-11-14T22:15:00Z"  # 100 s from the start
    talk = started(tmp_path, RULES)
    read_again(talk, tmp_path, RULES.replace("87654321", f"99999999\n  {until}"))
    port = Port(talk)
    port.say(1, signed(greet(port)))
    port.say(2, signed(greet(port, 2), ADMIN._replace(secret_key="99999999")))
    assert set(port.core.slaves) == {1, 2}
    assert list(talk.broker.access.previous.by_account["rocketmq2"].by_address) == ["10.0.0.9"], "who still uses it is shown"
    talk.wait(120_000)
    port.turn()
    assert set(port.core.slaves) == {2}
    port.say(3, signed(greet(port, 3)))
    assert port.closed[3] == "the signature of accessKey=rocketmq2 is wrong"
    assert not talk.broker.access._guesses, "who knows the last secret does not guess"


# ---------------------------------------------------------------- certificates


def test_the_certificate_of_an_administrator_stands_for_a_signature_and_only_that(tmp_path: Path) -> None:
    rules = RULES.replace("secretKey: 12345678\n", "secretKey: 12345678\n  certificate: user\n")
    port = Port(started(tmp_path, rules.replace("secretKey: 87654321\n", "secretKey: 87654321\n  certificate: operator\n")))
    for peer, names in ((1, ("operator",)), (2, ("user",)), (3, ("user", "operator")), (4, ("nobody",))):
        port.connect(peer)
        port.core.certified(peer, names)
        port.say(peer, hello())
    assert set(port.core.slaves) == {1}
    assert [kind for peer in (2, 3, 4) for kind, _, _ in FrameReader().read(port.take(peer))] == [CHALLENGE] * 3
    read_again(port.talk, tmp_path, RULES)
    port.turn()
    assert port.closed == {1: "no account that may copy has its certificate any more"}


# ---------------------------------------------------------------- pairs


def test_a_member_of_a_pair_joins_once_it_has_signed(tmp_path: Path) -> None:
    talk = started(tmp_path, lease=master_lease)
    port = Port(talk)
    end = talk.broker.store.end_offset
    greeting = HELLO._replace(member=bytes.fromhex("b" * 32), offset=end, kept=end)
    port.say(port.connect(1), hello(end, kept=end, member=greeting.member))
    [(_, _, challenge)] = FrameReader().read(port.take(1))
    assert not talk.broker.copies.pair._slaves
    port.say(1, signed(challenge, greeting=greeting))
    port.follow(1)
    assert talk.broker.copies.pair.is_complete


def test_the_signature_of_a_slave_does_not_have_its_secret() -> None:
    signature = sign(b"87654321", bytes(32), HELLO, "rocketmq2")
    assert isinstance(signature, Signature)
    assert b"87654321" not in hello() + encode_signature(signature)
