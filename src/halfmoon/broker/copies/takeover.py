"""`Takeover`: the service by which a slave takes the place of a running Apache master (31061), without a loss.

The master is made a slave by its settings, and from then on its store refuses everything: sends, half messages, decisions, delayed
messages that are due. So its log stands still, and can be copied and compared to its end. The program then closes the slave and
starts a broker on its directory. Until that broker serves, a failure gives the master its role back.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from halfmoon.broker.copies.asking import answer, end_of_log
from halfmoon.broker.copies.standby import Master, NotCopied, Standby
from halfmoon.broker.names import TIMER_TOPIC
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.service import Service
from halfmoon.effects import Op, sleep, steady
from halfmoon.errors import BrokerError, HalfmoonError
from halfmoon.instant import Instant, Steady
from halfmoon.wire.bodies import config_text, parse_config_text
from halfmoon.wire.headers.admin import GetBrokerConfig, TakeOver, UpdateBrokerConfig

log = logging.getLogger("halfmoon.broker")

TAKEOVER = "takeover"
"""Name of the state in the runtime information; a state that begins with `FAILED` is the last one."""
FAILED = "failed: "
LACKED_BYTES_MAX = 1024 * 1024
"""A slave that lacks more does not take over: the master would be without writes for too long."""
EQUAL_MS = 5_000
"""Longest wait for both logs to be equal, once the master takes no writes."""
SETTLE_MS = 200
"""Time for which the end of the log must not move: a write that had passed the master's check is appended within it."""
LOOK_MS = 20
"""Pause between two looks at the end of the log."""
GIVE_BACK_TRIES, GIVE_BACK_PAUSE_MS = 10, 1_000
"""Attempts to make the old master the master again, and the pause between two."""


class Stopped(NamedTuple):
    """A master whose writes are stopped: where, since when, and the settings that make it a master again."""

    address: str
    at: Steady
    settings: Mapping[str, str]


