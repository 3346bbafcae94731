"""Which tests of Apache's clients and brokers run in one process when several processes share them out (``--dist loadgroup``).

A name server and a broker start once for all tests of a file and version, so these stay together, in their order. Only the names of
the tests are known here.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ALONE = ("test_store_both_ways", "test_transaction_index")
"""Files whose tests start servers of their own, and take longest: dealt out one by one, before all others."""
_SHARED = re.compile(r"\[.*?(\d+\.\d+\.\d+|\bours\b|\bJSON\b|\bROCKETMQ\b)")
"""The first word of a test's parameters that says which server or serialisation it shares with others."""


class Dealing(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out to each process what must stay together. The scheduler that xdist calls loadgroup reads marks, and finds none with
    pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)


def together(node_id: str) -> str:
    """Return a text that is the same for all tests that must run in one process."""
    file, _, test = node_id.partition("::")
    if alone(file):
        return node_id
    shared = _SHARED.search(test)
    return f"{file} {shared.group(1)}" if shared else file


def alone(file: str) -> bool:
    """Whether the tests of a file share nothing."""
    return PurePosixPath(file).stem in ALONE
