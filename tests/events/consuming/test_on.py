"""`@on`: what it takes, what it refuses, and how declarations are found."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType

import pytest

from halfmoon.errors import UsageError
from halfmoon.events.consuming.on import Handler, handlers_of, on
from halfmoon.events.typed import event


def module(**values: object) -> ModuleType:
    found = ModuleType("shop")
    vars(found).update(values)
    return found


def types(handlers: list[Handler]) -> list[tuple[str, str, str]]:
    return [(one.group, one.topic, one.code) for one in handlers]


@on("S_mail", "TP_ORDER", "EC_PAID")
def send_mail(event, context): ...


class Listener:
    """Made by the runner."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    @on("S_stock", "TP_ORDER", "EC_PAID")
    def paid(self, event, context):
        return self

    @on("S_stock", "TP_ORDER", "EC_SENT")
    @staticmethod
    def sent(event, context): ...

    @classmethod
    @on("S_stock", "TP_ORDER", "EC_BACK")
    def back(cls, event, context): ...


@on("S_audit", "TP_ORDER", "*")
class Audit:
    """Decorated itself."""

    def on_event(self, event, context):
        return self


@pytest.mark.mission("002-16")
def test_a_consumer_is_declared_with_group_topic_code_event_type_and_persistence():
    @on("S_mail", "TP_ORDER", "EC_PAID", event_type="direct", persistence=False)
    def handle(event, context): ...

    (found,) = handlers_of(handle)

    assert (found.group, found.topic, found.code) == ("S_mail", "TP_ORDER", "EC_PAID")
    assert (found.event_type, found.persistence, found.function) == ("direct", False, handle)
    assert handlers_of(send_mail)[0].persistence is True


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (("S mail", "TP_ORDER", "EC_PAID"), {}, "consumer group 'S mail'"),
        (("S_mail", "", "EC_PAID"), {}, "topic ''"),
        (("S_mail", "TP_ORDER", "EC PAID"), {}, "event code 'EC PAID'"),
        (("S_mail", "TP_ORDER", "A||B"), {}, "event code 'A||B'"),
        (("S_mail", "TP_ORDER", "EC_PAID"), {"event_type": "broadcast"}, "event type 'broadcast' is not known; use 'direct'"),
        (("S_mail", "TP_ORDER", "EC_PAID"), {"persistence": "no"}, "persistence must be True or False"),
        (("S_mail", "TP_ORDER", "EC_PAID"), {"codecs": "json"}, "codecs must be a halfmoon.events.Codecs"),
    ],
)
def test_what_a_declaration_cannot_be_is_refused_where_it_stands(names, options, said):
    with pytest.raises(UsageError, match=said.replace("|", r"\|").replace("(", r"\(")):
        on(*names, **options)(lambda event, context: None)


@pytest.mark.parametrize(
    ("what", "options", "said"),
    [
        (("S_mail",), {}, "takes a group, a topic and a code, or a class"),
        (("S_mail", "TP_ORDER"), {}, "takes a group, a topic and a code, or a class"),
        (("S_mail", "TP_ORDER", "EC_PAID", "EC_SENT"), {}, "takes a group, a topic and a code, or a class"),
        (("S_mail", "TP_ORDER", "EC_PAID"), {"group": "S_mail"}, "takes a group, a topic and a code, or a class"),
        ((lambda event: None,), {}, "takes a group, a topic and a code, or a class"),
        (("S_mail", "TP_ORDER", "EC_PAID"), {"orderd": True}, "no option 'orderd'; did you mean 'ordered'"),
        (("S_mail", int), {}, "int is no event: decorate the class with @event"),
        ((int, "S_mail"), {}, "int is no event"),
    ],
)
def test_arguments_that_are_none_of_its_forms_are_refused_in_our_words(what, options, said):
    with pytest.raises(UsageError, match=said):
        on(*what, **options)


def test_a_group_may_stand_before_the_class_of_the_event():
    @event("TP_ORDER", "EC_PLACED")
    @dataclass
    class Placed:
        order_id: int

    @on("S_mail", Placed, retries=3)
    def mail(placed: Placed) -> None: ...

    (handler,) = handlers_of(mail)
    assert (handler.group, handler.topic, handler.code, handler.payload, handler.retries) == (
        "S_mail", "TP_ORDER", "EC_PLACED", Placed, 3,
    )  # fmt: skip


@pytest.mark.parametrize("target", [3, "text", len([1]), object()])
def test_only_functions_methods_and_classes_are_decorated(target):
    with pytest.raises(UsageError, match="decorates functions, methods and classes"):
        on("S_mail", "TP_ORDER", "EC_PAID")(target)


@pytest.mark.parametrize("function", [lambda event, context, more: None, lambda: None, lambda event, *, more: None])
def test_a_function_that_no_delivery_could_call_is_refused_before_the_first(function):
    with pytest.raises(UsageError, match="the function must take the event, or the event and its context, not "):
        handlers_of(module(f=on("S_mail", "TP_ORDER", "EC_PAID")(function)))


@pytest.mark.parametrize("function", [lambda event: None, lambda *given: None, lambda event, context, more=1: None])
def test_a_function_with_defaults_or_a_list_of_arguments_is_called(function):
    assert handlers_of(module(f=on("S_mail", "TP_ORDER", "EC_PAID")(function)))


