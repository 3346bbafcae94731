"""Apache's Java client in a process of its own, told what to do from Python (see ``java/Peer.java``)."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import zlib
from functools import cache
from pathlib import Path
from typing import Any

from tests.interop.jars import JAVA_FLAGS, SHORT_RUN, classes, jars

NOISE_BLOCK_BYTES = 65536


class JavaError(Exception):
    """The Java client raised. ``name`` is the class, ``code`` the response code where it carries one."""

    def __init__(self, name: str, text: str, code: int | None) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text, self.code = name, text, code


class JavaPeer:
    """One JVM with the client of a version; ``serialization`` is JSON or ROCKETMQ, for the headers it sends; ``properties`` are
    more of the JVM's."""

    def __init__(self, version: str, home: Path, serialization: str = "JSON", **properties: str) -> None:
        self.version, self.serialization = version, serialization
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        self._errors = open(home / "errors.log", "ab")  # noqa: SIM115 (closed in stop)
        command = ["java", "-Xmx384m", f"-Duser.home={home}", f"-Drocketmq.serialize.type={serialization}", *JAVA_FLAGS, *SHORT_RUN]
        command += [f"-Drocketmq.client.logRoot={home}", f"-Drocketmq.home.dir={home}", "-Drocketmq.client.logLevel=WARN"]
        command += ["-Djava.security.manager=allow"]  # commands of the admin tool end with an exit, which must not end this JVM
        command += [f"-D{name}={value}" for name, value in properties.items()]
        command += ["-cp", f"{classes(version)}:{jars(version)}/*", "Peer"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=home
        )  # consumerStatus writes files where it runs
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, verb: str, *, wait_s: float = 60, **order: Any) -> Any:
        """Give one order and return its result. Raises JavaError, or TimeoutError after ``wait_s`` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **order}).encode() + b"\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            raise TimeoutError(f"{verb}: no answer within {wait_s} s") from None
        if not line:
            raise RuntimeError(f"the JVM ended; see {self._errors.name}")
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"], answer.get("text") or "", answer.get("code"))
        return answer.get("result")

    def mqadmin(self, *arguments: str, within_ms: int = 50_000) -> str:
        """Run a command of Apache's admin tool and return what it printed, within that time when it would run on for ever."""
        return str(self.call("mqadmin", arguments=list(arguments), within_ms=within_ms))

    def stop(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait(60)
        self._reader.join(5)
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")


@cache
def body(size_bytes: int, fill: str) -> bytes:
    """Return the body that Java's side makes for the same size and fill: ``repeat`` compresses well, ``noise`` does not."""
    if fill == "repeat":
        period = bytes(i * 31 % 251 for i in range(251))
        return (period * (size_bytes // 251 + 1))[:size_bytes]
    state, block = 1, bytearray()
    for _ in range(min(size_bytes, NOISE_BLOCK_BYTES)):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        block.append(state >> 16 & 0xFF)
    return (bytes(block) * (size_bytes // max(1, len(block)) + 1))[:size_bytes]


def is_body(facts: dict[str, Any], expected: bytes) -> bool:
    """Whether a message that Java received has this body."""
    return bool(facts["size"] == len(expected) and facts["crc"] == zlib.crc32(expected))
