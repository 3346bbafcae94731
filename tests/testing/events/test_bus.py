"""MemoryBus: the real broker as a transport for events; what it stores, merges, loses, decides, asks and delivers again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from halfmoon.client.core.produce.transaction import OpenHalf
from halfmoon.errors import ConnectFailed, RequestTimeout, SystemBusy, UsageError
from halfmoon.events import Consumers, Event, Publisher, local_transaction
from halfmoon.events.consuming.on import Handler
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.encoding.envelope import message_of
from halfmoon.events.testing import MemoryBus, MemoryTransport
from halfmoon.model import LocalTransactionState, Message, SendResult, StoredMessage

COMMIT, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN


def message(number: int = 1, topic: str = "TP_ORDER", code: str = "EC_PAID") -> Message:
    event = Event(id=f"{number:032X}", topic=topic, code=code, payload={"n": number}, key=f"k{number}")
    return message_of(event, Codecs(), group="P_shop", now_ms=1)


def member(bus: MemoryBus, answer: Callable[[StoredMessage], LocalTransactionState] = lambda stored: UNKNOWN) -> MemoryTransport:
    found = bus.transport("P_shop")
    found.start(answer)
    return found


def send(transport: MemoryTransport, sent: Message) -> SendResult:
    (result,) = transport.run(transport.send([sent], 1))
    if isinstance(result, Exception):
        raise result
    return result


def half(transport: MemoryTransport, number: int = 1, attempt: int = 1, check_after_s: int | None = None) -> OpenHalf:
    (prepared,) = transport.run(transport.prepare([replace(message(number), attempt=attempt)], 1, check_after_s))
    if isinstance(prepared, Exception):
        raise prepared
    return prepared


class Reader:
    """A consumer that keeps what it gets and answers what it is told to."""

    def __init__(self, bus: MemoryBus, group: str = "S_mail", codes: str = "*", **options: Any) -> None:
        self.got: list[tuple[str, int, str | None]] = []
        self.answers: list[tuple[bool, str] | Exception] = []
        self.leave = bus.subscribe(group, {"TP_ORDER": codes}, self.deliver, **options)

    def deliver(self, stored: StoredMessage, attempt: int) -> tuple[bool, str]:
        self.got.append((stored.msg_id[-1], attempt, stored.properties.get("RECONSUME_REASON")))
        said = self.answers.pop(0) if self.answers else (True, "")
        if isinstance(said, Exception):
            raise said
        return said


def ids(records: tuple[object, ...]) -> list[str]:
    return [record.id[-1] for record in records]  # type: ignore[attr-defined]


# ---------------------------------------------------------------- sending


def test_a_plain_message_is_seen_by_each_group_once():
    bus = MemoryBus()
    mail, stock = Reader(bus), Reader(bus, "S_stock")
    result = send(member(bus), message())

    assert bus.deliver() == 2
    assert bus.deliver() == 0
    assert mail.got == stock.got == [("1", 1, None)]
    assert result.msg_id == f"{1:032X}"
    assert [event.payload for event in bus.events("TP_ORDER", "EC_PAID")] == [{"n": 1}]
    assert bus.events("TP_ORDER", "EC_OTHER") == []
    assert [event.id[-1] for event in bus.consumed("S_mail")] == ["1"]
    assert bus.consumed("S_nobody") == []


def test_a_group_gets_each_message_of_the_codes_it_asks_for_once():
    bus = MemoryBus()
    transport = member(bus)
    one, two = Reader(bus, codes="EC_PAID || EC_SENT"), Reader(bus, codes="EC_PAID || EC_SENT")
    for number, code in enumerate(["EC_PAID", "EC_NEW", "EC_SENT", "EC_PAID", "EC_PAID"], 1):
        send(transport, message(number, code=code))

    bus.deliver()

    assert sorted(one.got + two.got) == [("1", 1, None), ("3", 1, None), ("4", 1, None), ("5", 1, None)]


@pytest.mark.parametrize(("stored", "left"), [(True, 1), (False, 0)])
def test_a_send_whose_answer_or_request_is_lost(stored: bool, left: int):
    bus = MemoryBus()
    transport = member(bus)
    bus.fail_next("send", stored=stored)

    with pytest.raises(RequestTimeout):
        send(transport, message())

    assert len(bus.committed) == left
    send(transport, replace(message(), attempt=2))
    assert len(bus.committed) == 1, "the repeat was merged with the first, or was the first"
    send(transport, message())
    assert len(bus.committed) == 2, "a repeat that does not say so is another message"


def test_faults_come_in_the_order_in_which_they_were_wished_and_heal_ends_them():
    bus = MemoryBus()
    transport = member(bus)
    bus.fail_next("send", error=SystemBusy("full"))
    bus.fail_next("send", times=2)
    seen = []
    for number in range(3):
        with pytest.raises((SystemBusy, RequestTimeout)) as caught:
            send(transport, message(number))
        seen.append(type(caught.value))
        if number == 1:
            bus.heal()
            break

    assert seen == [SystemBusy, RequestTimeout]
    send(transport, message(9))
    assert ids(bus.committed) == ["9"]


def test_a_bus_that_is_down_takes_checks_and_gives_nothing():
    bus = MemoryBus()
    reader, transport = Reader(bus), member(bus, lambda stored: COMMIT)
    prepared = half(transport)
    transport.leave(prepared)
    send(transport, message(2))
    bus.go_down()

    with pytest.raises(ConnectFailed):
        half(transport, 3)
    transport.decide(prepared, commit=False)
    assert bus.check_now() == bus.deliver() == 0
    assert ids(bus.pending) == ["1"]
    assert reader.got == []

    bus.heal()
    assert bus.check_now() == 1
    assert bus.deliver() == 2


# ---------------------------------------------------------------- two phases


def test_repeats_of_a_decision_are_ignored_and_contradictions_refused_and_counted():
    bus = MemoryBus()
    transport = member(bus)
    prepared = half(transport)
    for commit in (True, True, False):
        transport.decide(prepared, commit=commit)

    assert [bus.event(one).transactional for one in bus.committed] == [True]
    assert bus.contradictions == 1
    assert len(bus.events()) == 1


def test_a_message_that_expired_can_be_resumed_and_no_other():
    bus, answers = MemoryBus(checks_max=3), [UNKNOWN] * 3 + [COMMIT]
    transport = member(bus, lambda stored: answers.pop(0))
    transport.leave(half(transport))
    bus.advance("4 min")  # three rounds of checks, and one that finds none left
    assert ids(bus.expired) == ["1"]

    bus.resume(bus.expired[0])
    bus.advance(70)

    assert ids(bus.committed) == ["1"]
    with pytest.raises(UsageError):
        bus.resume(bus.committed[0])


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("resumed", [False, True], ids=["expired", "resumed"])
def test_a_decision_that_comes_after_expiry_is_honoured_once(resumed: bool, commit: bool):
    bus = MemoryBus(checks_max=1)
    reader, transport = Reader(bus), member(bus)
    prepared = half(transport)
    transport.leave(prepared)
    bus.advance(130)
    assert ids(bus.expired) == ["1"]
    if resumed:
        bus.resume(bus.expired[0])

    for decision in (commit, commit, not commit):
        transport.decide(prepared, commit=decision)
    bus.advance(3600)

    assert (ids(bus.committed), ids(bus.rolled_back + bus.expired)) == ((["1"], []) if commit else ([], ["1"]))
    assert (len(reader.got), bus.contradictions) == (commit, 1)


def test_without_anybody_to_ask_a_message_expires_when_its_time_is_over():
    bus = MemoryBus()
    transport = member(bus)
    half(transport)
    bus.kill(transport)

    bus.advance(71 * 3600)
    assert (ids(bus.pending), bus.checks_sent) == (["1"], 0)
    bus.advance(2 * 3600)
    assert ids(bus.expired) == ["1"]


def test_no_check_comes_before_a_messages_own_age():
    bus = MemoryBus()
    transport = member(bus, lambda stored: COMMIT)
    for number, after in ((1, None), (2, 60)):
        transport.leave(half(transport, number, check_after_s=after))

    bus.advance(5.9)
    assert bus.checks_sent == 0
    bus.advance(54.2)  # the first round
    assert ids(bus.committed) == ["1"]
    bus.advance(60)
    assert ids(bus.committed) == ["1", "2"]


# ---------------------------------------------------------------- as users meet it


def test_many_threads_publish_decide_and_are_asked_at_once():
    bus, data, got, lock = MemoryBus(checks_max=1_000), set(), Counter[str](), threading.Lock()

    def check(event: Event, context: Any) -> None:
        if event.id not in data:
            context.set_rollback_only()

    shops = [Publisher(f"P_shop{n}", transport=bus) for n in range(4)]  # who runs a transaction is who is asked about it
    for shop in shops:
        shop.check()(check)
        shop.start()

    def consume(event: Event) -> None:
        with lock:
            got[event.id] += 1

    def work(shop: Publisher, number: int) -> None:
        for n in range(50):
            event = shop.event("TP_ORDER", "EC_PAID", n, transactional=True)
            try:
                with local_transaction(commit=lambda event=event: data.add(event.id)):
                    shop.publish(event)
                    if n % 5 == number:
                        raise LookupError
            except LookupError:
                pass

    stop = threading.Event()

    def broker() -> None:
        while not stop.is_set():
            bus.check_now()
            bus.deliver()

    with Consumers(Handler(group="S_mail", topic="TP_ORDER", code="EC_PAID", function=consume), bus=bus):
        bus.lose_second_phase(60)
        threads = [threading.Thread(target=work, args=(shop, n)) for n, shop in enumerate(shops)]
        asking = threading.Thread(target=broker)
        for thread in [*threads, asking]:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        asking.join()
        bus.check_now()
        bus.deliver()

    assert bus.pending == ()
    assert bus.expired == ()
    assert set(got) == data
    assert set(got.values()) == {1}
    assert (len(data), len(bus.rolled_back)) == (160, 40)
    for shop in shops:
        shop.close()


@pytest.mark.slow
def test_without_any_extra_package_events_are_published_and_consumed():
    script = """
