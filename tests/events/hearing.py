"""A synchronization that keeps what it was told, for tests."""

from __future__ import annotations

from halfmoon.events.transaction import LocalTransaction, Status, Synchronization


class Heard(Synchronization):
    """Keeps what it was told, in order; ``raises`` is raised by the hook of that name."""

    def __init__(self, raises: str = "") -> None:
        self.told: list[str | Status] = []
        self._raises = raises

    @property
    def status(self) -> Status | None:
        """How the transaction ended; None while it runs."""
        ends = [one for one in self.told if isinstance(one, Status)]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def begin(self, transaction: LocalTransaction) -> None:
        self._hear("begin")

    def suspend(self) -> None:
        self._hear("suspend")

    def resume(self) -> None:
        self._hear("resume")

    def before_commit(self) -> None:
        self._hear("before_commit")

    def after_commit(self) -> None:
        self._hear("after_commit")

    def after_completion(self, status: Status) -> None:
        self.told.append(status)
        if self._raises == "after_completion":
            raise RuntimeError(self._raises)

    def _hear(self, name: str) -> None:
        self.told.append(name)
        if self._raises == name:
            raise RuntimeError(name)
