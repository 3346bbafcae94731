"""The key and value table alone: bounds, and the file that holds it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import SystemError_
from halfmoon.nameserver.kv import KeyValues


def test_values_are_put_got_replaced_and_forgotten() -> None:
    table = KeyValues()
    table.put("n", "k", "1")
    table.put("n", "k", "2")
    assert table.get("n", "k") == "2"
    assert table.get("n", "x") is None
    assert table.get("x", "k") is None
    assert table.namespace("n") == {"k": "2"}
    assert table.namespace("x") is None
    assert table.delete("n", "k")
    assert not table.delete("n", "k")
    assert not table.delete("x", "k")
    assert table.namespace("n") == {}


def test_the_file_has_the_originals_shape() -> None:
    table = KeyValues()
    table.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4;broker-b:4")
    assert json.loads(table.dump()) == {"configTable": {"ORDER_TOPIC_CONFIG": {"t": "broker-a:4;broker-b:4"}}}


@given(st.dictionaries(st.text(max_size=9), st.dictionaries(st.text(max_size=9), st.text(max_size=9), min_size=1), max_size=5))
def test_what_is_saved_reads_back(values: dict[str, dict[str, str]]) -> None:
    table, again = KeyValues(), KeyValues()
    for namespace, entries in values.items():
        for key, value in entries.items():
            table.put(namespace, key, value)
    again.load(table.dump())
    assert {name: again.namespace(name) for name in values} == values
    assert again._count == table._count == sum(map(len, values.values()))


@pytest.mark.parametrize("data", [b"", b"{", b'{"configTable":3}', b'{"configTable":{"n":{"k":1}}}', b"[" * 100_000])
def test_a_file_that_is_not_a_table_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a table"):
        KeyValues().load(data)


def test_names_values_and_their_number_are_bounded() -> None:
    table = KeyValues(entries_max=2, value_bytes_max=4)
    table.put("n", "a", "1234")
    with pytest.raises(SystemError_, match="4 bytes"):
        table.put("n", "b", "ééé")
    with pytest.raises(SystemError_, match="characters"):
        table.put("n" * 1025, "b", "1")
    table.put("m", "b", "1")
    with pytest.raises(SystemError_, match="bound"):
        table.put("m", "c", "1")
    assert table.namespace("m") == {"b": "1"}
    table.put("m", "b", "2")
    table.delete("n", "a")
    table.put("m", "c", "1")


def test_554_entries_of_64_kb_are_not_rewritten_at_each_change() -> None:
    table = KeyValues()
    for number in range(63):
        table.put("n", f"k{number}", "v" * 65_536)
    with pytest.raises(SystemError_, match="all entries together have at most 4194304 bytes"):
        table.put("n", "k63", "v" * 65_536)
    assert len(table.dump()) < 4.5 * 1024 * 1024
    table.put("n", "k0", "short")
    table.put("n", "more", "v" * 60_000)


def test_what_was_saved_by_an_older_version_and_is_too_much_is_kept_and_may_only_shrink() -> None:
    big, table = KeyValues(bytes_max=2**30), KeyValues(bytes_max=1000)
    for number in range(50):
        big.put("n", f"k{number}", "v" * 50)
    table.load(big.dump())
    with pytest.raises(SystemError_):
        table.put("n", "one more", "v")
    table.put("n", "k1", "v")
    assert table.delete("n", "k2")
    assert len(table.namespace("n") or {}) == 49


def test_namespaces_without_keys_take_no_room_for_ever() -> None:
    table = KeyValues(bytes_max=2000)
    for number in range(1000):
        table.put(f"namespace {number}", "k", "v")
        assert table.delete(f"namespace {number}", "k")
    assert len(table.dump()) < 6000
    assert table.namespace("namespace 999") == {}
