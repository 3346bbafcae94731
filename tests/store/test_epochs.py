"""Two logs agree up to exactly where their tables of epochs say, and a directory never changes who it is."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from halfmoon.errors import PeerError, StoreError, UsageError
from halfmoon.store import epochs
from halfmoon.store.epochs import PATH, ROWS_MAX, TEXT_LENGTH_MAX, Common, EpochRow, Epochs, common_end, parse
from halfmoon.store.layout import RESTORED
from halfmoon.testing.disk import SimDisk

A, B, C = "a" * 32, "b" * 32, "c" * 32


def rows(*table: tuple[int, int, str]) -> tuple[EpochRow, ...]:
    return tuple(EpochRow(*row) for row in table)


def test_a_directory_keeps_its_id_and_its_rows_over_restarts_and_power_losses() -> None:
    disk = SimDisk(Random(1))
    first = Epochs.load(disk, Random(1))
    first.begin(1, 0)
    first.begin(3, 800)
    disk.crash(power=True)
    second = Epochs.load(disk, Random(2))
    assert (second.member, second.rows) == (first.member, rows((1, 0, first.member), (3, 800, first.member)))
    assert Epochs.load(SimDisk(Random(1)), Random(2)).member != first.member


def test_a_directory_that_is_renamed_is_another_member_with_the_same_log() -> None:
    disk = SimDisk(Random(1))
    was = Epochs.load(disk, Random(1))
    was.begin(1, 0)
    Epochs.load(disk, Random(2)).rename(Random(3))
    disk.crash(power=True)
    again = Epochs.load(disk, Random(4))
    assert again.rows == was.rows
    assert again.member != was.member


def test_a_restored_backup_is_another_member_with_the_same_log() -> None:
    disk = SimDisk(Random(1))
    original = Epochs.load(disk, Random(1))
    original.begin(1, 0)
    copy = disk.backup()
    restored = Epochs.load(copy, Random(2))
    assert (restored.member != original.member, restored.rows) == (True, original.rows)
    copy.remove(RESTORED)  # a broker has started
    assert Epochs.load(copy, Random(3)).member == restored.member


@pytest.mark.parametrize("how", ["a broker has started", "it followed a master", "it was started by an older version"])
def test_a_backup_of_a_restored_directory_that_was_used_is_another_member_again(how: str) -> None:
    disk = SimDisk(Random(1))
    original = Epochs.load(disk, Random(1))
    original.begin(1, 0)
    used = disk.backup()
    restored = Epochs.load(used, Random(2))
    if how == "it followed a master":
        restored.adopt(original.rows)
    else:
        used.remove(RESTORED)
        if how == "a broker has started":
            restored.started()
        else:
            Epochs.load(used, Random(3))
    assert Epochs.load(used.backup(), Random(4)).member not in (restored.member, original.member)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"\xff", b'{"member":"A","rows":[]}', b'{"member":"%s"}' % A.encode(),
        b'{"member":"%s","rows":[[1,0,"x"]]}' % A.encode(), b'{"member":"%s","rows":[[1,"0","%s"]]}' % (A.encode(), A.encode()),
        b'{"member":"%s","rows":[[2,0,"%s"],[1,0,"%s"]]}' % ((A.encode(),) * 3), b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_table_is_refused_and_left_as_it_is(data: bytes) -> None:
    disk = SimDisk(Random(1))
    disk.save(PATH, data)
    with pytest.raises(StoreError, match=r"epochs\.json is damaged.*Put back a copy"):
        Epochs.load(disk, Random(1))
    assert disk.read(PATH) == data


def test_an_epoch_is_higher_than_all_before_even_those_whose_records_are_gone() -> None:
    table = Epochs.load(SimDisk(Random(1)), Random(1))
    table.begin(5, 800)
    for epoch, start in [(5, 900), (4, 900), (2**63, 900), (6, -1), (6, 2**63)]:
        with pytest.raises(UsageError, match=f"epoch.* {epoch}"):
            table.begin(epoch, start)
    table.begin(6, 600)  # the end of the log was lost, and the epoch that began behind it with it
    assert table.rows == rows((6, 600, table.member))
    with pytest.raises(UsageError, match="number 0"):
        Epochs.load(SimDisk(Random(1)), Random(1)).begin(0, 0)


@pytest.mark.parametrize("change", [lambda table: table.begin(2, 100), lambda table: table.adopt(rows((1, 0, B)))])
def test_a_table_that_cannot_be_saved_does_not_change(change: Callable[[Epochs], None]) -> None:
    disk = SimDisk(Random(1))
    table = Epochs.load(disk, Random(1))
    table.begin(1, 0)
    before = table.rows, disk.read(PATH)
    disk.full = True
    with pytest.raises(OSError) as caught:
        change(table)
    assert caught.value.errno == errno.ENOSPC
    assert (table.rows, disk.read(PATH)) == before


def test_a_slave_has_the_rows_of_its_master_and_an_id_of_its_own() -> None:
    disk = SimDisk(Random(1))
    table = Epochs.load(disk, Random(1))
    member, taken = table.member, rows((1, 0, A), (2, 0, B))
    table.adopt(taken)
    disk.crash(power=True)
    table = Epochs.load(disk, Random(2))
    assert (table.member, table.rows) == (member, taken)
    with pytest.raises(PeerError, match="cannot follow"):
        table.adopt([(2, 0, A), (2, 0, B)])
    assert table.rows == taken


def test_the_text_of_a_table_is_read_back() -> None:
    table = Epochs.load(SimDisk(Random(1)), Random(1))
    assert (table.text(), parse("")) == ("", ())
    table.adopt([(1, 0, A), (2, 8192, B)])
    assert table.text() == f"1:0:{A},2:8192:{B}"
    assert parse(table.text()) == table.rows


def test_the_longest_table_fits_the_text_and_the_oldest_row_goes_for_a_new_one() -> None:
    table = Epochs.load(SimDisk(Random(1)), Random(1))
    top = 2**63 - 1
    full = [(top - ROWS_MAX + number, top, A) for number in range(ROWS_MAX)]
    table.adopt(full)
    assert parse(table.text()) == table.rows
    assert len(table.text()) == TEXT_LENGTH_MAX - 1
    table.begin(top, top)
    assert table.rows == rows(*full[1:], (top, top, table.member))
    with pytest.raises(PeerError, match="1001 rows"):
        table.adopt([(number + 1, 0, A) for number in range(ROWS_MAX + 1)])


@pytest.mark.parametrize(
    "text",
    [
        ",", "1:0", f"0:0:{A}", f"01:0:{A}", f"1:00:{A}", f"-1:0:{A}", f"1:-1:{A}", f"1:0:{A[1:]}", f"1:0:{A.upper()}", f"1:0:{A},",
        f"1:0:{A}\n", f"1 :0:{A}", f"٢:0:{A}", f"1:0:{A},1:0:{B}", f"1:9:{A},2:8:{B}", f"9223372036854775808:0:{A}",
        f"1:9223372036854775808:{A}", "x" * (TEXT_LENGTH_MAX + 1), "," * TEXT_LENGTH_MAX,
    ],
)  # fmt: skip
def test_a_text_that_is_no_table_is_refused(text: str) -> None:
    with pytest.raises(PeerError) as caught:
        parse(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "end"),
    [
        (rows((1, 0, A)), 700, rows((1, 0, A)), 500, 500),  # equal tables, mine is ahead
        (rows((1, 0, A)), 500, rows((1, 0, A)), 700, 500),
        (rows((1, 0, A)), 700, rows((1, 0, A), (2, 500, B)), 900, 500),  # I was master, and another took over
        (rows((1, 0, A)), 400, rows((1, 0, A), (2, 500, B)), 900, 400),
        (rows((1, 0, A), (2, 600, A)), 700, rows((1, 0, A), (3, 500, B), (4, 800, C)), 900, 500),
        (rows((1, 0, A), (2, 500, A)), 700, rows((1, 0, A), (2, 500, B)), 700, 500),  # two masters took one number
        (rows((1, 0, A), (2, 500, A)), 700, rows((1, 0, A), (2, 600, A)), 700, 500),
        (rows((1, 0, A), (2, 500, B), (3, 500, C)), 700, rows((1, 0, A), (2, 500, B)), 900, 500),  # epoch 2 is empty here
        (rows((1, 0, A), (2, 500, B)), 300, rows((1, 0, A), (2, 500, B)), 900, 300),  # rows that came before their records
        (rows((4, 4096, A)), 5000, rows((1, 0, B), (4, 4096, A)), 6000, 5000),  # one of them has dropped rows
        (rows((1, 0, A)), 0, rows((1, 0, A)), 0, 0),
    ],
)  # fmt: skip
def test_the_common_end_is_where_either_log_leaves_the_last_epoch_that_both_know(
    mine: tuple[EpochRow, ...], my_end: int, theirs: tuple[EpochRow, ...], their_end: int, end: int
) -> None:
    found = common_end(mine, my_end, theirs, their_end)
    assert (found.end, found.row is not None) == (end, True)
    assert common_end(theirs, their_end, mine, my_end).end == end


@pytest.mark.parametrize(("mine", "theirs"), [((), ()), (rows((1, 0, A)), ()), (rows((1, 0, A)), rows((1, 0, B)))])
def test_logs_without_an_epoch_in_common_have_nothing_in_common_that_is_known(
    mine: tuple[EpochRow, ...], theirs: tuple[EpochRow, ...]
) -> None:
    assert common_end(mine, 700, theirs, 700) == Common(None, 0)


# ---------------------------------------------------------------- histories


def same(one: list[int], other: list[int]) -> int:
    """Return how many bytes two logs have in common from their begin on."""
    return next((at for at, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))


class Member:
    """A directory: its table, and its log, of which each byte stands for itself."""

    def __init__(self, seed: int) -> None:
        self.disk, self.seed = SimDisk(Random(seed)), seed
        self.log: list[int] = []
        self.restart()

    def restart(self) -> None:
        self.disk.crash(power=True)
        self.epochs = Epochs.load(self.disk, Random(self.seed))


class History:
    """Three members, of which one is master, or two think that they are."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.members = [Member(3 * seed + number) for number in range(3)]
        self.epoch = self.bytes = 0
        self.acknowledged: list[int] = []
        """What the master and a slave had both, as long as every master had it."""
        self.become_master(self.members[0])

    def run(self) -> None:
        steps = (self.write, self.write, self.follow, self.follow, self.take_over, self.lose_the_end, self.stay_master)
        for _ in range(60):
            self.random.choice(steps)()
            self.compare()

    def become_master(self, member: Member) -> None:
        self.epoch += self.random.choice([1, 1, 3])
        member.epochs.begin(self.epoch, len(member.log))
        self.master = member
        del self.acknowledged[same(self.acknowledged, member.log) :]

    def write(self, member: Member | None = None) -> None:
        for _ in range(self.random.choice([0, 1, 5, 20])):
            self.bytes += 1
            (member or self.master).log.append(self.bytes)

    def follow(self) -> None:
        """Let a member follow the master, and stop anywhere in it."""
        slave, master = self.random.choice(self.members), self.master
        if slave is master:
            return
        common = common_end(slave.epochs.rows, len(slave.log), master.epochs.rows, len(master.log))
        had = [byte for byte in self.acknowledged if byte in slave.log]
        self.cut(slave, common.end)
        assert slave.log[: len(had)] == had, "a byte that both have acknowledged is cut"
        if self.random.random() < 0.2:
            slave.restart()
            return
        slave.epochs.adopt(parse(master.epochs.text()))
        self.compare()
        start = len(slave.log)
        slave.log += master.log[start : start + self.random.choice([0, 3, 1000])]
        self.acknowledged = max(self.acknowledged, slave.log[:], key=len)

    def cut(self, member: Member, end: int) -> None:
        del member.log[end:]

    def take_over(self) -> None:
        """Let another member become master: one that has all that was acknowledged, or now and then any."""
        others = [member for member in self.members if member is not self.master]
        whole = [member for member in others if member.log[: len(self.acknowledged)] == self.acknowledged]
        candidates = others if self.random.random() < 0.1 else whole
        if not candidates:
            return
        late = self.master
        self.become_master(self.random.choice(candidates))
        self.write(late)  # it has not heard of it yet, and nobody acknowledges that

    def stay_master(self) -> None:
        """Restart the master, which stays one."""
        self.master.restart()
        self.become_master(self.master)

    def lose_the_end(self) -> None:
        """Let a power loss take the end of a log."""
        member = self.random.choice(self.members)
        if self.random.random() < 0.3:
            del member.log[max(0, len(member.log) - self.random.choice([1, 4, 30])) :]
            member.restart()
            del self.acknowledged[same(self.acknowledged, member.log) :]
            if member is self.master:
                self.become_master(member)

    def compare(self) -> None:
        for one in self.members:
            for other in self.members:
                common = common_end(one.epochs.rows, len(one.log), other.epochs.rows, len(other.log))
                assert common.end == same(one.log, other.log), "the logs begin to differ elsewhere than the tables say"


