"""Topics as tables and tables as topics, in PySpark alone: a source, a sink, a lake pipeline and the jobs on them.

Public names are loaded when first used. Nothing outside this package imports PySpark or pyarrow; they come with the extra
``halfmoon[spark]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfmoon.lazy import lazy

if TYPE_CHECKING:
    from halfmoon.spark.cluster import Cluster
    from halfmoon.spark.jobs.audits import delay_audit, transaction_audit
    from halfmoon.spark.jobs.lag import lag, sample_lag
    from halfmoon.spark.jobs.plots import lag_plot, latency_plot, lateness_plot
    from halfmoon.spark.jobs.query import sql
    from halfmoon.spark.jobs.replay import replay
    from halfmoon.spark.lake.dedup import Dedup
    from halfmoon.spark.lake.files import layout_for
    from halfmoon.spark.lake.ingest import ingest, ingest_stream
    from halfmoon.spark.lake.maintenance import compact, dedup, vacuum
    from halfmoon.spark.lake.schemas import from_ddl
    from halfmoon.spark.lake.table import LakeTable
    from halfmoon.spark.lake.verify import verify
    from halfmoon.spark.sessions import register, session
    from halfmoon.spark.sink.by_key import by_key

_MODULES = {
    "cluster": "Cluster",
    "jobs.audits": "delay_audit transaction_audit",
    "jobs.lag": "lag sample_lag",
    "jobs.plots": "lag_plot lateness_plot latency_plot",
    "jobs.query": "sql",
    "jobs.replay": "replay",
    "lake.dedup": "Dedup",
    "lake.files": "layout_for",
    "lake.ingest": "ingest ingest_stream",
    "lake.maintenance": "compact dedup vacuum",
    "lake.schemas": "from_ddl",
    "lake.table": "LakeTable",
    "lake.verify": "verify",
    "sessions": "register session",
    "sink.by_key": "by_key",
}

__all__ = [
    "Cluster",
    "Dedup",
    "LakeTable",
    "by_key",
    "compact",
    "dedup",
    "delay_audit",
    "from_ddl",
    "ingest",
    "ingest_stream",
    "lag",
    "lag_plot",
    "latency_plot",
    "lateness_plot",
    "layout_for",
    "register",
    "replay",
    "sample_lag",
    "session",
    "sql",
    "transaction_audit",
    "vacuum",
    "verify",
]

__getattr__, __dir__ = lazy(__name__, _MODULES, extra="lake")
