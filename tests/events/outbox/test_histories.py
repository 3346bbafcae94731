"""Any history of relays, crashes and operators: what is kept is what was sent; any of notifications: none is missed."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from halfmoon.events.databases.listening import ListeningConnection
from halfmoon.events.outbox import listener as listener_module
from halfmoon.events.outbox import relay as relay_module
from halfmoon.events.outbox import sent, status
from halfmoon.events.outbox.listener import CommitListener
from halfmoon.events.outbox.relay import Relay
from halfmoon.model import MessageQueue, SendResult, SendStatus
from tests.events.outbox.outboxes import Outbox
from tests.waiting import until

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------- kept rows

KEEP_S, CLAIM_MS = 600, 3_600_000
NAMES = ("r1", "r2")


class Told:
    """A transport that sends at once, and notes what."""

    def __init__(self):
        self.got = []

    def post(self, message, told, *, timeout_ms):
        self.got.append(message.msg_id)
        queue = MessageQueue(message.topic, "b", 0)
        told(SendResult(SendStatus.SEND_OK, message.msg_id, f"M-{message.msg_id}", queue, len(self.got)), None)


class KeptStory:
    """Two relays without threads, and an operator. Time passes as the story says."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.outbox, self.wire, self.now_ms = Outbox(f"sqlite:///{folder / 'outbox.db'}"), Told(), 1_000_000
        for module in (relay_module, sent, status):
            patch.setattr(module, "clock_ms", lambda rows: self.now_ms)
        self.relays = {name: self._relay(name) for name in NAMES}
        self.hands = dict.fromkeys(NAMES, 0)
        """How many of the events sent each relay sent last, and has not settled."""
        self.events, self.due, self.kept = [], Counter(), Counter()
        """How often each event is to be sent in all, and how many copies of it are to be kept."""

    def _relay(self, name):
        return Relay(self.outbox.provider, self.wire, name=name, batch_max=3, claim_ms=CLAIM_MS, keep_sent=KEEP_S, listen=False)

    def play(self, words):
        for word, *rest in words:
            getattr(self, word)(*rest)
            waiting = self.outbox.ids
            assert len(waiting) == len(set(waiting)), "no event waits twice"
            assert status.backlog(self.outbox.provider).backlog == len(waiting)
        for name in NAMES:
            while self.turn(name):
                pass
        assert self.outbox.ids == []
        assert Counter(self.wire.got) == self.due
        assert Counter(self.outbox.kept) == +self.kept

    def put(self, key):
        event_id = f"E{len(self.events)}"
        self.outbox.put(event_id, key=key)
        self.events.append(event_id)
        self.due[event_id] += 1

    def send(self, name):
        """An event is written, sent and settled."""
        self.put("")
        while self.turn(name):
            pass

    def turn(self, name):
        begun = len(self.wire.got)
        self.kept.update(self.wire.got[at] for at in self._hand(name))
        relay = self.relays[name]
        more = relay._turn(*relay._shares.all())
        self.hands[name] = range(begun, len(self.wire.got))
        return more

    def _hand(self, name):
        return self.hands[name] or ()

    def crash(self, name):
        """What it sent last is sent again by the other one, once the claim has ended."""
        self.due.update(self.wire.got[at] for at in self._hand(name))
        self.relays[name], self.hands[name] = self._relay(name), ()
        for other in NAMES:
            while other != name and self.turn(other):
                pass
        self.now_ms += CLAIM_MS + 1

    def wait(self, seconds):
        self.now_ms += seconds * 1_000

    def resend(self, number):
        """The operator names one event, or none: all that are kept."""
        waiting = set(self.outbox.ids)
        wanted = {*self.outbox.kept} if number is None else {self.events[number % len(self.events)]} if self.events else set()
        again = (wanted & {*self.outbox.kept}) - waiting
        assert sent.resend(self.outbox.provider, event_ids=None if number is None else wanted) == len(again)
        self.due.update(again)

    def clean(self, name):
        """What is older than the newest by more than is kept goes; the copies that a relay has yet to keep count for nothing."""
        ages = self.outbox.ask("SELECT event_id, sent_ms FROM halfmoon_sent")
        before = min(self.now_ms, max((at for _, at in ages), default=self.now_ms)) - KEEP_S * 1_000
        self.kept.subtract(event_id for event_id, at in ages if at < before)
        (share,) = self.relays[name]._shares.all()
        share.clean_at_s = 0.0
        self.relays[name]._clean(share)


