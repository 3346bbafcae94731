"""Java's string hash of many key texts at once: with numpy a column at a time, else one by one. Pure functions over bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halfmoon.model import java_hash
from halfmoon.store import arrays


def index_hash(text: bytes) -> int:
    """Return the hash that a key index file keeps: the absolute value of Java's hash, 0 for the one that has none.

    Follows IndexFile.indexKeyHashMethod (RocketMQ 4.9.8). `topic#key` in UTF-8.
    """
    value = abs(java_hash(text.decode("utf-8", "replace")))
    return 0 if value == 2**31 else value


def index_hashes(texts: Sequence[bytes]) -> list[int]:
    """Return `index_hash` of each text."""
    if arrays.np is None or len(texts) < 16:
        return [index_hash(text) for text in texts]
    if len(set(map(len, texts))) == 1 and (joined := b"".join(texts)).isascii() and 0 < len(texts[0]) <= 1024:
        return _hash_columns(joined, len(texts[0]))
    found = [0] * len(texts)
    by_length: dict[int, list[int]] = {}
    for number, text in enumerate(texts):
        by_length.setdefault(len(text), []).append(number)
    for length, numbers in by_length.items():
        if len(numbers) < 8 or not 0 < length <= 1024:
            for number in numbers:
                found[number] = index_hash(texts[number])
            continue
        joined = b"".join([texts[number] for number in numbers])
        if not joined.isascii():
            for number in numbers:
                found[number] = index_hash(texts[number])
            continue
        for number, value in zip(numbers, _hash_columns(joined, length)):
            found[number] = value
    return found


_powers: dict[int, Any] = {}


def _hash_columns(joined: bytes, length: int) -> list[int]:
    """Return the hashes of ASCII texts of one length, joined. 32-bit arithmetic wraps as Java's does."""
    np, powers = arrays.np, _powers.get(length)
    if powers is None:
        powers = _powers[length] = np.array([pow(31, length - 1 - i, 2**32) for i in range(length)], dtype=np.uint32)
    table = np.frombuffer(joined, dtype=np.uint8).reshape(-1, length)
    sums = (table * powers).sum(axis=1, dtype=np.uint32)
    values = np.abs(sums.view(np.int32).astype(np.int64))
    values[values == 2**31] = 0
    return list(values.tolist())
