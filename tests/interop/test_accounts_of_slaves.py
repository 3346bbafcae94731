"""Accounts are changed at an Apache slave of our master, too, by our command's operations and by Apache's admin tool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.errors import UsageError
from tests.broker.access.rule_files import write
from tests.interop.test_java_access import ADMIN, RULES, tool  # noqa: F401
from tests.interop.test_replication import Pair
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Our master and an Apache slave, each with access control and a file of accounts."""
    made = Pair("4.9.7", tmp_path, aclEnable="true", slaves_from="127.0.0.1")
    made.apache.settings["aclEnable"] = "true"
    for home in (made.apache.home, made.master.data):
        write(home, RULES)
    try:
        yield made.start()
    finally:
        made.apache.kill()
        made.master.kill()


def test_an_apache_slave_gets_each_change_of_accounts_and_no_rotation_that_it_would_cut_short(pair: Pair, tool: Any) -> None:  # noqa: F811
    names = pair.master.nameserver
    with Admin(nameserver=names, **ADMIN) as admin:
        until(lambda: len(admin.cluster().broker_addr_table["broker-a"].broker_addrs) == 2, "both to be registered")
        everywhere = ["broker-a", "broker-a/1"]

        def known() -> list[set[str]]:
            return [{str(account.access_key) for account in at.accounts} for at in admin.accounts()]

        assert admin.put_account("shop-service", "secret-5", topics={"orders": "PUB"}) == everywhere
        until(lambda: all("shop-service" in keys for keys in known()), "both to know it")
        with pytest.raises(UsageError, match=r"broker broker-a/1 .*previous secrets.* nothing was changed"):
            admin.rotate_secret("shop-service", "secret-6", 60_000)
        assert admin.delete_account("shop-service") == everywhere
        until(lambda: not any("shop-service" in keys for keys in known()), "both to have removed it")

        tool.mqadmin("updateAclConfig", "-n", names, "-c", "DefaultCluster", "-a", "tool-service", "-s", "secret-7")
        until(lambda: all("tool-service" in keys for keys in known()), "the tool to have reached both")
