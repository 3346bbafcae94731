"""What runs in one process: all tests of a file that share a server, and nothing else with them."""

from __future__ import annotations

import pytest

from tests.interop.dealing import together


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("test_our_client.py::test_a[5.3.3-JSON]", "test_our_client.py::test_b[5.3.3]", True),
        ("test_our_client.py::test_a[5.3.3-JSON]", "test_our_client.py::test_a[4.9.7-JSON]", False),
        ("test_our_client.py::test_a[ours]", "test_our_transactions.py::test_a[ours]", False),
        ("test_tx_apache.py::test_a[4.9.7 slow]", "test_tx_apache.py::test_b[4.9.7 slow]", True),
        ("test_same_answers.py::test_a[JSON-a send]", "test_same_answers.py::test_b[JSON-a pull---]", True),
        ("test_same_answers.py::test_a[JSON-a send]", "test_same_answers.py::test_a[ROCKETMQ-a send]", False),
        ("test_java_transactions.py::test_a[throw-4.7.1-json]", "test_java_transactions.py::test_b[4.7.1-json]", True),
        ("test_java_vip.py::test_a", "test_java_vip.py::test_b", True),
        ("test_store_both_ways.py::test_a[ours-first]", "test_store_both_ways.py::test_a[apache-first]", False),
    ],
)
def test_what_shares_a_server_stays_together(one: str, other: str, same: bool) -> None:
    assert (together(f"tests/interop/{one}") == together(f"tests/interop/{other}")) is same
