"""Typed decoding: threads that meet in a type whose fields are just being looked up, and coders that threads share."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halfmoon import conversion
from halfmoon.events import Codecs, on
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.encoding.codec import JSON, MSGPACK
from halfmoon.events.errors import PayloadRefused
from halfmoon.events.testing import MemoryBus
from halfmoon.wire.codes import COMPRESSED, LZ4, ZLIB, ZSTD
from halfmoon.wire.compression import compress, decompress

COLD = Path(__file__).with_name("cold_types.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def cold(mode: str) -> list[str]:
    """Run the program and return its lines."""
    command = [sys.executable, str(COLD), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_threads_that_convert_to_a_type_for_the_first_time_at_once_do_not_crash_the_interpreter():
    lines = cold("guarded")

    assert lines[-1].endswith(" types, 0 died"), lines
    assert int(lines[-1].split()[0]) > 300


def test_without_the_lock_the_same_threads_crash_it():
    lines = cold("unguarded")

    assert any(line.endswith(" -11") for line in lines), lines


class Order(msgspec.Struct):
    """A payload."""

    number: int
    lines: list[dict[str, int]]


def side_by_side(work: Callable[[int], Any]) -> list[Any]:
    """Run a function in four threads at once, under a switch interval of a microsecond; return what they returned or raised."""
    barrier, found, before = threading.Barrier(4), [], sys.getswitchinterval()

    def go(number: int) -> None:
        barrier.wait()
        try:
            found.append(work(number))
        except BaseException as exc:
            found.append(exc)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    return found


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
def test_coders_that_threads_share_mix_nothing_up(content_type: str):
    codecs = Codecs()

    def there_and_back(number: int) -> bool:
        for turn in range(200):
            order = Order(number, [{str(item): turn} for item in range(20)])
            body = codecs.encode(order, content_type=content_type).body
            if codecs.decode(content_type, 1, body, into=Order) != order:
                return False
        return True

    assert side_by_side(there_and_back) == [True] * 4


def test_compressed_bodies_of_several_threads_do_not_mix():
    def there_and_back(number: int) -> bool:
        body = bytes([number]) * 10_000 + os.urandom(1_000)
        return all(decompress(compress(body, kind, 3), COMPRESSED | kind) == body for kind in (ZLIB, LZ4, ZSTD) for _ in range(20))

    assert side_by_side(there_and_back) == [True] * 4


def test_a_class_is_looked_up_again_when_too_many_were_remembered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversion, "CLASSES_MAX", 2)

    for number in range(5):
        kind = msgspec.defstruct(f"Made{number}", [("x", int)])
        assert conversion.convert({"x": 1}, kind) == kind(1)
    assert len(conversion._known) <= 2


def test_a_payload_type_that_nothing_can_be_decoded_to_is_refused_when_consumers_start_and_not_with_each_event():
    class Broken(msgspec.Struct):
        of: NotThere  # noqa: F821

    @on("S_mail", "TP_ORDER", "EC_PAID", payload=Broken)
    def consume(event, context): ...

    consumers = Consumers(consume, bus=MemoryBus())

    with pytest.raises(PayloadRefused, match=r"Broken.*NotThere"):
        consumers.start()
