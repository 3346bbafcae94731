"""`Copies`: the service for slaves of this broker: their state for monitoring, and the core behind their port."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from random import Random

from halfmoon.broker.context import Context
from halfmoon.broker.copies.admission import Admission
from halfmoon.broker.copies.feeding import SLAVES_MAX, Feeding
from halfmoon.broker.copies.states import States
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.pairs.lease import Lease
from halfmoon.broker.pairs.pair import Pair
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.send.pending_replies import refused
from halfmoon.broker.service import Service
from halfmoon.broker.settings import FOLLOWER_TIMEOUT_MS, BrokerRole
from halfmoon.errors import BrokerError
from halfmoon.instant import Instant, Steady
from halfmoon.metrics import Samples
from halfmoon.settings import forms
from halfmoon.store.epochs import MEMBER, Epochs
from halfmoon.wire.bodies import CopiesState, SlaveState, to_json
from halfmoon.wire.headers.admin import GetBrokerHaStatus, SwitchMaster, TakeOver

log = logging.getLogger("halfmoon.broker")

EPOCHS = "copiesEpochs"
"""Name of the epochs in the runtime information. Who gives them sends slaves of ours everything that they need."""
SPARE = "a spare: the pair has two members"
"""State of a third member."""
UNWRITABLE = "the lease cannot be written now ({}), so nobody could take over: mend it first"
"""Refusal of a switch."""
PAIR, PAIR_EPOCH = "pairState", "pairEpoch"
"""Names of the state of a pair, and of its epoch, in the runtime information; absent where there is none."""


class Copies(Service):
    """The slaves of one broker. ``feeding`` is the core that sends them the log; replies of a SYNC_MASTER wait for it."""

    def __init__(self, context: Context, now: Instant, lease: Lease | None = None) -> None:
        settings, store = context.settings, context.store
        states = States(lambda: store.end_offset, context.tables, store.journal)
        secret = b"" if context.access is None else context.random.randbytes(32)
        admission = Admission(settings, now.steady, context.access, secret)
        self._store, self.feeding = store, Feeding(settings, store, states, admission, now)
        self.epochs = _begun(context, lease)
        self.pair: Pair | None = None
        self.problem: str | None = None
        """Problem of the lease of a pair; None: there is none."""
        self.is_switching = False
        """An operator wants the follower to take over: the program finds out whether that is possible, and answers."""
        self._switch: Request | None = None
        self._addresses: dict[str, str] = {}
        """Where members are reached, by their ids, as they say: their connections come from other ports."""
        self._pending_replies = context.pending_replies
        if lease is not None:
            follower_ms = settings.slave_timeout_ms or FOLLOWER_TIMEOUT_MS
            self.pair = Pair(lease, self.feeding, store, follower_ms, settings.lease_ms, settings.copies_min)
            self.feeding.pair = context.pending_replies.states = self.pair
        self._settings = settings
        self._is_waited_for = settings.role is BrokerRole.SYNC_MASTER and settings.copies_wanted > 1
        if self._is_waited_for:
            context.pending_replies.slaves = self.feeding

    @property
    def fault(self) -> str | None:
        """Return why sends are not copied although they should be; None: they are, or need not be."""
        if self.pair is not None:
            is_told = self.pair.is_complete or self._store.copies_refusal is not None
            alone = None if is_told else "the pair is not complete: there is no second copy"
            problem = None if self.problem is None else f"the lease of the pair: {self.problem}"
            return "; ".join(filter(None, (alone, problem))) or None
        if not self._is_waited_for or not self.feeding.is_behind:
            return None
        wanted = self._settings.copies_wanted - 1
        return f"sends are not copied: {self.feeding.count} of {wanted} slaves are connected and not too far behind"

    def handlers(self) -> Handlers:
        """Return the handlers of 907, 31060 and 31061."""
        return {GetBrokerHaStatus: self.state, SwitchMaster: self.switch, TakeOver: self.take_over}

    def take_over(self, request: Request) -> Reply:
        """Refuse: a slave takes over. Raises BrokerError."""
        raise BrokerError("this broker is the master already")

    def switch(self, request: Request) -> Reply | None:
        """Have the program give the lease to the follower; it answers with `switched`. Raises BrokerError."""
        pair, why = self.pair, None
        if pair is None:
            why = "it is not in a pair"
        elif not pair.is_complete:
            why = "the pair is not complete: nobody else has everything; start the follower, and wait until it follows"
        elif not any(slave.member in pair.lease.others for slave in self.feeding.slaves.values()):
            why = "the follower is not connected: start it, or look at its log"
        elif pair.lease.problem is not None:
            why = UNWRITABLE.format(pair.lease.problem)
        elif self.is_switching:
            why = "it does so already"
        if why is not None:
            raise BrokerError(f"this broker cannot give up its role: {why}")
        self.is_switching, self._switch = True, request
        return None

    def switched(self, why_not: str | None) -> None:
        """Answer the operator who wants the follower to take over: it will, or why it cannot."""
        request, self._switch, self.is_switching = self._switch, None, False
        if why_not is not None:
            log.warning("this broker goes on as the master, although its follower was to take over: %s", why_not)
        if request is not None:
            reply = Reply() if why_not is None else refused(BrokerError(f"this broker cannot give up its role: {why_not}"))
            self._pending_replies.reply_now(request, reply)

    def state(self, request: Request) -> Reply:
        """Return which slaves copy the log, and how far; note the address of a member that asks."""
        self._note_address(request.header(GetBrokerHaStatus))
        slaves = [
            SlaveState(
                addr=each.remote, slave_ack_offset=each.copied_offset, diff=each.behind_bytes, in_sync=each.is_in_sync,
                transferred_byte_in_second=each.bytes_per_second, transfer_from_where=each.sent_offset, behind_ms=each.behind_ms,
            )
            for each in self.feeding.statuses(request.now.steady)
        ]  # fmt: skip
        count = sum(slave.in_sync for slave in slaves)
        state = CopiesState(
            master_commit_log_max_offset=self._store.end_offset, in_sync_slave_nums=count, ha_connection_info=slaves
        )
        return Reply(body=to_json(state))

    def _note_address(self, asked: GetBrokerHaStatus) -> None:
        """Note where a member is reached, to show that; what is no member or no address is left out, and so are the oldest."""
        member, address = asked.member or "", asked.member_addr or ""
        if self.pair is None or not MEMBER.fullmatch(member) or ";" in address or not forms.ADDRESSES.fits(address):
            return
        self._addresses.pop(member, None)
        self._addresses[member] = address
        if len(self._addresses) > SLAVES_MAX:
            del self._addresses[next(iter(self._addresses))]

    def texts(self, now: Instant) -> Mapping[str, str]:
        """Return the epochs of the log, and the state of a pair, for the runtime information."""
        texts = {EPOCHS: self.epochs.text()}
        return texts if self.pair is None else {
            **texts, PAIR: self._pair_text(self.pair, now.steady), PAIR_EPOCH: str(self.pair.epoch),
        }  # fmt: skip

    def _pair_text(self, pair: Pair, now: Steady) -> str:
        """Return the role in a pair, and how far each follower is, for people."""
        role = f"master of epoch {pair.epoch}, {'complete' if pair.is_complete else 'alone'}"
        followers = [
            f"{self._addresses.get(slave.member, status.remote)} {self._part(pair, slave.member)},"
            f" {status.behind_bytes:,} bytes and {status.behind_ms / 1000:.1f} s behind"
            for slave, status in zip(self.feeding.slaves.values(), self.feeding.statuses(now))
            if slave.member is not None
        ]
        return f"{role}: {'; '.join(followers) or 'no follower is connected'}"

    def _part(self, pair: Pair, member: str) -> str:
        """Return what a connected member does in a pair, for people."""
        if member in pair.lease.others:
            return "follows"
        return f"is {SPARE}" if pair.is_complete else "catches up"

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield how many slaves copy the log, and how far each is behind."""
        statuses = self.feeding.statuses(now.steady)
        yield metrics.SLAVES, broker, len(statuses)
        for status in statuses:
            labels = (*broker, status.remote)
            yield metrics.SLAVE_BYTES, labels, status.behind_bytes
            yield metrics.SLAVE_SECONDS, labels, status.behind_ms / 1000
        if self.pair is not None:
            yield metrics.PAIR_COMPLETE, broker, int(self.pair.is_complete)
            yield metrics.PAIR_EPOCH, broker, self.pair.epoch
            yield metrics.LEASE_VALID, broker, max(0, self.pair.lease.valid_until - now.steady) / 1000


def _begun(context: Context, lease: Lease | None) -> Epochs:
    """Return the epochs of a log that this broker goes on with: in a new one, unless it is known to have all that it wrote before.

    Waits for the disk.
    """
    random = Random()
    random.setstate(context.random.getstate())  # the broker's own goes on as if nobody had used it
    epochs, recovered = Epochs.load(context.disk, random), context.store.recovered
    last = epochs.rows[-1] if epochs.rows else None
    goes_on = last is not None and last.member == epochs.member and not recovered.lost
    if lease is not None and not (goes_on and last is not None and last.epoch == lease.epoch):
        epochs.begin(lease.epoch, recovered.found_end if last is not None else 0)
    elif last is None:
        epochs.begin(1, 0)
    elif not goes_on:
        epochs.begin(last.epoch + 1, recovered.found_end)
    return epochs
