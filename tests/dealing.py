"""Which tests run in one process, and in which order, when several processes share them out (``--dist loadgroup``).

The tests of a file stay together. Those of Spark stay together in two parts, for a session takes seconds to start; those in a
browser, so that one at a time runs. With Apache's clients and brokers those stay together that share a name server and a broker.
What takes longest is dealt out first, so that all processes end at about the same time; what takes as long as others keeps the
order in which it was given. Only the names of the tests are known here.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

TOGETHER = {
    "tests/spark/lake/": "spark: lake and jobs", "tests/spark/jobs/": "spark: lake and jobs",
    "tests/spark/": "spark", "tests/cli/spark/test_commands": "spark", "tests/console/browser/": "browser",
}  # fmt: skip
"""Where tests use a Spark session or a browser, and what they share one with. The first that fits counts."""
FIRST = (
    "tests/interop/test_store_both_ways", "tests/interop/test_transaction_index", "tests/spark/", "tests/cli/spark/test_commands",
    "tests/console/browser/", "tests/interop/", "tests/packaging/", "tests/docs/", "tests/examples/", "tests/integration/",
    "tests/events/", "tests/simulation/", "tests/client/", "tests/cli/", "tests/store/",
)  # fmt: skip
"""Where tests take seconds, the slowest first."""
SLOW = (
    "tests/simulation/batches/test_batches", "tests/simulation/batches/test_planted", "tests/simulation/batches/test_weeks",
    "tests/simulation/batches/test_drivers", "tests/simulation/damage/test_fsck", "tests/simulation/damage/test_log",
    "tests/simulation/test_delays", "tests/simulation/test_clocks", "tests/simulation/test_messages", "tests/simulation/test_order",
    "tests/simulation/test_polls", "tests/simulation/test_redelivery", "tests/simulation/topics/test_deleted",
    "tests/simulation/transactions/test_planted", "tests/simulation/transactions/test_days",
    "tests/simulation/transactions/test_transactions", "tests/simulation/transactions/test_operators",
    "tests/simulation/transactions/test_producers",
    "tests/testing/test_clients", "tests/simulation/test_faults", "tests/simulation/test_rebalance",
    "tests/simulation/test_seeds", "tests/data/test_rows", "tests/data/sending/test_encode", "tests/spark/sink/test_sink",
    "tests/spark/source/test_secrets", "tests/client/real/test_access",
    "tests/client/real/test_cancelled_tasks",
    "tests/spark/source/test_stream", "tests/data/test_files", "tests/data/test_bodies",
    "tests/spark/lake/test_files", "tests/spark/jobs/test_plots", "tests/cli/spark/test_commands",
    "tests/console/browser/",
    "tests/store/queues/test_missing", "tests/store/log/test_recovery", "tests/store/test_opening", "tests/store/test_damage",
    "tests/store/test_crashes", "tests/store/transactions/test_rebuild", "tests/store/transactions/test_recovery",
    "tests/events/encoding/test_codec", "tests/events/encoding/test_envelope", "tests/events/django/",
    "tests/store/log/test_retention_months",
    "tests/runtime/leases/test_contract", "tests/runtime/leases/test_etcd", "tests/runtime/leases/test_histories",
    "tests/runtime/leases/test_postgresql",
    "tests/columns/test_memory", "tests/runtime/files/test_full_disk", "tests/testing/test_plugin", "tests/test_conversion",
    "tests/events/databases/test_unused_sessions",
    "tests/events/dbapi/test_driver", "tests/events/dbapi/test_proxy",
    "tests/events/dedup/test_dbapi", "tests/events/dedup/test_dedup", "tests/events/dedup/test_sqlalchemy",
    "tests/events/outbox/test_claims",
    "tests/events/outbox/test_publisher", "tests/events/outbox/test_relay", "tests/events/publishing/test_publisher",
    "tests/events/sqlalchemy/test_active_sessions", "tests/events/sqlalchemy/test_connections",
    "tests/events/sqlalchemy/test_rows",
    "tests/events/sqlalchemy/test_sessions", "tests/events/sqlalchemy/test_without_greenlet",
)  # fmt: skip
"""Files that `make check` and `make quick` leave out, by measure: over two seconds of processor time, or of waiting."""
ALONE = ("test_store_both_ways", "test_transaction_index", "test_machine")
"""Files whose tests share nothing, and take longest: dealt out one by one."""
MAY_BE_LATE = (
    "tests/cli/", "tests/client/test_", "tests/console/", "tests/docs/", "tests/events/", "tests/examples/",
    "tests/integration/", "tests/interop/", "tests/packaging/", "tests/programs/", "tests/runtime/", "tests/spark/",
)  # fmt: skip
"""Where tests have processes, threads or sockets, and a deadline. All others decide by themselves, and never need a second try."""
_INTEROP = "tests/interop/"
_ALL_SLOW = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.M)
_SHARED = re.compile(r"\[.*?(\d+\.\d+\.\d+|\bours\b)")
"""The first word of a test's parameters that says which server it shares with others."""


class Dealing(LoadScopeScheduling):  # type: ignore[misc]
    """Deals out to each process what must stay together. The scheduler that xdist calls loadgroup reads marks, and finds none with
    pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return together(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Share out what a process has left, and return the test at which it died: nobody runs that one again.

        xdist hands out tests that have run as well, and waits for ever for one that gets nothing else.
        """
        workload = self.assigned_work.pop(node)
        left = {scope: {test: False for test, done in unit.items() if not done} for scope, unit in workload.items()}
        died_at: str | None = next((test for unit in left.values() for test in unit), None)
        if died_at is not None:
            del left[together(died_at)][died_at]
            self.workqueue.update((scope, unit) for scope, unit in left.items() if unit)
            for other in self.nodes:
                self._reschedule(other)
        return died_at

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process what it needs to go on: it holds its last test back until it knows which is next, or that none is."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)


def together(node_id: str) -> str:
    """Return a text that is the same for all tests that must run in one process."""
    file, _, test = node_id.partition("::")
    if shared := next((name for place, name in TOGETHER.items() if file.startswith(place)), ""):
        return shared
    if alone(file):
        return node_id
    if not file.startswith(_INTEROP):
        return file
    server = _SHARED.search(test)
    return f"{file} {server.group(1)}" if server else file


def rank(node_id: str) -> int:
    """Return when a test's turn is: tests of a lower rank come first."""
    return next((at for at, place in enumerate(FIRST) if node_id.startswith(place)), len(FIRST))


def slow(node_id: str) -> bool:
    """Whether `make check` and `make quick` leave a test out for the place where it stands."""
    return node_id.startswith(SLOW)


def may_be_late(node_id: str) -> bool:
    """Whether a test that failed may be tried once more, as others keep the machine busy."""
    return node_id.startswith(MAY_BE_LATE)


def left_out(file: str, text: str, marks: str) -> bool:
    """Whether ``-m marks`` leaves all tests of a file out, so that what it imports need not be: seconds."""
    if "not interop" in marks and file.startswith(_INTEROP):
        return True
    return "not slow" in marks and (slow(file) or _ALL_SLOW.search(text) is not None)


def alone(file: str) -> bool:
    """Whether the tests of a file share nothing."""
    return PurePosixPath(file).stem in ALONE