names = st.sampled_from(NAMES)
KEPT_WORDS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(["", "a"])),
        st.tuples(st.sampled_from(["turn", "send"]), names),
        st.tuples(st.just("resend"), st.none() | st.integers(0, 5)),
        st.tuples(st.just("wait"), st.integers(1, 700)),
        st.tuples(st.just("clean"), names),
        st.tuples(st.just("crash"), names),
    ),
    min_size=8,
    max_size=25,
)


@settings(max_examples=60, phases=[Phase.generate], deadline=None)
@given(KEPT_WORDS)
def test_whatever_relays_and_operators_do_what_was_sent_is_kept_and_sent_again_only_when_asked(words):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        story = KeptStory(Path(folder), patch)
        try:
            story.play(words)
        finally:
            story.outbox.close()


# ---------------------------------------------------------------- notifications


class Server:
    """PostgreSQL as a listener sees it. Each point at which the listener asks something takes the next word of the story."""

    dialect = "postgresql"

    def __init__(self, words):
        self.words, self.committed, self.seen = list(words), 0, 0
        """Rows that are committed, and those that were there when the relay looked last."""
        self.connection = None
        self.idle = threading.Event()

    def point(self):
        word = self.words.pop(0) if self.words else ""
        if word == "commit":
            self.commit()
        elif word == "kill":
            if self.connection is not None:
                self.connection.closed = True
            raise OSError("the server ended the connection")

    def commit(self):
        self.committed += 1
        if self.connection is not None and self.connection.nudge is not None:
            self.connection.pending = True

    def looked(self):
        """The relay looks: what is committed now is seen. Another transaction may commit just after that."""
        self.seen = self.committed
        with suppress(OSError):
            self.point()

    def listening(self):
        self.point()
        self.connection = Heard(self)
        return self.connection


class Heard(ListeningConnection):
    """A connection whose notifications are taken in when it is told to."""

    backend_pid = 7

    def __init__(self, server):
        self.server, self.nudge, self.closed, self.pending = server, None, False, False

    def close(self):
        self.server.connection = None

    def run(self, statement):
        self.server.point()
        return [(self.backend_pid,)]

    def take(self):
        self.server.point()
        if self.closed:
            raise OSError("closed")
        self.pending = False

    def listen(self, channel, nudge):
        self.server.point()
        self.nudge = nudge

    def readable(self):
        return self.pending or self.closed


class Selected:
    """In place of a selector: says at once whether something came; a story that is over and brings nothing ends here."""

    server: Server

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def register(self, *what):
        pass

    def select(self, timeout_s):
        with suppress(OSError):
            self.server.point()
        connection = self.server.connection
        if not connection.readable() and not self.server.words:
            self.server.idle.set()
            connection.nudge_of_the_end.wait(10)
        return [connection]


NOTIFIED_WORDS = st.lists(st.sampled_from(["", "", "commit", "kill"]), min_size=8, max_size=25)


@settings(max_examples=200, phases=[Phase.generate], deadline=None)
@given(NOTIFIED_WORDS)
def test_whenever_transactions_commit_and_connections_break_a_relay_that_waits_has_seen_every_row(words):
    server = Server(words)
    over = threading.Event()
    Heard.nudge_of_the_end = over
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listener_module, "REST_MIN_S", 0.0)
        patch.setattr(listener_module, "PAUSE_S", 0.0)
        patch.setattr(listener_module.selectors, "DefaultSelector", lambda: selected)
        selected = Selected()
        selected.server = server
        listening = CommitListener(server, server.looked, "r1")
        try:
            until(server.idle.is_set, "the end of the story", within_s=20)
            assert server.seen == server.committed, "a relay that waits has seen every row"
        finally:
            over.set()
            listening.close(5)