def test_a_class_without_on_event_is_refused():
    with pytest.raises(UsageError, match=r"class .*Deaf: it has no method on_event"):

        @on("S_mail", "TP_ORDER", "EC_PAID")
        class Deaf: ...


def test_several_declarations_stand_on_one_function_in_their_order():
    @on("S_mail", "TP_ORDER", "EC_PAID")
    @on("S_mail", "TP_ORDER", "EC_SENT")
    @on("S_log", "TP_USER", "EC_NEW")
    def handle(event, context): ...

    assert types(handlers_of(handle)) == [
        ("S_mail", "TP_ORDER", "EC_PAID"),
        ("S_mail", "TP_ORDER", "EC_SENT"),
        ("S_log", "TP_USER", "EC_NEW"),
    ]


def test_a_class_is_made_once_and_all_its_decorated_methods_are_bound_to_it():
    before = Listener.made

    found = handlers_of(Listener)

    assert types(found) == [("S_stock", "TP_ORDER", code) for code in ("EC_PAID", "EC_SENT", "EC_BACK")]
    assert Listener.made == before + 1
    assert isinstance(found[0].function(None, None), Listener)
    assert all(one.takes_context for one in found)


def test_an_object_that_the_user_made_is_used_instead_of_a_new_one():
    mine = Listener()

    found = handlers_of(module(Listener=Listener, listener=mine))

    assert found[0].function(None, None) is mine
    assert len(found) == 3
    assert handlers_of(mine)[0].function(None, None) is mine


def test_a_class_that_is_decorated_itself_is_called_by_its_on_event():
    (found,) = handlers_of(Audit)

    assert types([found]) == [("S_audit", "TP_ORDER", "*")]
    assert isinstance(found.function(None, None), Audit)


def test_a_class_that_needs_arguments_is_refused_with_the_remedy():
    class Needy:
        def __init__(self, database):
            self.database = database

        @on("S_mail", "TP_ORDER", "EC_PAID")
        def paid(self, event, context): ...

    with pytest.raises(UsageError, match=r"Needy cannot be made without arguments.*give an object of it instead"):
        handlers_of(Needy)
    assert len(handlers_of(Needy("orders"))) == 1


def test_a_method_overridden_without_a_decorator_consumes_nothing():
    class Quiet(Listener):
        def paid(self, event, context): ...

    assert [one.code for one in handlers_of(Quiet)] == ["EC_SENT", "EC_BACK"]


def test_a_module_gives_what_it_holds_and_nothing_twice():
    found = handlers_of(module(send_mail=send_mail, again=send_mail, number=3, Audit=Audit, on=on))

    assert types(found) == [("S_mail", "TP_ORDER", "EC_PAID"), ("S_audit", "TP_ORDER", "*")]


def test_a_module_s_objects_are_not_asked_for_attributes():
    class Touchy:
        def __getattr__(self, name):
            raise RuntimeError(f"asked for {name}")

    assert types(handlers_of(module(current_user=Touchy(), send_mail=send_mail))) == [("S_mail", "TP_ORDER", "EC_PAID")]


def test_a_decorator_above_keeps_the_declaration_and_is_what_is_called():
    def loud(function):
        @functools.wraps(function)
        def wrapper(event, context):
            return "loud"

        return wrapper

    @loud
    @on("S_mail", "TP_ORDER", "EC_PAID")
    def handle(event, context): ...

    (found,) = handlers_of(module(handle=handle))

    assert found.function(None, None) == "loud"
    assert found.name.endswith(".handle")


def test_without_arguments_every_imported_module_is_searched():
    found = handlers_of()

    assert {("S_mail", "TP_ORDER", "EC_PAID"), ("S_audit", "TP_ORDER", "*")} <= set(types(found))


def test_two_functions_for_the_same_events_are_refused_and_both_are_named():
    @on("S_mail", "TP_ORDER", "EC_PAID")
    def other(event, context): ...

    with pytest.raises(UsageError, match=r"two functions consume TP_ORDER/EC_PAID for group S_mail: .*send_mail and .*other"):
        handlers_of([send_mail, other])


def test_what_declares_nothing_is_refused():
    with pytest.raises(UsageError, match="declares no consumer"):
        handlers_of(lambda event, context: None)
    with pytest.raises(UsageError, match="declares no consumer"):
        handlers_of(object())


def test_a_function_may_do_without_the_context():
    assert not Handler(group="S_mail", topic="T", code="C", function=lambda event: None).takes_context
    assert Handler(group="S_mail", topic="T", code="C", function=lambda *all_of_it: None).takes_context
    assert Handler(group="S_mail", topic="T", code="C", function=lambda event, context=None: None).takes_context


def test_coroutine_functions_are_known_whatever_they_are():
    class Later:
        async def __call__(self, event, context): ...

    async def soon(event, context): ...

    assert Handler(group="S_mail", topic="T", code="C", function=Later()).is_async
    assert Handler(group="S_mail", topic="T", code="C", function=soon).is_async
    assert not Handler(group="S_mail", topic="T", code="C", function=send_mail).is_async
