"""A slave of ours signs its greeting where its master wants that, and says why it is refused."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from halfmoon.broker.copies import following
from halfmoon.broker.copies.feeding import GATHER_MS
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.copying import (
    CHALLENGE,
    CHALLENGE_BYTES,
    FRAME,
    REFUSAL,
    REPORTS,
    STAMP,
    WHOLE_LOG,
    Hello,
    encode_signature,
    sign,
)
from halfmoon.wire.signature import Credentials
from tests.broker.access.rule_files import RULES, write
from tests.broker.copies.slave import MEMBER, Port
from tests.broker.copies.test_following import FILE_BYTES, Slave
from tests.broker.talk import Talk

ACCOUNT, CHALLENGED = Credentials("rocketmq2", "87654321"), bytes(range(CHALLENGE_BYTES))


def challenged(account: Credentials | None) -> Slave:
    """Return a slave that has an account and is asked to sign its greeting."""
    slave = Slave(SimDisk(Random(1)), ours=True)
    slave.core.following._account = account
    slave.connect(1)
    slave.sent.clear()
    slave.receive(FRAME.pack(CHALLENGE, 0, CHALLENGE_BYTES) + CHALLENGED)
    return slave


def test_a_slave_signs_the_greeting_that_it_sent_and_reports_again() -> None:
    slave = challenged(ACCOUNT)
    signature = encode_signature(sign(b"87654321", CHALLENGED, Hello(MEMBER, 1, WHOLE_LOG), "rocketmq2"))
    assert bytes(slave.sent) == signature + REPORTS.pack(0, 0, 0)
    assert b"87654321" not in slave.sent
    assert not slave.reason


def test_a_slave_without_an_account_says_so_and_leaves(caplog: pytest.LogCaptureFixture) -> None:
    slave = challenged(None)
    assert slave.reason == following.NO_ACCOUNT
    assert not slave.sent
    assert slave.core.following.refusal == following.NO_ACCOUNT
    assert following.NO_ACCOUNT in caplog.text


def test_a_slave_says_why_its_master_refuses_it_until_that_lets_it_copy() -> None:
    slave, text = challenged(ACCOUNT), b"the signature of accessKey=rocketmq2 is wrong"
    slave.core.problem = None
    slave.receive(FRAME.pack(REFUSAL, 0, len(text)) + text)
    assert slave.core.unready() == f"the master refuses this slave: {text.decode()}"
    slave.connect(2)
    assert slave.core.unready() == f"the master refuses this slave: {text.decode()}", "it may be refused again"
    slave.receive(FRAME.pack(CHALLENGE, 0, CHALLENGE_BYTES) + CHALLENGED + FRAME.pack(STAMP, 1, 0))
    assert slave.core.unready() is None


def test_a_slave_that_signs_and_its_master_agree(tmp_path: Path) -> None:
    write(tmp_path, RULES)
    talk = Talk(tmp_path, acl_enable=True, store={"commit_log_file_bytes": FILE_BYTES})
    for _ in range(30):
        assert talk.send("T", bytes(1000), who=ACCOUNT).code == 0
    port, slave = Port(talk), Slave(SimDisk(Random(1)), ours=True)
    slave.core.following._account = ACCOUNT
    for peer in (1, 2):
        port.connect(peer)
        slave.connect(peer)
        while slave.sent or port.sent[peer]:
            data, slave.sent = bytes(slave.sent), bytearray()
            for at in range(0, len(data), 7):
                port.say(peer, data[at : at + 7])
            slave.receive(port.take(peer))
            port.wait(GATHER_MS)
        assert (slave.core.store.end_offset, port.core.slaves[peer].copied) == (talk.broker.store.end_offset,) * 2
        port.core.lost(peer, talk.instant)
