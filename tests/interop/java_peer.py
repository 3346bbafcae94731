"""Apache's Java client in a process of its own, told what to do from Python (see ``java/Peer.java``)."""

from __future__ import annotations

import zlib
from functools import cache
from pathlib import Path
from typing import Any

from tests.interop.jars import JAVA_FLAGS, SHORT_RUN, classes, jars
from tests.interop.peer import Peer, PeerError

NOISE_BLOCK_BYTES = 65536


class JavaError(PeerError):
    """The Java client raised."""


class JavaPeer(Peer):
    """One JVM with the client of a version; ``serialization`` is JSON or ROCKETMQ, for the headers it sends; ``properties`` are
    more of the JVM's."""

    raises = JavaError

    def __init__(self, version: str, home: Path, serialization: str = "JSON", **properties: str) -> None:
        self.version, self.serialization = version, serialization
        (home / "conf").mkdir(parents=True, exist_ok=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")
        command = ["java", "-Xmx384m", f"-Duser.home={home}", f"-Drocketmq.serialize.type={serialization}", *JAVA_FLAGS, *SHORT_RUN]
        command += [f"-Drocketmq.client.logRoot={home}", f"-Drocketmq.home.dir={home}", "-Drocketmq.client.logLevel=WARN"]
        command += ["-Djava.security.manager=allow"]  # commands of the admin tool end with an exit, which must not end this JVM
        command += [f"-D{name}={value}" for name, value in properties.items()]
        command += ["-cp", f"{classes(version)}:{jars(version)}/*", "Peer"]
        super().__init__(command, home)  # there, as consumerStatus writes files where it runs

    def mqadmin(self, *arguments: str, within_ms: int = 50_000) -> str:
        """Run a command of Apache's admin tool and return what it printed, within that time when it would run on for ever."""
        return str(self.call("mqadmin", arguments=list(arguments), within_ms=within_ms))


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
