"""One of two brokers is out of reach: every operation that asks several brokers names it, by an error or in its result."""

from __future__ import annotations

import inspect
from functools import partial
from random import Random
from typing import Any

import pytest

from halfmoon.client import admin
from halfmoon.client.admin import Operation, Operations
from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.instance import Instance
from halfmoon.client.settings import AdminSettings
from halfmoon.errors import HalfmoonError
from halfmoon.testing.cluster import Cluster

ALONE = (
    "cluster", "server_kind", "slaves", "broker_runtime_info", "broker_config", "update_broker_config", "name_server_config",
    "update_name_server_config", "topics", "topic_configs", "topic_route", "group_configs", "kv", "kv_list", "put_kv",
    "delete_kv", "min_offset", "max_offset", "end_before", "search_offset", "message_by_offset_id", "messages_at",
    "end_transaction", "resume_half", "consume_directly", "replays", "replay_dead_letter", "resend", "skip_message",
    "switch_master", "take_over",
)  # fmt: skip
"""Operations that ask name servers, or one broker that the caller names."""
OF_ACCOUNTS = ("accounts", "put_account", "rotate_secret", "delete_account", "explain_access")
"""Operations of brokers with access control: see `tests.client.core.admin.test_access`."""

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "status": (), "brokers": (), "create_topic": ("orders",), "delete_topic": ("orders",), "topic_stats": ("orders",),
    "topic_overview": (["orders"],), "trim_topic": ("orders",), "groups": (), "create_group": ("C",), "delete_group": ("C",),
    "clients": (), "consumer_connections": ("C",), "producer_connections": ("P", "orders"), "consumer_running_info": ("C", "c@1"),
    "consume_stats": ("C",), "lag": ("C",), "backlogs": (), "group_health": ("C",), "groups_health": (), "group_findings": ("C",),
    "reset_offsets": ("C", "orders", "earliest"), "consumer_offsets": ("C", "orders"),
    "messages_by_key": ("orders", "k"), "message_by_id": ("orders", "ID"), "find_message": ("ID", "orders"),
    "trace": ("ID", "orders"), "delayed_messages": (), "delayed_page": (), "cancel_delayed": ("orders", "ID"),
    "pending_transactions": (), "pending_page": (), "transaction": ("ID",), "check_transaction": ("ID",),
    "decide_transaction": ("ID",), "transaction_stats": (), "expired_transactions": (), "expired_page": (), "batches": (),
    "dead_letters": ("C",), "dead_letter_page": ("C",), "dead_letter": ("ID", "C"),
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {"trim_topic": {"offset": 1}, "decide_transaction": {"commit": True, "operator": "o"}}


def operation_of(name: str) -> Any:
    return getattr(AdminCore, name, None) or getattr(admin, name)


def test_every_operation_is_walked_or_asks_one_server():
    names = {name for name, value in vars(Operations).items() if isinstance(value, Operation)}

    assert names == {*ARGUMENTS, *ALONE, *OF_ACCOUNTS}


@pytest.fixture(params=["broker-a", "broker-b"])
def away(request):
    """Return a cluster, an administration client, and the broker of two that it cannot reach."""
    cluster = Cluster(1, brokers=2)
    cluster.run(1_000)
    settings = AdminSettings(nameserver=cluster.nameservers[0].address)
    core = AdminCore(Instance(settings, "admin@1", Random(1)))
    cluster.ask(core.create_group("C"))
    for topic in ("orders", "%DLQ%C", "%RETRY%C"):
        for number in (0, 1):
            cluster.create_topic(topic, queues=1, broker=number)
    cluster.run(1_000)
    broker = next(broker for broker in cluster.brokers if broker.name == request.param)
    cluster.network.cut(cluster.client_hosts[0], broker.host.host)
    return cluster, core, broker


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_broker_that_cannot_be_reached_is_named(away, name):
    cluster, core, broker = away
    operation, failing = operation_of(name), list[str]()
    asked = partial(operation, core, *ARGUMENTS[name], **MORE.get(name, {}))
    task = cluster.client.start(asked(failing=failing) if "failing" in inspect.signature(operation).parameters else asked())
    cluster.timeline.run_until(lambda: task.done, 120_000)

    try:
        said = f"{task.result()} {failing}"
    except HalfmoonError as exc:
        said = str(exc)

    assert broker.name in said or broker.host.host in said, said
