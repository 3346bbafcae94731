"""The source and the sink with gates in them: a process that comes to a closed gate stops there until the test opens it.

A gate is a name in a directory that all processes see. Sent to Python workers by value: they cannot import tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from halfmoon.spark.sink import sink
from halfmoon.spark.source import stream
from halfmoon.spark.source.source import HalfmoonSource
from tests.spark.waiting import until


class Gates:
    """Gates in a directory; a name ends in the number of a batch. All is the test's but ``pass_by``, which who is tested calls."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)

    def close(self, name: str, count: int = 1) -> None:
        """Have the next ``count`` processes that come to a gate wait there; later ones pass."""
        for old in self.place.glob(f"at {name} *"):
            old.unlink()
        new = self.place / f"closing {name}"
        new.write_text(str(count))
        new.rename(self.place / f"closed {name}")

    def held(self, name: str, count: int = 1) -> list[int]:
        """Wait until so many processes stand at a gate; return their ids."""
        found = until(lambda: len(pids := self._at(name)) >= count and pids, f"{count} processes at {name}")
        return sorted(found)

    def _at(self, name: str) -> list[int]:
        return [int(text) for path in self.place.glob(f"at {name} *") if (text := path.read_text())]

    def open(self, name: str) -> None:
        """Let those who wait pass."""
        (self.place / f"closed {name}").unlink()

    def break_at(self, name: str) -> None:
        """Have the next process that comes by raise an error."""
        (self.place / f"broken {name}").touch()

    def pass_by(self, name: str) -> None:
        """Wait while the gate is closed, if this process is one of those that it holds."""
        try:
            (self.place / f"broken {name}").unlink()
        except FileNotFoundError:
            pass
        else:
            raise RuntimeError(f"broken at {name}")
        closed = self.place / f"closed {name}"
        try:
            count = int(closed.read_text())
        except FileNotFoundError:
            return
        for number in range(count):
            try:
                mine = os.open(self.place / f"at {name} {number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                continue
            os.write(mine, str(os.getpid()).encode())
            os.close(mine)
            until(lambda: not closed.exists(), f"{name} to be opened")
            return


class Gated(HalfmoonSource):
    """The source and the exactly-once sink. ``gates`` is the directory; ``outage`` how many seconds a source waits for brokers."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "gated"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.options = dict(options)
        self._place = self.options.pop("gates", "")
        self._outage_s = float(self.options.pop("outage", stream.OUTAGE_S))

    def streamReader(self, schema: StructType) -> stream.StreamReader:
        """Return the reader, which waits as long as the test likes."""
        stream.OUTAGE_S = self._outage_s
        return super().streamReader(schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Return the sink with gates."""
        return GatedWriter(sink.stream_writer(self.options, schema, overwrite), self._place)


class GatedWriter(DataSourceStreamArrowWriter):
    """The writer of a stream with gates: in a task, around each step of the commit, and behind it."""

    def __init__(self, writer: sink.StreamWriter, place: str) -> None:
        self._writer, self._place = writer, place

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write, with the gate ``write`` in the middle of the rows and ``wrote`` behind the last."""
        gates, batch = Gates(Path(self._place)), sink.stream_task().batch

        def rows() -> Iterator[pa.RecordBatch]:
            for each in iterator:
                half = each.num_rows // 2
                if half:
                    yield each.slice(0, half)
                    gates.pass_by(f"write {batch}")
                yield each.slice(half)

        said = self._writer.write(rows())
        gates.pass_by(f"wrote {batch}")
        return said

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit, with the gates ``before vote``, ``after vote`` and so on, and ``done`` behind it all."""
        module: Any = sink
        gates, transactions_of = Gates(Path(self._place)), module.transactions_of
        module.transactions_of = lambda options: GatedSteps(transactions_of(options), gates, batchId)
        try:
            self._writer.commit(messages, batchId)
        finally:
            module.transactions_of = transactions_of
        gates.pass_by(f"done {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Abort."""
        self._writer.abort(messages, batchId)


class GatedSteps:
    """The client of batch transactions with gates around its steps."""

    def __init__(self, transactions: Any, gates: Gates, batch: int) -> None:
        self._transactions, self._gates, self._batch = transactions, gates, batch

    def __getattr__(self, step: str) -> Any:
        def ask(*arguments: Any) -> Any:
            self._gates.pass_by(f"before {step} {self._batch}")
            answer = getattr(self._transactions, step)(*arguments)
            self._gates.pass_by(f"after {step} {self._batch}")
            return answer

        return ask
