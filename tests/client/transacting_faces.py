"""Transactional producers as users hold them, blocking and asyncio, over scripted brokers."""

from __future__ import annotations

import inspect
from typing import Any

from halfmoon import AsyncTransactionProducer, TransactionProducer
from halfmoon.effects import Run
from halfmoon.runtime.connections.blocking_connections import BlockingConnections
from halfmoon.runtime.drivers.blocking_driver import BlockingDriver
from halfmoon.runtime.drivers.threads import background
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendMessageV2
from tests.client.scripted import Scripted, route, routes
from tests.client.transacting import ends, half_stored


class OverScripts:
    """A driver over scripted brokers; the user's coroutine functions are awaited on the real loop."""

    def __init__(self, script: Scripted) -> None:
        self.script = script

    async def perform(self, effect: Any) -> Any:
        return await self.run(_only(effect))

    async def run(self, operation: Any) -> Any:
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = operation.send(value) if error is None else operation.throw(error)
            except StopIteration as stop:
                return stop.value
            value = error = None
            try:
                if type(effect) is Run and inspect.iscoroutinefunction(effect.function):
                    value = await effect.function(*effect.arguments)
                else:
                    value = self.script.run(_only(effect))
            except BaseException as exc:
                error = exc


def _only(effect: Any) -> Any:
    return (yield effect)


def running(producer: Any, script: Scripted) -> Any:
    """Make a producer run over scripted brokers that know the topic ``orders``."""
    inner = producer if isinstance(producer, AsyncTransactionProducer) else producer._client
    driver = OverScripts(script)
    inner.driver, inner.state, inner.sender.running = driver, "running", True
    if inner is not producer:
        producer._driver = BlockingDriver(BlockingConnections(), background(), driver, frozenset())
    script.on(GetRouteinfoByTopic, routes(orders=route(1)))
    script.on(SendMessageV2, half_stored())
    return producer


def blocking(script: Scripted, **values: Any) -> TransactionProducer:
    return running(TransactionProducer(group="P", nameserver="127.0.0.1:9876", **{"check": lambda message: None, **values}), script)


def asynchronous(script: Scripted, **values: Any) -> AsyncTransactionProducer:
    return running(
        AsyncTransactionProducer(group="P", nameserver="127.0.0.1:9876", **{"check": lambda message: None, **values}), script
    )


def told(script: Scripted) -> list[int]:
    """What was told to the broker: 8 commit, 12 roll back."""
    return [end.request.commit_or_rollback for end in ends(script)]
