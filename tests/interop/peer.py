"""A client that nobody here wrote, in a process of its own, told what to do from Python.

One order a line on its standard input, a JSON object with a "verb"; one answer a line on its standard output, in order: a JSON
object with a "result", or with "error", "text" and, where there is one, the response "code". Knows no particular client.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class PeerError(Exception):
    """The client raised. ``name`` is the class of the error, ``code`` the response code where it carries one."""

    def __init__(self, name: str, text: str, code: int | None) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text, self.code = name, text, code


class Peer:
    """The process of one client, started in the directory ``home``, where ``errors.log`` has what it prints besides answers."""

    raises: type[PeerError] = PeerError

    def __init__(self, command: Sequence[str], home: Path, environment: Mapping[str, str] | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._errors = open(home / "errors.log", "ab")  # noqa: SIM115 (closed in stop)
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=home, env=environment
        )
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def call(self, verb: str, *, wait_s: float = 60, **order: Any) -> Any:
        """Give one order and return its result. Raises PeerError, or TimeoutError after ``wait_s`` seconds."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **order}).encode() + b"\n")
        self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            raise TimeoutError(f"{verb}: no answer within {wait_s} s") from None
        if not line:
            raise RuntimeError(f"the client's process ended; see {self._errors.name}")
        answer = json.loads(line)
        if "error" in answer:
            raise self.raises(answer["error"], answer.get("text") or "", answer.get("code"))
        return answer.get("result")

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(60)
        self._reader.join(5)
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")
