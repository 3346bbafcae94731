"""Tests of the tests: each can fail. No assertion is always true, and none stands only in a loop that may have no turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent
ARRANGE = ("dict", "enumerate", "fields", "list", "map", "reversed", "set", "sorted", "tuple", "zip")
"""Functions of which the result has as many members as an argument."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def sources() -> dict[str, ast.Module]:
    """Return all test modules by their path."""
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("test_*.py"))}


def always_true(tree: ast.AST) -> list[int]:
    """Return the lines of assertions that a length, a count or a duration is at least 0."""
    asserted = (each for node in ast.walk(tree) if isinstance(node, ast.Assert) for each in ast.walk(node.test))
    compared = (node for node in asserted if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.GtE))
    return [node.lineno for node in compared if isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value == 0]


def asserts_in_loops_alone(tree: ast.AST) -> list[str]:
    """Return the tests whose assertions all stand in loops that may have no turn."""
    tests = (node for node in ast.walk(tree) if isinstance(node, FUNCTIONS) and node.name.startswith("test_"))
    return [test.name for test in tests if set(_places(test, _filled(test), in_loop=False)) == {True}]


def _filled(test: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    """Return the names in a test that surely hold something: literals, and parameters of ``parametrize``."""
    given = [text for decorator in test.decorator_list if "parametrize" in (text := ast.unparse(decorator))]
    parameters = {arg.arg for arg in test.args.args if any(arg.arg in text for text in given)}
    literals: set[str] = set()
    for node in ast.walk(test):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if targets and _has_a_turn(node.value, frozenset(literals)):
            literals |= {name.id for name in targets if isinstance(name, ast.Name)}
    return frozenset(literals | parameters | {"twins"})


def _places(node: ast.AST, filled: frozenset[str], *, in_loop: bool) -> Iterator[bool]:
    """Yield for each assertion whether it may be left out, because its loop has no turn."""
    if _asserts(node):
        yield in_loop
    for child in ast.iter_child_nodes(node):
        may_be_empty = isinstance(node, (ast.For, ast.AsyncFor)) and child in node.body and not _has_a_turn(node.iter, filled)
        yield from _places(child, filled, in_loop=in_loop or may_be_empty)


def _asserts(node: ast.AST) -> bool:
    """Whether a node asserts: by a statement, ``pytest.raises``, or a call of a function that is named so."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        return name.startswith(("assert", "check", "raises", "until", "_assert", "_check"))
    return isinstance(node, ast.Assert)


def _has_a_turn(iterated: ast.expr, filled: frozenset[str]) -> bool:
    """Whether a loop surely has a turn: over a literal, a range, a constant of a module, or a name that is ``filled``."""
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name):
        name, arguments = iterated.func.id, iterated.args
        return name == "range" or (name in ARRANGE and any(_has_a_turn(each, filled) for each in arguments))
    if isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Attribute):
        return any(_has_a_turn(each, filled) for each in (iterated.func.value, *iterated.args))
    if isinstance(iterated, (ast.Tuple, ast.List, ast.Set)):
        return any(not isinstance(each, ast.Starred) or _has_a_turn(each.value, filled) for each in iterated.elts)
    if isinstance(iterated, ast.ListComp):
        return not iterated.generators[0].ifs and _has_a_turn(iterated.generators[0].iter, filled)
    if isinstance(iterated, ast.Dict):
        return bool(iterated.keys)
    if isinstance(iterated, ast.Constant):
        return bool(iterated.value)
    if isinstance(iterated, ast.Attribute):
        return iterated.attr.isupper()
    return isinstance(iterated, ast.Name) and (iterated.id.isupper() or iterated.id in filled)


@pytest.mark.parametrize("file", sorted(sources()))
def test_each_test_can_fail(file: str) -> None:
    assert always_true(sources()[file]) == []
    assert asserts_in_loops_alone(sources()[file]) == []


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("for row in rows(): assert row", True),
        ("assert rows()\n    for row in rows(): assert row", False),
        ("for row in LINES: assert row", False),
        ("for number in range(3):\n        for row in rows(number): assert row", True),
        ("for number, row in enumerate([1, 2]): assert row", False),
        ("for row in [*rows()]: assert row", True),
        ("lines = [1, 2]\n    for row in lines: assert row", False),
        ("for row in rows():\n        with pytest.raises(ValueError): row()", True),
        ("run()", False),
    ],
)
def test_a_loop_that_may_have_no_turn_is_found(body: str, found: bool) -> None:
    assert asserts_in_loops_alone(ast.parse(f"def test_rows():\n    {body}\n")) == (["test_rows"] if found else [])


def test_an_assertion_that_is_always_true_is_found() -> None:
    assert always_true(ast.parse("assert len(rows) >= 0\nassert count >= 1\nassert (kind, ms >= 0) == (1, True)")) == [1, 3]