def histories(count: int) -> None:
    for seed in range(count):
        History(seed).run()


def test_the_common_end_is_exactly_where_two_logs_begin_to_differ() -> None:
    histories(150)


FAULTS = {
    "ends_of_one": lambda patch: patch(epochs, "_end_of", lambda rows, place, log_end: log_end),
    "first_in_common": lambda patch: patch(epochs, "reversed", iter),
    "no_adoption": lambda patch: patch(Epochs, "adopt", lambda self, rows: None),
    "no_cut": lambda patch: patch(History, "cut", lambda self, slave, end: None),
    "no_epoch_at_a_restart": lambda patch: patch(History, "stay_master", lambda self: self.cut(self.master, -3)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))
    with pytest.raises(AssertionError):
        histories(60)


def test_what_a_power_loss_may_have_taken_is_told_by_how_the_last_run_reported() -> None:
    disk = SimDisk(Random(1))
    for was_synced, loses_power, lost in ((False, False, False), (True, True, True), (True, True, False), (False, True, False)):
        epochs = Epochs.load(disk, Random(2))
        epochs.found()
        epochs.begin_run(lost_power=loses_power, sync_flush=was_synced, pair="c/b")
        assert (epochs.lost, Epochs.load(disk, Random(3)).lost) == (lost, lost)


