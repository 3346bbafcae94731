"""`@on`: which functions consume which events, for which group. Declares and collects; runs nothing.

A declaration is a `Handler`: a value, which `halfmoon.events.consuming.consumers` takes. Decorators only leave marks;
`handlers_of` finds them in modules, functions, classes and objects.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cached_property
from types import ModuleType
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, overload

from halfmoon.errors import UsageError
from halfmoon.events.consuming.context import ConsumerContext
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.event import check_code, check_name, check_whole
from halfmoon.events.typed import required_type_of

HANDLERS_MAX = 10_000
"""Handlers of one process; more is a mistake, such as decorating in a loop."""

EVERY = "*"
"""In place of a code: every event of the topic that no other function of the group asks for."""

DIRECT = "direct"
"""The one event type there is: each group gets every event, and one of its members processes it."""

RETRIES_MAX = 1_000_000

ON_EVENT = "on_event"
"""The method of a class that is decorated itself."""

_MARK = "__halfmoon_on__"

Target = TypeVar("Target", bound=Callable[..., Any])
Payload = TypeVar("Payload")
Kind = TypeVar("Kind")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Handler:
    """One function that consumes one type of event for one group.

    ``function`` is called with the event and a `ConsumerContext`, or with the event alone where it takes nothing more; it may be
    a coroutine function. ``persistence``: whether events published while no member of the group was online are kept for it.
    ``dedup``: a sessionmaker, an async_sessionmaker, an Engine, the alias of a Django database or a provider: the function runs
    inside a transaction of it, in which the event's id is noted, so that no event has its effect twice. ``payload``: the type into
    which the payload is decoded. Raises NameRefused and UsageError.
    """

    group: str
    topic: str
    code: str
    function: Callable[..., Any]
    persistence: bool = True
    event_type: str = DIRECT
    dedup: Any = None
    codecs: Codecs | None = None
    payload: Any = None
    typed: bool = False
    ordered: bool = False
    retries: int | None = None

    def __post_init__(self) -> None:
        check_name("consumer group", self.group)
        check_name("topic", self.topic)
        if self.code != EVERY:
            check_code(self.code)
        if self.event_type != DIRECT:
            raise UsageError(f"{self.place}: event type {self.event_type!r:.40} is not known; use {DIRECT!r}")
        if not isinstance(self.persistence, bool):
            raise UsageError(f"{self.place}: persistence must be True or False, not {self.persistence!r:.40}")
        if not isinstance(self.ordered, bool):
            raise UsageError(f"{self.place}: ordered must be True or False, not {self.ordered!r:.40}")
        if self.retries is not None:
            check_whole("retries", self.retries, 0, RETRIES_MAX)
        if self.codecs is not None and not isinstance(self.codecs, Codecs):
            raise UsageError(f"{self.place}: codecs must be a halfmoon.events.Codecs, not {self.codecs!r:.40}")
        if not callable(self.function):
            raise UsageError(f"{self.place}: {self.function!r:.60} cannot be called")

    def check_parameters(self) -> None:
        """Refuse a function that every delivery would fail to call. Methods must be bound. Raises UsageError."""
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*(None, None)[: 2 if self.takes_context else 1])
        except TypeError:
            wanted = "must take the event, or the event and its context"
            raise UsageError(f"{self.place}: the function {wanted}, not {signature}") from None

    @property
    def name(self) -> str:
        """The function's full name."""
        function = inspect.unwrap(self.function)
        if not hasattr(function, "__qualname__"):
            function = type(function)
        return f"{function.__module__}.{function.__qualname__}"

    @property
    def place(self) -> str:
        """Group, topic, code and function, for messages to people."""
        return f"{self.group}: {self.topic}/{self.code} by {self.name}"

    @cached_property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004 (an object with an asynchronous __call__ is one, too)
        )

    @cached_property
    def takes_context(self) -> bool:
        """Whether the function takes a second argument."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):
            return True
        places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return len(places) >= 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)


class _TypedOn(Protocol[Payload]):
    """Decorator that `on` returns for a class of events: for functions and methods of such an event, and classes."""

    @overload
    def __call__(self, target: type[Kind], /) -> type[Kind]: ...
    @overload
    def __call__(self, target: Callable[[Payload], Result], /) -> Callable[[Payload], Result]: ...
    @overload
    def __call__(self, target: Callable[[Payload, ConsumerContext], Result], /) -> Callable[[Payload, ConsumerContext], Result]: ...
    @overload
    def __call__(self, target: Callable[[Any, Payload], Result], /) -> Callable[[Any, Payload], Result]: ...
    @overload
    def __call__(
        self, target: Callable[[Any, Payload, ConsumerContext], Result], /
    ) -> Callable[[Any, Payload, ConsumerContext], Result]: ...


class _TypedOptions(TypedDict, total=False):
    """Options of `on` beside the class of events and the group; see `Handler`."""

    persistence: bool
    dedup: Any
    codecs: Codecs | None
    ordered: bool
    retries: int | None


class _Options(_TypedOptions, total=False):
    """Options of `on` beside group, topic and code."""

    event_type: str
    payload: Any


@overload
def on(group: str, topic: str, code: str, **options: Unpack[_Options]) -> Callable[[Target], Target]: ...
@overload
def on(event: type[Payload], /, *, group: str, **options: Unpack[_TypedOptions]) -> _TypedOn[Payload]: ...
@overload
def on(group: str, event: type[Payload], /, **options: Unpack[_TypedOptions]) -> _TypedOn[Payload]: ...
def on(*what: Any, **options: Any) -> Any:
    """Have a function, a coroutine function, a method, or a class with a method ``on_event`` consume events; a decorator.

    ::

        @on("S_mail", "TP_ORDER", "EC_PAID", dedup=Session)
        def send_mail(event, context):
            context.session.add(Mail(order_id=event.payload["order_id"]))

        @on(OrderPaid, group="S_stock", ordered=True, retries=5)  # a class that `event` decorated; or @on("S_stock", OrderPaid)
        def count_stock(paid: OrderPaid): ...

    Returning is consumed; an exception, or ``context.set_rollback_only(reason)``, has the event delivered again later. Several
    decorators may stand on one function. The options are those of `Handler`. The function itself stays as it was. With a class, the
    function is called with an object of it; its topic, code and version are the class's, and ``context.event`` has the rest. Raises
    NameRefused and UsageError at once.
    """
    mark = _mark(what, options)

    def leave(target: Target) -> Target:
        function: Any = target.__func__ if isinstance(target, staticmethod | classmethod) else target
        if not (inspect.isfunction(function) or inspect.isclass(function)):
            raise UsageError(f"@on decorates functions, methods and classes, not {target!r:.60}")
        if inspect.isclass(function) and not callable(getattr(function, ON_EVENT, None)):
            raise UsageError(f"@on on class {function.__qualname__}: it has no method {ON_EVENT}(event, context)")
        Handler(function=function, **mark)  # what is wrong is refused here, where it stands
        setattr(function, _MARK, (mark, *vars(function).get(_MARK, ())))
        _modules.add(function.__module__)
        return target

    return leave


def _mark(what: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Handler`, but for its function, that arguments of `on` give."""
    for name in options.keys() - _KNOWN:
        near = get_close_matches(name, _KNOWN, 1)
        raise UsageError(f"@on has no option {name!r:.80}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if len(what) == 2 and isinstance(what[1], type) and "group" not in options:
        what, options = what[1:], {"group": what[0], **options}
    if not what or not isinstance(what[0], type):
        named = dict(zip(_NAMES, what, strict=False))
        if len(what) > len(_NAMES) or named.keys() & options.keys() or not options.keys() | named.keys() >= set(_NAMES):
            raise UsageError("@on takes a group, a topic and a code, or a class of events and a group: @on(Class, group=…)")
        return {**named, **options}
    declared = required_type_of(what[0])
    if len(what) > 1 or "group" not in options or options.keys() & {"topic", "code", "payload"}:
        raise UsageError(f"@on({what[0].__qualname__}, group=…): the class says topic, code and payload, and a group is needed")
    return {"topic": declared.topic, "code": declared.code, "payload": what[0], "typed": True, **options}


_NAMES = ("group", "topic", "code")
_KNOWN = {field.name for field in fields(Handler)} - {"function", "typed"}

_modules: set[str] = set()
"""Modules in which something was decorated."""


def handlers_of(*what: object) -> list[Handler]:
    """Return what modules, functions, classes, objects and lists of them declare; of nothing: of every module that is imported.

    A class is made into an object, without arguments, unless the same module holds objects of it. Functions that were made inside
    other functions are found only when they are given. Raises UsageError for what declares nothing, for a class that cannot be
    made, for a function that takes neither the event nor the event and its context, and where two functions consume the same type
    of event for the same group.
    """
    handlers: dict[tuple[str, str, str], Handler] = {}
    made: dict[type, Any] = {}
    for declaring in what or [sys.modules[name] for name in sorted(_modules) if name in sys.modules]:
        for handler in _handlers_in(declaring, made):
            handler.check_parameters()
            other = handlers.setdefault((handler.group, handler.topic, handler.code), handler)
            if other.function != handler.function:
                raise UsageError(
                    f"two functions consume {handler.topic}/{handler.code} for group {handler.group}: {other.name} and "
                    f"{handler.name}; keep one, or give the other a group of its own"
                )
            if len(handlers) > HANDLERS_MAX:
                raise UsageError(f"more than {HANDLERS_MAX} consumers in one process")
    return list(handlers.values())


def _handlers_in(declaring: object, made: dict[type, Any]) -> Iterator[Handler]:
    """Yield what a thing declares; of each class one object is ``made``. Raises UsageError for nothing; a module may have none."""
    if isinstance(declaring, ModuleType | list | tuple | set | frozenset):
        values = list(_declaring(vars(declaring).values()) if isinstance(declaring, ModuleType) else declaring)
        made.update({type(value): value for value in values if _declares(type(value))})
        for value in values:
            yield from _handlers_in(value, made)
        return
    if isinstance(declaring, Handler):
        yield declaring
        return
    if inspect.isroutine(declaring):
        handlers = _handlers_of_function(declaring)
    elif not inspect.isclass(declaring):
        handlers = _handlers_of_object(declaring)
    else:
        handlers = _handlers_of_object(_object_of(declaring, made)) if _declares(declaring) else []
    if isinstance(declaring, str):
        raise UsageError(f"{declaring!r:.60} is a text: give the module itself, or its name to halfmoon.events.run(…)")
    if not handlers:
        raise UsageError(f"{declaring!r:.60} declares no consumer: decorate it with @on(group, topic, code)")
    yield from handlers


def _object_of(kind: type, made: dict[type, Any]) -> Any:
    try:
        return made.get(kind) or made.setdefault(kind, kind())
    except Exception as exc:
        raise UsageError(
            f"class {kind.__module__}.{kind.__qualname__} cannot be made without arguments: {exc}; give an object of it instead"
        ) from exc


def _handlers_of_function(function: Any) -> list[Handler]:
    return [Handler(function=function, **mark) for mark in getattr(function, _MARK, ())]


def _handlers_of_object(instance: Any) -> list[Handler]:
    own = [Handler(function=getattr(instance, ON_EVENT), **mark) for mark in _marks(type(instance))]
    return own + [handler for name in _methods(type(instance)) for handler in _handlers_of_function(getattr(instance, name))]


def _declaring(values: Iterable[object]) -> Iterator[object]:
    """Yield what of a module's values declares consumers. Asks types and functions only, for some objects mind being asked."""
    for value in values:
        if inspect.isclass(value):
            if _declares(value) and not inspect.isabstract(value):
                yield value
        elif _marked(value) or _declares(type(value)) or type(value) is Handler:
            yield value


def _declares(kind: type) -> bool:
    return bool(_marks(kind) or _methods(kind))


def _marks(kind: type) -> tuple[dict[str, Any], ...]:
    """Return the marks on a class itself, without those of its base classes."""
    marks: tuple[dict[str, Any], ...] = vars(kind).get(_MARK, ())
    return marks


def _methods(kind: type) -> list[str]:
    """Return the names of a class's decorated methods in the order in which they stand; inherited ones first."""
    names = {name: _marked(value) for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    return [name for name, marked in names.items() if marked]


def _marked(value: object) -> bool:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    return inspect.isroutine(function) and bool(getattr(function, _MARK, ()))
