"""A slave says once that its accounts are not its master's, and once that they are again; it compares no secret in the open."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.broker.copies.accounts import DIFFER, LOOK_MS
from halfmoon.effects import Call, Wait
from halfmoon.errors import ConnectFailed
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import KVTable, from_json
from halfmoon.wire.headers.access import DeleteAclConfig, UpdateAndCreateAclConfig
from halfmoon.wire.headers.admin import GetBrokerRuntimeInfo
from halfmoon.wire.signature import Credentials
from tests.broker.copies.serving_slave import SlaveTalk
from tests.broker.talk import Talk

ADMIN = Credentials("operator", "secret-1")
ACCOUNTS = b"""accounts:
- {accessKey: operator, secretKey: secret-1, admin: true}
- {accessKey: shop-service, secretKey: secret-2, topicPerms: [orders=PUB]}
"""


def disk(accounts: bytes = ACCOUNTS) -> SimDisk:
    found = SimDisk(Random(3))
    found.save("conf/plain_acl.yml", accounts, private=True)
    return found


@pytest.fixture
def slave() -> SlaveTalk:
    """A slave with the accounts of its master."""
    made = SlaveTalk(Talk("master", disk=disk(), acl_enable=True), disk(), acl_enable=True)
    made.standby.pair_master = "master:10911"
    made.keeping = made.broker.accounts_check.keep()
    assert next(made.keeping) == Wait(made.broker.accounts_check._wake, LOOK_MS)
    return made


def look(slave: Any, *, at: Any = None, lost: bool = False, without: str = "") -> None:
    """Let the slave look at its master once; ``lost``: it does not answer; ``without``: a field that it does not know."""
    asked = slave.keeping.send(False)
    assert isinstance(asked, Call)
    if lost:
        waits = slave.keeping.throw(ConnectFailed("connect failed"))
    else:
        reply = (at or slave.master).ask(asked.request, who=ADMIN)
        reply.fields.pop(without, None)
        assert "secret-" not in repr(reply.fields)
        waits = slave.keeping.send(reply)
    assert isinstance(waits, Wait)


def faults(slave: Any) -> str:
    return from_json(KVTable, slave.ask(GetBrokerRuntimeInfo(), who=ADMIN).body).table.get("brokerFaults", "")


def test_a_slave_whose_accounts_differ_says_so_once_and_once_when_they_are_equal_again(slave: Any, caplog: Any) -> None:
    look(slave)
    look(slave)
    assert (DIFFER in faults(slave), caplog.text) == (False, "")

    change = UpdateAndCreateAclConfig(access_key="shop-service", secret_key="secret-3")
    assert slave.master.ask(change, who=ADMIN).code == 0
    look(slave)
    assert DIFFER not in faults(slave), "it may be about to be changed here, too"
    for _ in range(3):
        look(slave)
        assert DIFFER in faults(slave)
    assert caplog.text.count(DIFFER) == 1

    assert slave.ask(change, who=ADMIN).code == 0, "a slave takes a change of accounts"
    look(slave)
    look(slave)
    assert DIFFER not in faults(slave)
    assert caplog.text.count("equal to its master's again") == 1
    assert "secret-" not in caplog.text


def test_a_master_that_does_not_answer_or_gives_no_digest_changes_nothing_of_what_is_known(slave: Any, caplog: Any) -> None:
    slave.master.ask(DeleteAclConfig(access_key="shop-service"), who=ADMIN)
    for _ in range(3):
        look(slave, without="accountsDigest")
        look(slave, lost=True)
    assert DIFFER not in faults(slave)
    look(slave)
    look(slave)
    look(slave, lost=True)
    look(slave, without="accountsDigest")
    assert DIFFER in faults(slave)


def test_the_looks_end_with_a_clean_stop(slave: Any) -> None:
    slave.broker.accounts_check.stop(slave.instant)
    with pytest.raises(StopIteration):
        slave.keeping.send(True)


def test_accounts_in_another_order_or_file_are_the_same_accounts(slave: Any) -> None:
    first = b"accounts:\n- {accessKey: zeta-service, secretKey: secret-9}\n"
    other = Talk("other", disk=disk(ACCOUNTS.replace(b"accounts:\n", first)), acl_enable=True)
    added = UpdateAndCreateAclConfig(access_key="zeta-service", secret_key="secret-9")
    assert slave.ask(added, who=ADMIN).code == 0
    look(slave, at=other)
    look(slave, at=other)
    assert DIFFER not in faults(slave)
