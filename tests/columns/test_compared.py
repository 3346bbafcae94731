"""Every function of the compiled twin is compared with the Python one on any bytes: by which tests, and the smallest of these."""

from __future__ import annotations

import ast
import re
from array import array
from itertools import accumulate
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon import broker
from halfmoon.hot import ALL
from halfmoon.wire.codes import JSON, ROCKETMQ, VERSION
from tests.columns.conftest import joined, native

HERE = Path(__file__).parent
COMPARING = [
    *(HERE / f"test_{name}.py" for name in ("twins", "twin_records", "filtering", "frames", "compared", "signing")),
    HERE.parent / "data" / "test_rows.py",
]
"""Tests whose examples are many: `make fuzz` runs them for long."""

SAID = {"INTERFACE", "VERSION"}
"""What the compiled twin says of itself, and no function."""


def names_of(twin: object) -> set[str]:
    """Return the functions of a twin, and of its classes as ``Class.method``."""
    found = {name for name in dir(twin) if not name.startswith("_") and name != "halfmoon_native"}
    classes = [name for name in found if isinstance(getattr(twin, name), type)]
    methods = {f"{name}.{each}" for name in classes for each in dir(getattr(twin, name)) if not each.startswith("_")}
    return (found | methods) - SAID


def names_in_examples(text: str) -> set[str]:
    """Return what tests with examples made by hypothesis name, and the functions of their module that they call."""
    functions = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    waiting = [name for name, node in functions.items() if any("given" in ast.unparse(each) for each in node.decorator_list)]
    found: set[str] = set()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        named = {
            n.attr if isinstance(n, ast.Attribute) else n.id
            for n in ast.walk(functions[name])
            if isinstance(n, ast.Attribute | ast.Name)
        }
        found |= named
        waiting += [each for each in named if each in functions and each not in seen]
    return found


def called_by_the_broker() -> set[str]:
    """Return the methods of its reader that the broker calls."""
    sources = Path(broker.__file__).parent.rglob("*.py")
    return {name for path in sources for name in re.findall(r"\breader\.(\w+)\(", path.read_text())}


def test_every_function_of_the_compiled_twin_is_compared_on_any_bytes():
    compared = set().union(*(names_in_examples(path.read_text()) for path in COMPARING))
    missing = {name for name in names_of(native()._modules[0]) if name.rpartition(".")[2] not in compared}

    # `test_general_path` compares a broker with one whose reader takes nothing: it reaches what the broker calls
    assert missing - {f"Reader.{name}" for name in called_by_the_broker()} == set()


def test_a_function_that_no_example_names_is_missed():
    text = "def one(twin): twin.a\n\n@given(x)\ndef test(twin):\n    two(twin)\n\ndef two(twin): twin.b(twin.c)\n"

    assert names_in_examples(text) >= {"b", "c"}
    assert "a" not in names_in_examples(text)
    assert "read" in called_by_the_broker()
    assert "allow" not in called_by_the_broker()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**31), 2**31 - 1), st.sampled_from([JSON, ROCKETMQ])), max_size=20))
def test_that_it_is_done_is_told_alike(twins, senders):
    python, native = twins

    assert joined(native.done_answers(senders, VERSION)) == joined(python.done_answers(senders, VERSION))


I64 = st.integers(-(2**63), 2**63 - 1)


@given(
    st.integers(-(2**31), 2**31 - 1), st.sampled_from([JSON, ROCKETMQ]), st.integers(-(2**15), 2**15 - 1),
    st.sampled_from(["FOUND", "OFFSET_OVERFLOW_ONE", ""]), st.tuples(I64, I64, I64), st.none() | I64, st.integers(0, 2**30),
)  # fmt: skip
def test_the_head_of_a_pulls_answer_is_alike(twins, opaque, serialization, code, remark, offsets, birth_ms, size_bytes):
    python, native = twins
    arguments = opaque, serialization, code, remark, offsets, birth_ms, size_bytes, VERSION

    assert native.pull_head(*arguments) == python.pull_head(*arguments)


@given(
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5),
    st.tuples(st.integers(0, 9), st.integers(0, 2**31 - 1), st.sampled_from([JSON, ROCKETMQ]), st.sampled_from([1, 2])),
    st.sampled_from(["R", "Region 100 %", "\xe9"]),
    st.booleans(),
)
def test_what_lies_in_the_log_already_is_answered_alike(twins, places, sender, region, trace_on):
    told = []
    for twin in twins:
        messages = twin.Messages.lying_at(places)
        messages.sent(*sender, len(places))
        answers = joined(twin.send_answers([(messages, 3, 5)], ALL, region, "7F00", VERSION, trace_on=trace_on))
        told.append((messages.senders, messages.places, answers))

    assert told[0] == told[1]


@given(st.binary(max_size=3000), st.integers(0, 2**32 - 1))
def test_checksums_are_alike(twins, data, before):
    for twin in twins:
        assert twin.crc32(data, before) == crc32(data, before)


@given(st.lists(st.binary(max_size=300), max_size=20), st.binary(max_size=5))
def test_sums_of_checksums_are_alike(twins, stretches, before):
    places = array("i", accumulate(map(len, stretches), initial=len(before)))
    for twin in twins:
        assert twin.crc_sum(b"".join([before, *stretches]), memoryview(places).cast("B")) == sum(map(crc32, stretches))


@pytest.mark.parametrize("places", [(-1, 0), (0, 4), (2, 1), (4, 4)])
def test_stretches_that_cannot_be_have_no_sum(twins, places):
    for twin in twins:
        with pytest.raises(ValueError, match="the offsets do not rise, or lead beyond the bytes"):
            twin.crc_sum(b"abc", memoryview(array("i", places)).cast("B"))
