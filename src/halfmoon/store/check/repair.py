"""Mends a stopped store: decides from what `fsck` found what is to be done, and does what the next start does not do by itself.

A start rebuilds queues, the key index and the transaction index that are missing, cuts off what lies behind the log's end, and
takes progress back that is ahead (`halfmoon.store.opening`). So a repair puts what is derived and wrong out of its way:

1. `prepare` gives the log the files that it lacks, puts damaged tables, queues and indexes into a folder of its own (`Aside`),
   takes a table's older copy, and marks the directory as not stopped cleanly where the log is damaged: so its end is looked at;
2. somebody starts a broker on the directory and stops it (`halfmoon.programs.repair`);
3. `seal_log` makes the damaged ranges of the log records that are no messages (`halfmoon.store.log.sealing`): after the start,
   which learns from them which queue offsets may have been given out;
4. `set_index_aside` takes the key index away, and another start makes it anew: after that, because it indexes what looks like a
   record though its checksum is wrong.

Each step leaves a directory that a broker can start on, and that the next repair goes on from, whenever the process is killed.
Deletes nothing. Waits for the device.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from halfmoon.errors import StoreError
from halfmoon.hot import FILLER_SIZE
from halfmoon.ports import Disk
from halfmoon.store.check.aside import Aside
from halfmoon.store.check.fsck import Problem, as_in_directory
from halfmoon.store.check.tables import TABLES, saved_copy
from halfmoon.store.checkpoint import CheckpointFile, LastRun, read_last_run
from halfmoon.store.layout import (
    ABORT,
    COMMIT_LOG,
    INDEX,
    JOURNAL,
    REDO_LOG,
    STATE_TABLE,
    TRANSACTION,
    file_offset,
    is_queue_directory,
    is_topic_directory,
    queue_directory,
)
from halfmoon.store.legacy import read_journal
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.log.sealing import Damage, close_file, damage_of, seal
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Inventory, Key
from halfmoon.store.queues.missing import find_queues
from halfmoon.store.settings import StoreSettings

Say = Callable[[str], None]

_IN_QUEUE = re.compile(r"(\S+), queue ([0-9]{1,10})(?:, offset [0-9]+)?")
_IN_LOG = re.compile(r"commitlog/([0-9]{20}), byte ([0-9]+)")
_INDEX_NAME = re.compile(r"[0-9]{17}")
_SHOWN_MAX = 20
"""Ranges and queues that a plan shows by name; of the others it shows the number."""
_FILES_MAX = 4096
"""Files of the log that a repair puts in place of missing ones."""

TABLE_LOSS = {
    "config/topics.json": "permissions and numbers of queues; topics that have messages are made again with what their queues say",
    "config/subscriptionGroup.json": "settings of consumer groups",
    "config/consumerOffset.json": "the progress of all groups: they begin like new ones",
    "config/delayOffset.json": "nothing: the journal has it, or what is due is delivered again",
    "config/timerOffset.json": "nothing: the journal has it, or what is due is delivered again",
    "config/topicTrims.json": "where trimmed topics begin: what was trimmed is delivered again",
    "config/queueLocks.json": "who owns the queues that are consumed in order: two members may consume one queue for 30 s",
    "config/brokerUptime.json": "when the broker did not run: half messages may expire earlier",
}


class Step(NamedTuple):
    """One thing that is wrong: where, why, what will be done, and what is lost by it."""

    place: str
    why: str
    action: str
    lost: str


@dataclass
class Plan:
    """Steps of a repair. ``left`` are problems that it cannot mend."""

    steps: list[Step] = field(default_factory=list)
    left: list[Problem] = field(default_factory=list)
    queues: dict[Key, str] = field(default_factory=dict)
    """Queues that are rebuilt, and what is wrong first."""
    tables: dict[str, str] = field(default_factory=dict)
    damage: list[tuple[int, int, str]] = field(default_factory=list)
    """Ranges of the log: offset, bytes, reason."""
    new_files: list[int] = field(default_factory=list)
    """Where files of the log begin that are missing."""
    short_files: list[int] = field(default_factory=list)
    index: str | None = None
    transactions: str | None = None
    progress: str | None = None
    """A table that is ahead of its queue."""

    @property
    def needed(self) -> bool:
        """Whether there is something to mend."""
        return bool(self.steps)


def plan_repair(disk: Disk, settings: StoreSettings, problems: Iterable[Problem]) -> Plan:
    """Return what to do about what `fsck` found. Changes nothing. Raises OSError."""
    settings, plan = as_in_directory(disk, settings), Plan()
    for problem in problems:
        if problem.certain:
            _sort_in(plan, problem)
    _look_at_log_files(disk, settings, plan)
    for about in (_log_steps, _queue_steps, _other_steps):
        plan.steps += about(disk, settings, plan)
    return plan


def _sort_in(plan: Plan, problem: Problem) -> None:
    """Put a problem to those of its part of the store."""
    place, reason = problem.place, f"{problem.what}: {problem.reason}"
    parts = place.split("/")
    if found := _IN_QUEUE.fullmatch(place):
        plan.queues.setdefault((found[1], int(found[2])), reason)
    elif parts[0] == "consumequeue" and len(parts) >= 3 and is_topic_directory(parts[1]) and is_queue_directory(parts[2]):
        plan.queues.setdefault((parts[1], int(parts[2])), reason)
    elif found := _IN_LOG.fullmatch(place):
        plan.damage.append((int(found[1]) + int(found[2]), problem.size_bytes, problem.reason))
    elif place.startswith(f"{TRANSACTION}/"):
        plan.transactions = plan.transactions or f"{place}: {reason}"
    elif place in TABLES and problem.what in ("table", "gap"):
        plan.tables[place] = problem.reason
    elif place.startswith(("config/", JOURNAL)):
        plan.progress = plan.progress or f"{place}: {reason}"
    elif place.startswith(INDEX):
        plan.index = plan.index or f"{place}: {reason}"
    elif place != COMMIT_LOG:  # the files of the log are looked at below
        plan.left.append(problem)


# ---------------------------------------------------------------- the log's files


def _look_at_log_files(disk: Disk, settings: StoreSettings, plan: Plan) -> None:
    """Find the files of the log that are missing, or too short."""
    size = settings.commit_log_file_bytes
    offsets = [offset for name in disk.list(COMMIT_LOG) if (offset := file_offset(name)) is not None and offset % size == 0]
    sizes = {offset: disk.file_size(_log_path(offset)) for offset in offsets}
    plan.short_files = [offset for offset in offsets if 0 < sizes[offset] < size]
    there = {offset for offset in offsets if sizes[offset]}
    last_run = _last_run(disk)
    written, lost_from = last_run.written_offset, last_run.lost_from
    last = max([*there, (written - 1) // size * size if written else 0])
    if there or written:
        wanted = range(min(there, default=last), last + 1, size)
        missing = (offset for offset in wanted if offset not in there)
        # Names from there on may be lost with the power, and hold nothing that was promised: a start knows what to do.
        plan.new_files = [*islice((offset for offset in missing if lost_from is None or offset < lost_from), _FILES_MAX)]


def _last_run(disk: Disk) -> LastRun:
    return read_last_run(disk, CheckpointFile(disk, read_journal(disk)))


def _log_path(offset: int) -> str:
    return f"{COMMIT_LOG}/{offset:020d}"


def _log_steps(disk: Disk, settings: StoreSettings, plan: Plan) -> Iterator[Step]:
    size = settings.commit_log_file_bytes
    queues = find_queues(disk, settings.queue_file_bytes, noted=True).queues
    for offset in plan.new_files[:_SHOWN_MAX]:
        lost = lost_messages(queues, offset, size)
        yield Step(_log_path(offset), "file: is missing", "an empty file takes its place", lost)
    for offset in plan.short_files[:_SHOWN_MAX]:
        there = disk.file_size(_log_path(offset))
        lost = lost_messages(queues, offset + there, size - there)
        yield Step(_log_path(offset), f"file: has {there} bytes of {size}", "is made as long again, with zeros", lost)
    for start, size_bytes, reason in plan.damage[:_SHOWN_MAX]:
        place = f"{_log_path(start - start % size)}, bytes {start % size} to {start % size + size_bytes}"
        action = "what can be read of it is copied aside; readers find a record there that is no message, or the end of the log"
        yield Step(place, f"record: {reason}", action, lost_messages(queues, start, size_bytes))
    more = sum(max(0, len(listed) - _SHOWN_MAX) for listed in (plan.new_files, plan.short_files, plan.damage))
    if more:
        yield Step(COMMIT_LOG, f"{more} more places like these", "as above", "see what fsck lists")


def lost_messages(queues: Mapping[Key, ConsumeQueue], start: int, size_bytes: int) -> str:
    """Return, in words, the messages whose queue entries point into a range of the log."""
    lost = []
    for (topic, queue_id), queue in sorted(queues.items()):
        first, end = queue.end_below(start), queue.end_below(start + size_bytes)
        count = sum(queue.entry(offset)[1] != FILLER_SIZE for offset in range(first, min(end, first + 1_000_000)))
        if count:
            offsets = f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
            lost.append(f"{topic}, queue {queue_id}, {offsets} ({count} message{'s' if count > 1 else ''})")
    if not lost:
        return "no message that a queue has"
    more = len(lost) - _SHOWN_MAX
    return "; ".join(lost[:_SHOWN_MAX]) + (f"; and of {more} queues more" if more > 0 else "")


# ---------------------------------------------------------------- what is derived


def _queue_steps(disk: Disk, settings: StoreSettings, plan: Plan) -> Iterator[Step]:
    for (topic, queue_id), why in islice(plan.queues.items(), _SHOWN_MAX):
        yield Step(f"consumequeue/{topic}/{queue_id}", why, "its files are set aside, and it is rebuilt from the log", "nothing")
    if len(plan.queues) > _SHOWN_MAX:
        yield Step("consumequeue", f"{len(plan.queues) - _SHOWN_MAX} more queues", "as above", "nothing")


def _other_steps(disk: Disk, settings: StoreSettings, plan: Plan) -> Iterator[Step]:
    if plan.index:
        yield Step(INDEX, plan.index, "its files are set aside, and it is rebuilt from the log", "nothing")
    if plan.transactions:
        action = "state table and redo log are set aside and rebuilt from the log"
        yield Step(TRANSACTION, plan.transactions, action, "nothing: the log says which half messages are decided")
    for path, why in plan.tables.items():
        kept = saved_copy(disk, path) is not None
        instead = f"{path}.bak, saved before it, takes its place" if kept else "a broker begins without it"
        yield Step(path, f"table: {why}", f"is set aside; {instead}", "what changed since then" if kept else TABLE_LOSS[path])
    if plan.progress:
        yield Step("config", plan.progress, "is taken back to the end of its queue", "nothing")


def prepare(disk: Disk, settings: StoreSettings, plan: Plan, aside: Aside) -> None:
    """Do what a start does not do by itself, but for the key index.

    Waits for the device; raises OSError. StoreError, before anything is changed: a file of the log that was missing is there.
    """
    settings = as_in_directory(disk, settings)
    for path in map(_log_path, plan.new_files):
        if disk.exists(path) and disk.file_size(path):  # put back meanwhile: what is in it is all there is of it
            raise StoreError(f"{path} was changed since it was checked: it is there now. Nothing is mended; start the repair again")
    _complete_log(disk, settings, plan, aside.say)
    for path in plan.tables:
        _mend_table(disk, path, aside)
    if plan.queues:
        _set_queues_aside(disk, plan, aside)
    if plan.transactions:
        # The watermark stays: without its files a start rebuilds them, and knows from it what was settled.
        for directory in (STATE_TABLE, REDO_LOG):
            for name in disk.list(directory):
                if file_offset(name) is not None:
                    aside.move(f"{directory}/{name}")
    if plan.damage and disk.read(ABORT) is None:
        disk.save(ABORT, (disk.boot_id() or "").encode(), keep_previous=False)


def _complete_log(disk: Disk, settings: StoreSettings, plan: Plan, say: Say) -> None:
    segments = CommitLog(disk, settings.commit_log_file_bytes, bytes(8), settings.message_bytes_max).segments
    last = max(filter(None, map(file_offset, disk.list(COMMIT_LOG))), default=0)
    for offset in plan.short_files:
        if offset == last:
            continue  # a start does it, and knows then that its end was cut off
        disk.resize(_log_path(offset), segments.file_bytes)
        say(f"{_log_path(offset)} is as long again as the others")
    # A file that is there without bytes is made anew: its name is in the way of nothing.
    for offset in plan.new_files:
        disk.create(_log_path(offset), segments.file_bytes).close()
        disk.sync_directory(COMMIT_LOG)
    if plan.new_files:
        segments.load()
        written = _last_run(disk).written_offset
        for offset in plan.new_files:
            if max(segments.last or 0, written) >= offset + segments.file_bytes:  # else the next message goes into it
                close_file(segments, offset)
            say(f"{_log_path(offset)} is there again, and empty")


def _mend_table(disk: Disk, path: str, aside: Aside) -> None:
    kept = saved_copy(disk, path)
    if disk.exists(path):
        aside.move(path)
    if kept is not None:
        disk.save(path, kept, keep_previous=False)
    elif disk.exists(f"{path}.bak"):
        aside.move(f"{path}.bak")


def _set_queues_aside(disk: Disk, plan: Plan, aside: Aside) -> None:
    journal = read_journal(disk)
    try:
        journal.begin(again=True)
        Inventory(journal).begin_rebuild(plan.queues)  # first: what is left of a queue must not be taken for all there was
    finally:
        journal.close()
    for key in plan.queues:
        directory = queue_directory(*key)
        for name in disk.list(directory):
            if file_offset(name) is not None:
                aside.move(f"{directory}/{name}")


# ---------------------------------------------------------------- after the start


def set_index_aside(disk: Disk, aside: Aside) -> None:
    """Take the key index away, so that a start makes it anew. Waits for the device; raises OSError."""
    for name in filter(_INDEX_NAME.fullmatch, disk.list(INDEX)):
        aside.move(f"{INDEX}/{name}")


def seal_log(disk: Disk, settings: StoreSettings, aside: Aside) -> list[Damage]:
    """Seal what is damaged inside the log; return what cannot be. Reads all of the log, and waits; raises OSError, StoreError."""
    settings = as_in_directory(disk, settings)
    log = CommitLog(disk, settings.commit_log_file_bytes, bytes(8), settings.message_bytes_max)
    log.segments.load()
    left, counts = [], Counter[bool]()
    for damage in damage_of(log, _last_run(disk).written_offset):
        aside.copy(log.segments, damage.start, damage.size_bytes)
        sealed = seal(log.segments, damage)
        counts[sealed] += 1
        if not sealed:
            left.append(damage)
    if counts:
        aside.say(f"{counts[True]} damaged ranges of the log are sealed, {counts[False]} are too short for that")
    return left
