"""Names of rocketmq-client-python are told by the names of today; nothing else changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import halfmoon
from halfmoon import Message, MessageQueue, SendResult, SendStatus, StoredMessage, TransactionProducer
from halfmoon.client.constructors.by_keyword import ByKeyword
from halfmoon.client.constructors.old_names import OLD_NAMES
from halfmoon.wire.record import decode_record
from tests.client.messages import record

PAGE = Path(__file__).parents[3] / "docs" / "from-rocketmq-client-python.md"
CLASSES = {name: getattr(halfmoon, name) for name in OLD_NAMES}


@pytest.mark.parametrize(("name", "old"), [(name, old) for name, names in OLD_NAMES.items() for old in names])
def test_an_old_name_is_told_by_its_new_one_and_is_no_attribute(name: str, old: str):
    assert [hasattr(thing, old) for thing in things(name)] == [False] * len(things(name))
    told = [error_of(thing, old) for thing in things(name)]
    wanted = f"has no attribute {old!r}: {old} of rocketmq-client-python is {OLD_NAMES[name][old]}"
    assert [text.partition(" ")[2] for text in told] == [wanted] * len(told)


def error_of(thing: Any, name: str) -> str:
    with pytest.raises(AttributeError) as told:
        getattr(thing, name)
    return str(told.value)


def things(name: str) -> list[Any]:
    """Return things of a class, clients of asyncio's, too; of values the class itself."""
    cls = CLASSES[name]
    if not issubclass(cls, ByKeyword):
        return [cls]
    return [kind(group="G_test") for kind in (cls, getattr(halfmoon, f"Async{name}"))]


def test_a_client_has_no_other_attributes_either():
    producer = TransactionProducer(group="P_test")
    with pytest.raises(AttributeError, match=r"^.TransactionProducer. object has no attribute .sendd."):
        producer.sendd  # noqa: B018
    with pytest.raises(AttributeError, match="send_sync of rocketmq-client-python is send"):
        producer.send_sync  # noqa: B018


@pytest.mark.parametrize(("name", "old", "new"), [(name, *pair) for name in OLD_NAMES for pair in OLD_NAMES[name].items()])
def test_a_new_name_is_that_of_an_attribute_or_of_a_setting_of_the_constructor(name: str, old: str, new: str):
    told = new.partition("(")[0].partition("=")[0].partition(".")[0].partition(",")[0]
    cls: Any = CLASSES[name]
    known = {*dir(cls), *getattr(cls, "__struct_fields__", ()), *getattr(cls, "__match_args__", ())}
    if "of the constructor" in new:
        known |= {*cls(group="G_test").settings.__dataclass_fields__}
    assert told in known


@pytest.mark.parametrize("name", OLD_NAMES)
def test_the_page_about_the_old_client_has_every_name_and_what_it_is(name: str):
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    wanted = {old: re.split(r"\W", new)[0] for old, new in OLD_NAMES[name].items()}
    told = {old: [new for before, new, *_ in rows if re.search(rf"\b{old}\b", before)] for old in wanted}
    assert {old for old, word in wanted.items() if not any(re.search(rf"\b{word}\b", new) for new in told[old])} == set()


def test_values_tell_it_too():
    result = SendResult(SendStatus.SEND_OK, "id", "offset id", MessageQueue("orders", "broker-a", 0), 7)
    for value, old in ((Message("orders", b""), "tags"), (result, "offset")):
        with pytest.raises(AttributeError, match=f"{old} of rocketmq-client-python is"):
            getattr(value, old)


def test_a_message_that_came_from_a_broker_tells_it_too():
    message = decode_record(record(7))
    assert isinstance(message, StoredMessage)
    with pytest.raises(AttributeError, match="born_timestamp of rocketmq-client-python is born_ms"):
        message.born_timestamp  # noqa: B018
    with pytest.raises(AttributeError, match="a message has no nothing"):
        message.nothing  # noqa: B018