import sys
for name in ("sqlalchemy", "django", "opentelemetry", "pydantic"):
    sys.modules[name] = None
from halfmoon.events import Consumers, Publisher, on
from halfmoon.events.testing import MemoryBus
bus = MemoryBus()
@on("S_mail", "TP_ORDER", "EC_PAID")
def mail(event): print(event.payload)
with Publisher("P_shop", transport=bus) as shop, Consumers(mail, bus=bus):
    shop.publish("TP_ORDER", "EC_PAID", {"order_id": 42})
    bus.deliver()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr) == ("{'order_id': 42}\n", "")


# ---------------------------------------------------------------- consumers


def test_what_is_not_consumed_comes_again_with_its_reason_at_the_brokers_times():
    bus = MemoryBus()
    reader = Reader(bus)
    reader.answers = [(False, "no stock"), RuntimeError("boom"), (True, "")]
    send(member(bus), message())
    start = bus.now_ms

    bus.deliver()
    ((attempt, reason, wait_ms),) = [(one.attempt, one.reason, one.due_ms - start) for one in bus.waiting]
    assert (attempt, reason, wait_ms // 100) == (2, "no stock", 100)
    bus.advance(9.9)
    assert len(reader.got) == 1
    bus.advance(0.2 + 31)

    assert reader.got == [("1", 1, None), ("1", 2, "no stock"), ("1", 3, "RuntimeError: boom")]
    assert bus.waiting == ()
    assert len(bus.consumed("S_mail")) == 1


def test_after_sixteen_further_attempts_it_is_a_dead_letter():
    bus = MemoryBus()
    reader = Reader(bus)
    reader.answers = [(False, f"no {n}") for n in range(1, 30)]
    send(member(bus), message())

    bus.advance(24 * 3600)

    assert len(reader.got) == 17
    assert [(one.group, one.reason) for one in bus.dead_letters] == [("S_mail", "no 17")]


def test_what_comes_again_waits_until_somebody_is_there():
    bus = MemoryBus()
    reader = Reader(bus)
    reader.answers = [(False, "")]
    send(member(bus), message())
    bus.deliver()
    reader.leave()

    bus.advance(60)
    again = Reader(bus)
    bus.deliver()

    assert again.got == [("1", 2, None)]


def test_a_consumer_may_publish_and_sees_it_in_the_same_delivery():
    bus = MemoryBus()
    transport = member(bus)

    def chain(stored: StoredMessage, attempt: int) -> tuple[bool, str]:
        number = int(stored.msg_id, 16)
        if number < 5:
            send(transport, message(number + 1))
        return True, ""

    bus.subscribe("S_chain", {"TP_ORDER": ["*"]}, chain)
    send(transport, message(1))

    assert bus.deliver() == 5


def test_clear_forgets_messages_and_keeps_who_takes_part():
    bus = MemoryBus()
    reader, transport = Reader(bus), member(bus)
    half(transport)
    send(transport, message(2))
    bus.deliver()

    bus.clear()
    send(transport, message(3))
    bus.deliver()

    assert (bus.pending, ids(bus.committed)) == ((), ["3"])
    assert [got[0] for got in reader.got] == ["2", "3"]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda bus: bus.fail_next("decide"),
        lambda bus: bus.fail_next("send", times=0),
        lambda bus: bus.kill(object()),
        lambda bus: bus.kill(MemoryBus().transport("P_shop")),
        lambda bus: MemoryBus(check_interval_s=0),
        lambda bus: MemoryBus(checks_max=0),
    ],
)
def test_what_cannot_be_wished_is_refused(wrong: Callable[[MemoryBus], object]):
    with pytest.raises(UsageError):
        wrong(MemoryBus())


