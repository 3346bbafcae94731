"""Tests of a shop's events: in memory, without a broker."""

from __future__ import annotations

from django.core import mail
from django.test import TestCase, TransactionTestCase, override_settings

from halfmoon.events import ConsumerContext, Event
from halfmoon.events.django import events
from halfmoon.events.testing import MemoryBus
from shop import consumers
from shop.models import Mail, Order
from shop.placing import place


class LostSecondPhaseTests(TransactionTestCase):
    """Tests with real commits, after which a broker may ask for an outcome that it did not receive."""

    def test_a_lost_second_phase_is_found_out_by_the_check(self) -> None:
        """The row that the transaction wrote answers the check."""
        bus = MemoryBus()
        with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": bus}):
            bus.lose_second_phase()
            place("Momo", "ada@localhost", "4111")
            assert bus.events() == []
            bus.check_now()
            assert [one.payload for one in bus.events()] == [{"order_id": Order.objects.get().pk}]


class PlacingTests(TestCase):
    """An order and its event."""

    def setUp(self) -> None:
        """Carry events in memory."""
        self.bus = MemoryBus()
        self.enterContext(override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": self.bus}))
        events.start()

    def order(self, card: str = "4111") -> int:
        """Place an order through the JSON interface."""
        with self.captureOnCommitCallbacks(execute=True):  # stands for the commit: a TestCase commits nothing
            said = {"book": "Momo", "email": "ada@localhost", "card": card}
            return self.client.post("/orders/", said, content_type="application/json").status_code

    def test_an_order_and_its_event_come_together(self) -> None:
        """Order and event both exist."""
        assert self.order() == 201
        assert [one.payload for one in self.bus.events("TP_ORDER", "EC_PAID")] == [{"order_id": Order.objects.get().pk}]

    def test_without_a_payment_there_is_neither(self) -> None:
        """Neither order nor event exists."""
        assert self.order(card="declined") == 402
        assert Order.objects.count() == 0
        assert self.bus.events() == []
        assert len(self.bus.rolled_back) == 1

    def test_a_paid_order_is_thanked_for(self) -> None:
        """A consumer is a function: call it."""
        order = Order.objects.create(book="Momo", email="ada@localhost")
        event = Event(id="E1", topic="TP_ORDER", code="EC_PAID", payload={"order_id": order.pk})
        consumers.thank(event, ConsumerContext(event, None, "S_mail", 1))
        assert Mail.objects.get().event_id == "E1"
        assert [one.to for one in mail.outbox] == [["ada@localhost"]]
