"""Typed payloads that do not come back as they were written are refused where they are published, once for each shape."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    create_model,
    field_serializer,
    field_validator,
    model_serializer,
)

from halfmoon.events.encoding import read_back
from halfmoon.events.encoding.codec import JSON, MSGPACK, Codecs
from halfmoon.events.errors import PayloadRefused

if TYPE_CHECKING:
    from nowhere import Unknown

T = TypeVar("T")


class Color(Enum):
    RED = "red"


class State(StrEnum):
    PAID = "paid"


# ---------------------------------------------------------------- what does not come back


OtherName = create_model("OtherName", number=(int, Field(serialization_alias="No")))
OtherNameRead = create_model("OtherNameRead", number=(int, Field(validation_alias="No")))
Secret = create_model("Secret", token=SecretStr)
Maybe = create_model("Maybe", token=(SecretStr | None, None))
LeftOut = create_model("LeftOut", number=(int, Field(exclude=True)))
LeftOutWithDefault = create_model("LeftOutWithDefault", number=(int, Field(0, exclude=True)))


class Shown(BaseModel):
    number: int

    @field_serializer("number")
    def show(self, number: int) -> str:
        return f"<{number}>"


class Doubled(BaseModel):
    number: int

    @field_serializer("number")
    def double(self, number: int) -> int:
        return 2 * number


class Flat(BaseModel):
    number: int

    @model_serializer
    def flat(self) -> int:
        return self.number


class Base(BaseModel):
    number: int


class Sub(Base):
    more: int


class HasBase(BaseModel):
    inside: Base


class HasBases(BaseModel):
    inside: list[Base] = []


@dataclass
class PlainBase:
    number: int


@dataclass
class PlainSub(PlainBase):
    more: int


@dataclass
class HasPlainBase:
    inside: dict[str, PlainBase]


class StructBase(msgspec.Struct):
    number: int


class StructSub(StructBase):
    more: int


class HasStructBase(msgspec.Struct):
    inside: StructBase | None


class Hidden(msgspec.Struct, rename={"number": "No"}):
    number: int
    inside: Secret


@dataclass
class Taxed:
    price: int

    def __post_init__(self) -> None:
        self.price += 1


@dataclass
class Strict:
    number: Annotated[int, msgspec.Meta(ge=1)]


class Validated(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def add(cls, number: int) -> int:
        return number + 1


REFUSED = [
    OtherName(number=1), OtherNameRead(No=1), Secret(token="x"), Maybe(token="x"), Shown(number=1), Doubled(number=1),
    LeftOut(number=1), LeftOutWithDefault(number=1), Flat(number=1), HasBase(inside=Sub(number=1, more=2)),
    HasBases(inside=[Base(number=1), Sub(number=1, more=2)]), HasPlainBase({"a": PlainSub(1, 2)}), HasStructBase(StructSub(1, 2)),
    Hidden(1, Secret(token="x")), Taxed(1), Strict(0), Validated(number=1),
]  # fmt: skip


# ---------------------------------------------------------------- what comes back


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    number: int = Field(alias="No")


Both = create_model("Both", number=(int, Field(serialization_alias="No", validation_alias=AliasChoices("number", "No"))))


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int

    @computed_field
    def twice(self) -> int:
        return 2 * self.number


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    number: int
    _cache: int = PrivateAttr(0)

    def filled(self) -> Extra:
        self._cache = 7
        return self


class Rich(BaseModel):
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    day: date = date(2026, 1, 1)
    lasts: timedelta = timedelta(seconds=1.5)
    price: Decimal = Decimal("1.10")
    who: UUID = UUID(int=7)
    color: Color = Color.RED
    state: State = State.PAID
    pair: tuple[int, str] = (1, "a")
    several: set[int] = {3, 1}
    numbers: dict[int, Base] = {1: Base(number=1)}
    union: Base | Secret | int = Base(number=3)
    kind: Literal["a"] = "a"
    free: Any = None


class Root(RootModel[list[Base]]):
    pass


class Of(BaseModel, Generic[T]):
    inside: T


class StructOf(msgspec.Struct, Generic[T], omit_defaults=True, rename="camel"):
    the_inside: T
    more_of_it: int = 1


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Pets(msgspec.Struct):
    pets: list[Cat | Dog]
    unset: int | msgspec.UnsetType = msgspec.UNSET


@dataclass(eq=False)
class NotCompared:
    free: Any
    several: frozenset[str] = frozenset({"b", "a"})
    inside: PlainBase = field(default_factory=lambda: PlainBase(1))


@dataclass
class Unvalidated:
    """Fields hold what stands for what they declare."""

    state: State
    at: datetime
    price: float
    amount: Decimal


@dataclass
class Counted:
    numbers: list[int]
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.numbers)


@dataclass
class NotReadable:
    """No consumer can name this class: its declaration says what is not here. Others read what it writes."""

    inside: Unknown
    token: int = 1


ACCEPTED = [
    Aliased(number=1), Both(number=1), Computed(number=1), Extra(number=1, other={"a": 1}).filled(), Rich(),
    Rich(free={"at": datetime(2026, 1, 1, tzinfo=UTC), "several": {"x"}, "inside": [Base(number=1)]}), Root([Base(number=1)]),
    Of[Base](inside=Base(number=1)), StructOf(PlainBase(1)), StructOf([Cat(9)], more_of_it=2), Pets([Cat(9), Dog("Rex")]),
    NotCompared({"at": date(2026, 1, 1), "c": Color.RED, "inside": (PlainBase(1),)}), Maybe(), HasBases(inside=[Base(number=1)]),
    Unvalidated("paid", "2026-01-01T00:00:00Z", 3, 4), Counted([1, 2]), NotReadable(3), HasPlainBase({}), HasStructBase(None),
]  # fmt: skip


def name(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("payload", REFUSED, ids=name)
def test_a_payload_that_consumers_would_refuse_or_read_otherwise_is_refused_at_once(payload, content_type):
    for given in (payload, [payload], {"order": payload}):
        for _ in range(2):
            with pytest.raises(PayloadRefused, match=r"model_dump\(mode='json'\)") as refused:
                Codecs().encode(given, content_type=content_type)
    assert str(refused.value).startswith("payload")


@pytest.mark.parametrize("content_type", [JSON, MSGPACK])
@pytest.mark.parametrize("payload", ACCEPTED, ids=name)
def test_a_payload_that_comes_back_is_taken(payload, content_type):
    codecs = Codecs()
    for _ in range(2):
        encoded = codecs.encode(payload, content_type=content_type)
    if not isinstance(payload, NotReadable):
        assert isinstance(codecs.decode(content_type, 1, encoded.body, into=type(payload)), type(payload))


def test_the_place_of_what_comes_back_otherwise_is_named():
    with pytest.raises(PayloadRefused, match=r"payload\.inside\[1\]: a Sub comes back as Base"):
        Codecs().encode(HasBases(inside=[Base(number=1), Sub(number=1, more=2)]))
    with pytest.raises(PayloadRefused, match=r"(?s)payload: Shown does not read what it writes: .*valid integer"):
        Codecs().encode(Shown(number=1))


def test_a_class_is_tried_again_where_its_fields_hold_other_types():
    codecs = Codecs()
    codecs.encode(Maybe())
    codecs.encode(HasBases())
    codecs.encode(HasBases(inside=[Base(number=1)]))

    for later in (Maybe(token="x"), HasBases(inside=[Sub(number=1, more=2)])):
        with pytest.raises(PayloadRefused):
            codecs.encode(later)


@dataclass
class Tried:
    number: Any
    count = 0

    def __post_init__(self) -> None:
        Tried.count += 1


def test_a_shape_that_came_back_is_not_tried_again():
    payload, codecs = Tried(1), Codecs()
    begun = Tried.count
    for _ in range(5):
        codecs.encode(payload)
        codecs.encode([payload] * 3)
    assert Tried.count == begun + 1

    codecs.encode(payload, content_type=MSGPACK)
    assert Tried.count == begun + 2


def test_what_is_remembered_of_a_class_is_bounded(monkeypatch):
    monkeypatch.setattr(read_back, "SHAPES_MAX", 3)
    tried = read_back.ReadBack(lambda value: {"number": None}, lambda data, kind: payload, lambda kind: True)

    for at in range(10):
        payload = Tried(nested(at))
        tried.check(payload)
        assert len(tried._proven[Tried]) <= 3


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else None


def test_a_class_that_is_gone_is_forgotten():
    tried = read_back.ReadBack(lambda value: None, lambda data, kind: None, lambda kind: False)
    tried.check(type("Gone", (StructBase,), {})(1))

    gc.collect()

    assert not tried._proven
