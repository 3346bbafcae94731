"""Apache's 4.9.7 still answers as recorded when a field is left out of a request: the record that our own tests compare with.

``RECORD=1`` writes the record instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from halfmoon.wire.codes import JSON, ROCKETMQ
from tests.interop import leaving_out
from tests.interop.apache import Cluster
from tests.interop.asking import Asker, Question


@pytest.fixture(params=[JSON, ROCKETMQ], ids=["JSON", "ROCKETMQ"])
def connect(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Asking]]:
    """Return ``connect(port of broker or name server)()(question)``, over a new cluster for each serialisation."""
    cluster = Cluster("4.9.7", tmp_path_factory.mktemp("apache"))
    askers: list[Asker] = []

    def of(code: int) -> Asking:
        port = cluster.broker_port if code in leaving_out.BROKER else cluster.nameserver_port

        def connection() -> Callable[[Question], int]:
            while askers:
                askers.pop().close()
            askers.append(Asker(port))
            return lambda question: askers[0].ask(question, request.param).code

        return connection

    try:
        cluster.start()
        yield of
    finally:
        for asker in askers:
            asker.close()
        cluster.kill()


Asking = Callable[[], Callable[[Question], int]]


def test_apache_answers_as_recorded(connect: Callable[[int], Asking]) -> None:
    codes = (*leaving_out.BROKER, *leaving_out.NAME_SERVER)

    found = {str(code): leaving_out.answers(code, connect(code)) for code in codes}

    if os.environ.get("RECORD"):
        leaving_out.RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    assert found == {str(code): leaving_out.recorded(code) for code in codes}
