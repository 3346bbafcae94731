"""A reader of a tutorial, who writes its files and types its commands, in an empty directory. Knows no page.

A block whose first line is ``# path`` is that file; ``# path, at the end`` is added to it, ``# path, instead of: line`` replaces a
line. Of a console block each ``$ `` line is typed, and the lines below it must be in its output, in that order. A comment before
the block says what is otherwise: ``<!-- ends with: 0 1 -->`` has the exit codes, and with ``<!-- again until … -->`` a command is
repeated until it succeeds and shows what it should. There is no shell: ``export``, ``kill %job`` and ``&`` are done here, and
``halfmoon serve``, for which the test's own broker stands, is only read.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

from halfmoon.cli.servers import OPTIONS, read_options, settings_from
from tests.docs.test_examples import Block, blocks
from tests.waiting import until

FILE = re.compile(r"# (?P<path>[\w./-]+)(?:, (?:(?P<end>at the end)|instead of: (?P<line>.+)))?\n")
ENDS_S = 120


class Job(NamedTuple):
    """What was started with ``&``: None for the broker. Its output is a file."""

    process: subprocess.Popen[bytes] | None
    output: Path

    def written(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


class Reader:
    """Follows a page in ``directory``. ``instead`` has texts of the page and what stands for them here, such as addresses."""

    def __init__(self, directory: Path, instead: dict[str, str]) -> None:
        self.directory, self._instead = directory, instead
        self.jobs: list[Job] = []
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.environment = {**os.environ, "PATH": path, "NAMESRV_ADDR": self._here("127.0.0.1:9876"), "COLUMNS": "200"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for job in self.jobs:
            if job.process is not None and job.process.poll() is None:
                job.process.kill()
                job.process.wait()

    def follow(self, page: str) -> None:
        """Do what a page says, from its first block to its last."""
        for block in blocks(page):
            text = self._here(block.text)
            if block.language == "console":
                self._type(block, text)
            elif file := FILE.match(text):
                self._write(file, text)
            else:
                assert block.language == "sh", f"{block.place}: neither a file nor typed"

    def _here(self, text: str) -> str:
        for said, meant in self._instead.items():
            text = text.replace(said, meant)
        return text

    def _write(self, file: re.Match[str], text: str) -> None:
        path = self.directory / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        body = text[file.end() :]
        if file["end"]:
            body = f"{path.read_text()}\n{body}"
        elif file["line"]:
            before = path.read_text()
            assert before.count(f"\n{file['line']}\n") == 1, f"{path} has no such line: {file['line']}"
            body = before.replace(f"{file['line']}\n", body)
        path.write_text(body)

    def _type(self, block: Block, text: str) -> None:
        said = block.note.partition("ends with: ")[2].split()
        for number, typed in enumerate(re.split(r"^\$ ", text, flags=re.M)[1:]):
            command, *shown = typed.splitlines()
            place = f"{block.place}: $ {command}"
            words = shlex.split(command)
            if words[0] == "export":
                self.environment |= dict(word.split("=", 1) for word in words[1:])
            elif words[0] == "kill":
                self._kill(words[1:], shown, place)
            elif words[-1] == "&":
                self._start(words[:-1], shown, place)
            elif block.note.startswith("again until"):
                until(partial(self._succeeds, words, shown), place, within_s=ENDS_S)
            else:
                wrong = self._done(words, int(said[number]) if said else 0, shown)
                assert not wrong, f"{place}\n{wrong}"

    def _succeeds(self, words: list[str], shown: list[str]) -> bool:
        return not self._done(words, 0, shown)

    def _done(self, words: list[str], code: int, shown: list[str]) -> str:
        """Run a command to its end; return what was wrong with it."""
        ended = subprocess.run(
            words,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=ENDS_S,
            stdin=subprocess.DEVNULL,
        )
        written = ended.stdout + ended.stderr
        return "" if ended.returncode == code and in_order(shown, written) else f"exit code {ended.returncode}\n{written}"

    def _start(self, words: list[str], shown: list[str], place: str) -> None:
        output = self.directory / f"job-{len(self.jobs) + 1}.log"
        if words[:2] == ["halfmoon", "serve"]:
            values = read_options(OPTIONS[words[1]], words[2:])
            assert values is not None, place
            settings_from(words[1], values, {})
            self.jobs.append(Job(None, output))
            return
        with output.open("wb") as written:
            process = subprocess.Popen(
                words, cwd=self.directory, env=self.environment, stdout=written, stderr=written, stdin=subprocess.DEVNULL
            )
        job = Job(process, output)
        self.jobs.append(job)
        until(lambda: in_order(shown, job.written()) or process.poll() is not None, place, within_s=ENDS_S)
        assert in_order(shown, job.written()), f"{place}\n{job.written()}"

    def _kill(self, words: list[str], shown: list[str], place: str) -> None:
        job = self.jobs[int(words[-1].removeprefix("%")) - 1]
        assert job.process is not None, place
        assert job.process.poll() is None, f"{place}: it has ended\n{job.written()}"
        job.process.send_signal(signal.SIGKILL if words[0] == "-9" else signal.SIGTERM)
        job.process.wait(ENDS_S)
        assert in_order(shown, job.written()), f"{place}\n{job.written()}"


def in_order(shown: list[str], written: str) -> bool:
    """Say whether a text has these lines, or parts of lines, one after the other."""
    place = 0
    for line in shown:
        place = written.find(line, place)
        if place < 0:
            return False
        place += len(line)
    return True
