"""Names of other clients of RocketMQ are told by the names that they have here; nothing else changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import halfmoon
from halfmoon import Message, MessageQueue, SendResult, SendStatus, StoredMessage, TransactionProducer
from halfmoon.client.constructors.by_keyword import ByKeyword
from halfmoon.model.old_names import JAVA_NAMES, OLD_NAMES
from halfmoon.wire.record import decode_record
from tests.client.messages import record

PAGE = Path(__file__).parents[2] / "docs" / "from-rocketmq-client-python.md"
TABLES = {"rocketmq-client-python": OLD_NAMES, "RocketMQ's Java client": JAVA_NAMES}
KNOWN = [
    (client, owner, old, new) for client, table in TABLES.items() for owner, names in table.items() for old, new in names.items()
]
OWNERS: dict[str, Any] = {owner: getattr(halfmoon, owner, halfmoon) for _, owner, _, _ in KNOWN}


@pytest.mark.parametrize(("client", "owner", "old", "new"), KNOWN)
def test_an_old_name_is_told_by_its_new_one_and_is_no_attribute(client: str, owner: str, old: str, new: str):
    assert [hasattr(thing, old) for thing in things(owner)] == [False] * len(things(owner))
    for text in [error_of(thing, old) for thing in things(owner)]:
        assert re.search(rf"has no (attribute|member) '{old}': ", text)
        assert text.endswith(f": {old} of {client} is {new}")


@pytest.mark.parametrize(("client", "old", "new"), [(client, old, new) for client, owner, old, new in KNOWN if owner == "halfmoon"])
def test_an_import_of_an_old_name_is_refused_with_the_new_one(client: str, old: str, new: str):
    with pytest.raises(ImportError, match=re.escape(f"cannot import name '{old}' from 'halfmoon': {old} of {client} is {new}")):
        exec(f"from halfmoon import {old}", {})


def error_of(thing: Any, name: str) -> str:
    with pytest.raises(AttributeError) as told:
        getattr(thing, name)
    return str(told.value)


def things(name: str) -> list[Any]:
    """Return things of a class, clients of asyncio's, too; of values the class itself."""
    cls = OWNERS[name]
    if not isinstance(cls, type) or not issubclass(cls, ByKeyword):
        return [cls]
    return [kind(group="G_test") for kind in (cls, getattr(halfmoon, f"Async{name}"))]


def test_a_client_has_no_other_attributes_either():
    producer = TransactionProducer(group="P_test")
    with pytest.raises(AttributeError, match=r"^TransactionProducer has no attribute 'sendd'$"):
        producer.sendd  # noqa: B018
    with pytest.raises(AttributeError, match="send_sync of rocketmq-client-python is send"):
        producer.send_sync  # noqa: B018


@pytest.mark.parametrize(("owner", "old", "new"), [known[1:] for known in KNOWN])
def test_a_new_name_is_that_of_an_attribute_or_of_a_setting_of_the_constructor(owner: str, old: str, new: str):
    told = re.split(r"\W", new)[0]
    cls = OWNERS[owner]
    known = {*dir(cls), *getattr(cls, "__struct_fields__", ()), *getattr(cls, "__match_args__", ())}
    if "of the constructor" in new:
        known |= {*cls(group="G_test").settings.__dataclass_fields__}
    assert told in known


ROWS = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]


@pytest.mark.parametrize(("owner", "old", "new"), [known[1:] for known in KNOWN])
def test_the_page_about_the_old_client_has_every_name_and_what_it_is(owner: str, old: str, new: str):
    told = [now for before, now, *_ in ROWS if re.search(rf"\b{old}\b", before)]
    word = re.split(r"\W", new)[0]
    assert any(re.search(rf"\b{word}\b", now) for now in told), told


def test_errors_know_every_name_of_the_page_that_is_not_the_same_here():
    same = {name for owner in [*OWNERS.values(), halfmoon.AsyncHalf] for name in dir(owner)} | {"body", "keys"}
    spans = [span for before, *_ in ROWS for span in re.findall(r"`([\w.]+)", before)]
    names = {span.rpartition(".")[2] for span in spans}
    assert len(names) > 50
    assert names - same - {old for _, _, old, _ in KNOWN} == set()


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