def test_a_bus_has_room_for_so_many_messages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("halfmoon.testing.events.bus.MESSAGES_MAX", 2)
    bus = MemoryBus()
    transport = member(bus)
    for number in (1, 2):
        send(transport, message(number))

    with pytest.raises(SystemBusy, match="clear"):
        send(transport, message(3))


@pytest.mark.mission("002-16")
def test_what_was_published_while_nobody_was_online_is_skipped_in_a_topic_that_says_so():
    bus = MemoryBus()
    transport, got = member(bus), []
    for numbers in ((1, 2), (3, 4)):
        send(transport, message(numbers[0]))
        reader = Reader(bus, from_end=["TP_ORDER"])
        send(transport, message(numbers[1]))
        bus.deliver()
        reader.leave()
        got += [one[0] for one in reader.got]

    assert got == ["2", "4"]


# ---------------------------------------------------------------- who is gone, and what is looked at


def test_a_consumer_that_left_is_given_nothing_more_and_its_messages_are_the_next_ones():
    bus = MemoryBus()
    transport, first = member(bus), Reader(bus)
    for number in (1, 2, 3):
        send(transport, message(number))
        assert len(bus.committed) == number  # time passes: the consumer pulls
    first.leave()
    second = Reader(bus)

    bus.deliver()
    assert (first.got, [each[:2] for each in second.got]) == ([], [("1", 1), ("2", 1), ("3", 1)])