def test_a_loss_is_known_until_everything_is_there_again() -> None:
    disk = SimDisk(Random(1))
    Epochs.load(disk, Random(2)).begin_run(lost_power=True, sync_flush=False, pair="c/b")
    Epochs.load(disk, Random(2)).begin_run(lost_power=False, sync_flush=True, pair="c/b")
    epochs = Epochs.load(disk, Random(2))
    assert epochs.lost
    epochs.found()
    assert not Epochs.load(disk, Random(2)).lost


def test_a_restored_backup_has_reported_nothing_that_a_power_loss_could_take() -> None:
    disk = SimDisk(Random(1))
    Epochs.load(disk, Random(1)).begin(1, 0)
    copy = disk.backup()
    restored = Epochs.load(copy, Random(2))
    restored.begin_run(lost_power=True, sync_flush=False, pair="c/b")
    assert (restored.is_restored, restored.lost) == (True, False)


def test_a_restored_backup_that_follows_a_master_is_a_copy_like_others() -> None:
    disk = SimDisk(Random(1))
    original = Epochs.load(disk, Random(1))
    original.begin(1, 0)
    copy = disk.backup()
    restored = Epochs.load(copy, Random(2))
    restored.adopt(original.rows)
    assert (restored.is_restored, copy.exists(RESTORED)) == (False, False)
    copy.crash(power=True)
    again = Epochs.load(copy, Random(3))
    assert (again.member, again.is_restored, copy.exists(RESTORED)) == (restored.member, False, False)
