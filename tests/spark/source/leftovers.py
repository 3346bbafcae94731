"""What a stream leaves behind, looked through for something that must not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def leaves_no(secret: str, spark: Any, target: dict[str, str], directory: Path) -> None:
    """Copy a topic to itself by a stream, and look for a secret in all files of its checkpoint and in its progress."""
    stream = spark.readStream.format("halfmoon").options(**target, startingOffsets="earliest").load()
    query = (
        stream.selectExpr("body")
        .writeStream.format("halfmoon")
        .options(**target, checkpointLocation=str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    kept = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    assert kept
    assert not any(secret.encode() in content for content in kept)
    assert secret not in str(query.lastProgress)
