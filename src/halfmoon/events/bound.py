"""A publisher whose events belong to one session, wherever they are published from. Made by `Publisher.bound_to`."""

from __future__ import annotations

from typing import Any, Protocol

from halfmoon.events.delivery_modes import Published
from halfmoon.events.event import Event


class Publishing(Protocol):
    """What is needed of a `Publisher`."""

    def event(self, topic: str, code: str, payload: Any = None, **fields: Any) -> Event:
        """As `Publisher.event`."""

    def publish(self, *args: Any, **options: Any) -> Published:
        """As `Publisher.publish`."""

    async def publish_async(self, *args: Any, **options: Any) -> Published:
        """As `Publisher.publish_async`."""


class BoundEvents:
    """Publishes in the transaction of one session or connection, which begins with the first publish if it has not begun."""

    def __init__(self, publisher: Publishing, session: Any) -> None:
        self.publisher = publisher
        self.session = session

    def event(self, topic: str, code: str, payload: Any = None, **fields: Any) -> Event:
        """As `Publisher.event`."""
        return self.publisher.event(topic, code, payload, **fields)

    def publish(self, topic: str | Event, code: str | None = None, payload: Any = None, **options: Any) -> Published:
        """As `Publisher.publish` with ``session=`` this session. Takes its other options, but for ``at_once``."""
        return self.publisher.publish(topic, code, payload, session=self.session, **options)

    async def publish_async(self, topic: str | Event, code: str | None = None, payload: Any = None, **options: Any) -> Published:
        """As `publish`, without blocking the event loop."""
        return await self.publisher.publish_async(topic, code, payload, session=self.session, **options)
