"""Sessions as FastAPI's dependencies: the endpoint's code finds their transaction active.

A blocking dependency and a blocking endpoint run in different threads, each with a context of its own.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy.orm import Session

from halfmoon.events.transaction import Status
from tests.events.hearing import Heard
from tests.events.sqlalchemy.shops import Order, opened


async def get(app: FastAPI, path: str) -> Any:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        answer = await client.get(path)
    answer.raise_for_status()
    return answer.json()


@pytest.mark.mission("002-54")
async def test_blocking_dependencies_and_endpoints(postgres_url):
    with opened(postgres_url) as shop:
        app, heard = FastAPI(), list[Heard]()

        def autobegun() -> Iterator[Session]:
            with shop.Session() as session:
                yield session

        def begun() -> Iterator[Session]:
            with shop.Session.begin() as session:
                yield session

        @app.get("/autobegun/{number}")
        def one(number: int, session: Annotated[Session, Depends(autobegun)]) -> bool:
            session.add(Order(id=number))
            heard.append(shop.listen())
            session.commit()
            return shop.provider.current() is None

        @app.get("/begun/{number}")
        def other(number: int, session: Annotated[Session, Depends(begun)]) -> bool:
            before = shop.provider.current()
            session.add(Order(id=number))
            heard.append(shop.listen())
            return before is None and shop.provider.current() is shop.provider.current(session)

        assert await get(app, "/autobegun/1") is True
        assert await get(app, "/begun/2") is True
        assert await get(app, "/autobegun/3") is True

        assert [one.status for one in heard] == [Status.COMMITTED] * 3
        assert shop.ids() == [1, 2, 3]
