"""Every operation is a method of both administration clients, with the operation's own parameters and docstring."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from halfmoon import Admin, AsyncAdmin
from halfmoon.client.admin import Operation, Operations
from halfmoon.client.core.admin.admin import AdminCore

NAMES = [name for name, value in vars(Operations).items() if isinstance(value, Operation)]


@pytest.mark.parametrize("name", NAMES)
def test_both_clients_have_the_method_with_parameters_and_docstring(name):
    awaited, blocking = getattr(AsyncAdmin, name), getattr(Admin, name)

    assert inspect.iscoroutinefunction(awaited)
    assert not inspect.iscoroutinefunction(blocking)
    assert inspect.signature(awaited).parameters == inspect.signature(blocking).parameters
    assert awaited.__name__ == blocking.__name__ == name
    assert inspect.getdoc(awaited) == inspect.getdoc(blocking) != None  # noqa: E711
    assert not str(inspect.signature(awaited).return_annotation).startswith("Op[")


def test_every_public_operation_of_the_core_that_takes_user_names_is_offered():
    internal = {"group_stats", "masters", "masters_of", "masters_of_group", "wire", "wire_queue", "user_queue"}
    public = {name for name, value in vars(AdminCore).items() if inspect.isfunction(value) and not name.startswith("_")}

    assert public - internal <= set(NAMES)


def test_what_a_method_returns_is_known_at_run_time():
    assert get_type_hints(AsyncAdmin.lag)["return"] is int
    assert get_type_hints(Admin.kv_list)["return"] == dict[str, str]