def test_the_check_of_a_killed_publisher_does_not_run():
    bus, asked = MemoryBus(), []
    transport = member(bus, lambda stored: asked.append(stored) or COMMIT)
    transport.leave(half(transport))
    bus.kill(transport)

    bus.advance(300)
    assert (asked, ids(bus.pending)) == ([], ["1"])


def test_an_error_that_is_no_exception_reaches_the_test_and_the_consumer_goes_on():
    bus, answers = MemoryBus(), [SystemExit("told to")]

    def answer(stored: StoredMessage) -> LocalTransactionState:
        if answers:
            raise answers.pop()
        return COMMIT

    transport = member(bus, answer)
    for number in (1, 2):
        transport.leave(half(transport, number))
    with pytest.raises(SystemExit):
        bus.check_now()

    bus.check_now()
    assert ids(bus.committed) == ["1", "2"]


def test_a_record_shows_its_state_and_all_of_its_checks_without_another_look():
    bus = MemoryBus()
    transport = member(bus, lambda stored: COMMIT)
    transport.leave(half(transport))
    (record,) = bus.pending

    bus.check_now()
    assert (record.state.name, record.checks) == ("COMMITTED", 1)


def test_nothing_expires_and_nobody_joins_while_the_bus_is_down():
    bus = MemoryBus(checks_max=2)
    transport = member(bus, lambda stored: COMMIT)
    transport.leave(half(transport))
    send(transport, message(2))
    bus.go_down()
    reader = Reader(bus)
    bus.advance(3_600)
    assert (reader.got, ids(bus.pending), bus.checks_sent) == ([], ["1"], 0)

    bus.heal()
    bus.advance(300)
    assert (ids(bus.committed), ids(bus.expired), len(reader.got)) == (["1", "2"], [], 2)


def test_redelivery_is_seen_behind_any_number_of_delayed_messages():
    bus = MemoryBus()
    transport, reader = member(bus), Reader(bus)
    reader.answers = [(False, "not yet")]
    send(transport, message(1))
    bus.deliver()
    for number in range(2, 1_010):
        send(transport, delayed(number))

    assert [waiting.reason for waiting in bus.waiting] == ["not yet"]


def delayed(number: int) -> Message:
    sent = message(number)
    return Message(sent.topic, sent.body, tag=sent.tag, keys=sent.keys, properties=sent.properties, msg_id=sent.msg_id, delay=1)
