"""What hostile name servers and brokers send fits into memory: see `tests.integration.hostile_routes`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PLANTED = """
import sys
from halfmoon.client.core import route_table
from halfmoon.wire.bodies import topics
from tests.integration import hostile_routes
topics.ROUTE_QUEUES_MAX = route_table.QUEUES_MAX = hostile_routes.ROUTE_QUEUES_MAX = hostile_routes.QUEUES_MAX = 1 << 50
sys.argv[1:] = ["--rounds", "100"]
hostile_routes.main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_what_hostile_name_servers_and_brokers_send_fits_into_memory(seed):
    result = run("-m", "tests.integration.hostile_routes", "--rounds", "150", "--seed", seed)

    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert min(facts["learnt"], facts["refused"]) > 10


@pytest.mark.slow
def test_a_client_that_takes_routes_of_any_size_is_found():
    result = run("-c", PLANTED)

    assert result.returncode != 0
    assert "MemoryError" in result.stderr