class Takeover(Service):
    """The change of one slave to the master. ``is_done``: the program closes the slave and starts a broker on its directory."""

    def __init__(self, standby: Standby) -> None:
        self._standby, self.state, self.is_done = standby, "", False
        self.stopped: Stopped | None = None

    def handlers(self) -> Handlers:
        """Return the handler of 31061."""
        return {TakeOver: self.begin}

    def texts(self, now: Instant) -> Mapping[str, str]:
        """Return the state, for the runtime information."""
        return {TAKEOVER: self.state}

    def begin(self, request: Request) -> Reply:
        """Have the slave take over with its next look at the master. Raises BrokerError."""
        why = self._standby.unready()
        if why is None and self.state and not self.state.startswith(FAILED):
            why = f"it does so already: {self.state}"
        if why is not None:
            raise BrokerError(f"this slave cannot take over: {why}")
        self.state, self._standby.next_operation = "begins", self.run
        return Reply()

    def run(self) -> Op[bool]:
        """Stop the master's writes, and wait until this slave has everything. After a failure the master has its role again.

        Return whether the slave goes on.
        """
        try:
            master = yield from self._standby.ask()
            self._check(master)
            yield from self._standby.copy_tables(master.address)  # most of them need no second copy
            yield from self._check_timer(master)
            yield from self._stop_writes(master)
            yield from self._equal(master)
        except HalfmoonError as exc:
            return (yield from self.give_back(str(exc)))
        self.state, self.is_done = "becomes the master", True
        return False

    def give_back(self, reason: str) -> Op[bool]:
        """Make the master a master again, if it is none, and go on as its slave: return True."""
        stopped, self.is_done = self.stopped, False
        log.warning("takeover failed: broker=%s reason=%s", self._standby.settings.name, reason)
        for _ in range(GIVE_BACK_TRIES if stopped is not None else 0):
            assert stopped is not None
            try:
                yield from answer(stopped.address, UpdateBrokerConfig(), config_text(stopped.settings))
            except HalfmoonError as exc:
                log.warning("the master has not got its role back: address=%s error=%s", stopped.address, exc)
                self.state = f"{reason}; {stopped.address} takes no writes"
                yield from sleep(GIVE_BACK_PAUSE_MS)
                continue
            log.warning("the master has its role back: address=%s", stopped.address)
            self.stopped, self.state = None, f"{FAILED}{reason}"
            return True
        remedy = "" if stopped is None else f"; {stopped.address} takes no writes: {_remedy(stopped)}"
        self.state = f"{FAILED}{reason}{remedy}"
        return True

    def give_back_first(self, stopped: Stopped, reason: str) -> None:
        """Have a slave begin with that, after a broker that did not start on its directory."""
        self.stopped, self.state = stopped, "gives the master its role back"
        self._standby.next_operation = partial(self.give_back, reason)

    def _check(self, master: Master) -> None:
        """Raise NotCopied for a master that cannot be replaced, or not yet."""
        lacked = master.end_offset - self._standby.store.end_offset
        if master.is_ours:
            raise NotCopied(f"{master.address} is a broker of Halfmoon: pairs change their master, see --lease")
        if lacked > LACKED_BYTES_MAX or not self._standby.following.is_connected:
            raise NotCopied(f"this slave lacks {lacked:,} bytes: wait until it has nearly everything")

    def _check_timer(self, master: Master) -> Op[None]:
        """Have the progress of the master's timer, if it has one. Raises NotCopied where messages would be delivered again."""
        timer, began = self._standby.timer, (yield from steady())
        yield from timer.ask(master.address)
        while timer.waits:
            self._go_on((yield from steady()) - began)
            yield from sleep(LOOK_MS)
            timer.settle()
        if (reason := (yield from timer.obstacle())) is not None:
            raise NotCopied(f"messages for a point in time ({TIMER_TOPIC}) would be delivered again: {reason}")

    def _stop_writes(self, master: Master) -> Op[None]:
        """Make the master a slave, which its settings file keeps: it comes back as one of the new master."""
        config = parse_config_text((yield from answer(master.address, GetBrokerConfig())).body)
        keys = ("brokerRole", "brokerId", "slaveReadEnable", "brokerPermission")
        if config.get("brokerRole") == "SLAVE" or any(key not in config for key in keys):
            raise NotCopied(f"{master.address} does not say that it is a master: brokerRole={config.get('brokerRole')}")
        now = Steady((yield from steady()))
        self.state = "stops the writes of the master"
        self.stopped = stopped = Stopped(master.address, now, {key: config[key] for key in keys})
        log.warning("takeover: %s takes no writes from now on; should this process be killed before it is the master: %s",
                    master.address, _remedy(stopped))  # fmt: skip
        slave = {"brokerRole": "SLAVE", "brokerId": str(self._standby.settings.broker_id or 1), "slaveReadEnable": "true"}
        yield from answer(master.address, UpdateBrokerConfig(), config_text(slave))
        refusing = parse_config_text((yield from answer(master.address, GetBrokerConfig())).body)
        if {key: refusing.get(key) for key in slave} != slave:
            raise NotCopied(f"{master.address} did not become a slave: brokerRole={refusing.get('brokerRole')}")

    def _equal(self, master: Master) -> Op[None]:
        """Wait until both logs are equal, compare them, and copy the tables. Raises HalfmoonError."""
        standby, began, last, since = self._standby, (yield from steady()), -1, 0
        self.state = "waits for the end of the log"
        while True:
            end, now = (yield from end_of_log(master.address)), (yield from steady())
            if end != last or end != standby.store.end_offset:
                last, since = end, now
            if now - since >= SETTLE_MS:
                log.info("takeover: the master's log ends at %d, and was copied after %d ms", end, since - began)
                break
            self._go_on(now - began)
            yield from sleep(LOOK_MS)
        yield from standby.compare(master._replace(end_offset=end))
        yield from standby.copy_tables(master.address)
        while not standby.is_saved:
            self._go_on((yield from steady()) - began)
            yield from sleep(LOOK_MS)
        after = yield from end_of_log(master.address)
        if not end == after == standby.store.end_offset:
            raise NotCopied(f"the log of {master.address} grew from {end} to {after} although it takes no writes")

    def _go_on(self, waited_ms: int) -> None:
        """Raise NotCopied where waiting has no sense any more."""
        if not self._standby.following.is_connected or self._standby.store.failure is not None:
            raise NotCopied(self._standby.unready() or "not connected to the master")
        if waited_ms > EQUAL_MS:
            raise NotCopied(f"this slave did not have everything within {EQUAL_MS / 1000:g} s")


def _remedy(stopped: Stopped) -> str:
    """Return the commands that make a master a master again."""
    pairs = ((key, stopped.settings[key]) for key in ("brokerRole", "slaveReadEnable", "brokerId", "brokerPermission"))
    return "; ".join(f"mqadmin updateBrokerConfig -b {stopped.address} -k {key} -v {value:.40}" for key, value in pairs)
