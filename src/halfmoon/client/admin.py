"""Administration, on asyncio and blocking: `Operations` lists what both can do, a line for each operation of the core.

A method of either takes what the operation takes behind its first parameter, and says what the operation's docstring says. Type
checkers and editors see both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

from halfmoon.client.anonymous import AnonymousClient
from halfmoon.client.blocking import Blocking
from halfmoon.client.constructors.options import AdminArguments
from halfmoon.client.core.admin.access import accounts, delete_account, explain_access, put_account, rotate_secret
from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.batches import batches
from halfmoon.client.core.admin.dead_letters import dead_letter, dead_letter_page, dead_letters
from halfmoon.client.core.admin.delay import cancel_delayed, delayed_messages, delayed_page
from halfmoon.client.core.admin.find import find_message, message_by_id, message_by_offset_id, messages_at, messages_by_key
from halfmoon.client.core.admin.health.brokers import brokers, slaves
from halfmoon.client.core.admin.health.group import backlogs, group_findings, group_health, groups_health
from halfmoon.client.core.admin.health.server_kind import server_kind
from halfmoon.client.core.admin.health.status import status
from halfmoon.client.core.admin.pairs.switch import switch_master
from halfmoon.client.core.admin.pairs.takeover import take_over
from halfmoon.client.core.admin.replay import replay_dead_letter, replays
from halfmoon.client.core.admin.resend import resend
from halfmoon.client.core.admin.reset import consume_directly, consumer_offsets, reset_offsets
from halfmoon.client.core.admin.skip import skip_message
from halfmoon.client.core.admin.topics.overview import topic_overview
from halfmoon.client.core.admin.topics.trim import trim_topic
from halfmoon.client.core.admin.trace.trace import trace
from halfmoon.client.core.admin.transactions import (
    check_transaction,
    decide_transaction,
    end_transaction,
    expired_page,
    expired_transactions,
    pending_page,
    pending_transactions,
    resume_half,
    transaction,
    transaction_stats,
)
from halfmoon.client.core.topic_changes import create_topic
from halfmoon.client.lifecycle import values_of
from halfmoon.client.settings import AdminSettings, settings_of
from halfmoon.effects import Op
from halfmoon.runtime.drivers.threads import background

__all__ = ["Admin", "AdminSettings", "AsyncAdmin"]

P = ParamSpec("P")
T = TypeVar("T")


class Operation(Generic[P, T]):
    """An operation as a method: a coroutine of `AsyncAdmin`, a call of `Admin` that waits."""

    def __init__(self, operation: Callable[Concatenate[AdminCore, P], Op[T]]) -> None:
        async def awaited(self: AsyncAdmin, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self.run(operation(self.core, *args, **kwargs))

        def blocking(self: Admin, *args: P.args, **kwargs: P.kwargs) -> T:
            return self.run(operation(self._client.core, *args, **kwargs))

        self._awaited, self._blocking = _described(awaited, operation), _described(blocking, operation)

    @overload
    def __get__(self, client: AsyncAdmin, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, client: Admin, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    def __get__(self, client: Any, owner: type) -> Any:
        method: Any = self._blocking if issubclass(owner, Blocking) else self._awaited
        return method.__get__(client, owner)


def _described(method: Any, operation: Callable[..., Any]) -> Any:
    """Give a method the name, docstring and signature of its operation, but for what it returns: a T instead of an Op[T]."""
    update_wrapper(method, operation)
    returns = operation.__annotations__["return"].removeprefix("Op[").removesuffix("]")
    method.__annotations__ = {**operation.__annotations__, "return": returns}
    method.__signature__ = inspect.signature(operation).replace(return_annotation=returns)
    return method


class Operations:
    """Operations of administration clients. To add one: an operation in `halfmoon.client.core.admin`, and its line here."""

    cluster = Operation(AdminCore.cluster)
    status = Operation(status)
    brokers = Operation(brokers)
    switch_master = Operation(switch_master)
    take_over = Operation(take_over)
    slaves = Operation(slaves)
    server_kind = Operation(server_kind)
    broker_runtime_info = Operation(AdminCore.broker_runtime_info)
    broker_config = Operation(AdminCore.broker_config)
    update_broker_config = Operation(AdminCore.update_broker_config)
    name_server_config = Operation(AdminCore.name_server_config)
    update_name_server_config = Operation(AdminCore.update_name_server_config)

    create_topic = Operation(create_topic)
    delete_topic = Operation(AdminCore.delete_topic)
    topics = Operation(AdminCore.topics)
    topic_configs = Operation(AdminCore.topic_configs)
    topic_route = Operation(AdminCore.topic_route)
    topic_stats = Operation(AdminCore.topic_stats)
    topic_overview = Operation(topic_overview)
    trim_topic = Operation(trim_topic)
    min_offset = Operation(AdminCore.min_offset)
    max_offset = Operation(AdminCore.max_offset)
    end_before = Operation(AdminCore.end_before)
    search_offset = Operation(AdminCore.search_offset)

    groups = Operation(AdminCore.groups)
    group_configs = Operation(AdminCore.group_configs)
    create_group = Operation(AdminCore.create_group)
    delete_group = Operation(AdminCore.delete_group)
    clients = Operation(AdminCore.clients)
    consumer_connections = Operation(AdminCore.consumer_connections)
    producer_connections = Operation(AdminCore.producer_connections)
    consumer_running_info = Operation(AdminCore.consumer_running_info)
    consume_stats = Operation(AdminCore.consume_stats)
    lag = Operation(AdminCore.lag)
    backlogs = Operation(backlogs)
    group_health = Operation(group_health)
    groups_health = Operation(groups_health)
    group_findings = Operation(group_findings)
    reset_offsets = Operation(reset_offsets)
    skip_message = Operation(skip_message)
    consumer_offsets = Operation(consumer_offsets)
    consume_directly = Operation(consume_directly)

    messages_by_key = Operation(messages_by_key)
    message_by_id = Operation(message_by_id)
    message_by_offset_id = Operation(message_by_offset_id)
    find_message = Operation(find_message)
    messages_at = Operation(messages_at)
    trace = Operation(trace)
    resend = Operation(resend)
    delayed_messages = Operation(delayed_messages)
    delayed_page = Operation(delayed_page)
    cancel_delayed = Operation(cancel_delayed)

    pending_transactions = Operation(pending_transactions)
    pending_page = Operation(pending_page)
    transaction = Operation(transaction)
    check_transaction = Operation(check_transaction)
    decide_transaction = Operation(decide_transaction)
    end_transaction = Operation(end_transaction)
    transaction_stats = Operation(transaction_stats)
    expired_transactions = Operation(expired_transactions)
    expired_page = Operation(expired_page)
    resume_half = Operation(resume_half)
    batches = Operation(batches)

    dead_letters = Operation(dead_letters)
    dead_letter_page = Operation(dead_letter_page)
    dead_letter = Operation(dead_letter)
    replays = Operation(replays)
    replay_dead_letter = Operation(replay_dead_letter)

    accounts = Operation(accounts)
    put_account = Operation(put_account)
    rotate_secret = Operation(rotate_secret)
    delete_account = Operation(delete_account)
    explain_access = Operation(explain_access)

    kv = Operation(AdminCore.kv)
    kv_list = Operation(AdminCore.kv_list)
    put_kv = Operation(AdminCore.put_kv)
    delete_kv = Operation(AdminCore.delete_kv)


class AsyncAdmin(Operations, AnonymousClient[AdminSettings]):
    """Looks into a cluster and changes it: topics, groups, progress, messages, brokers.

    ::

        async with AsyncAdmin(nameserver="127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queue_count=4)
            print(await admin.lag("C_shop"))
    """

    def __init__(self, settings: AdminSettings | None = None, **values: Unpack[AdminArguments]) -> None:
        super().__init__(settings_of(AdminSettings, {**(values_of(settings) if settings else {}), **values}))
        self.core = AdminCore(self.instance)


class Admin(Operations, Blocking):
    """As `AsyncAdmin`, blocking; safe to use from many threads.

    ::

        with Admin(nameserver="127.0.0.1:9876") as admin:
            admin.create_topic("orders", queue_count=4)
            print(admin.lag("C_shop"))
    """

    _client: AsyncAdmin

    def __init__(self, settings: AdminSettings | None = None, **values: Unpack[AdminArguments]) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncAdmin, settings, **values), loop)
