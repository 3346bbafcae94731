"""Default name servers of the environment: two variables, and what is said where they differ."""

from __future__ import annotations

import pytest

from halfmoon.client.constructors.name_servers import default_name_servers


@pytest.mark.parametrize(
    ("environment", "addresses", "variable"),
    [
        ({}, "", ""),
        ({"HALFMOON_NAMESERVER": " ", "NAMESRV_ADDR": ""}, "", ""),
        ({"NAMESRV_ADDR": "b:1"}, "b:1", "NAMESRV_ADDR"),
        ({"HALFMOON_NAMESERVER": "", "NAMESRV_ADDR": "b:1"}, "b:1", "NAMESRV_ADDR"),
        ({"HALFMOON_NAMESERVER": "a:1;b:1", "NAMESRV_ADDR": "b:1, a:1;"}, "a:1;b:1", "HALFMOON_NAMESERVER"),
    ],
)
def test_the_first_variable_that_is_set_names_them(environment: dict[str, str], addresses: str, variable: str):
    assert default_name_servers(environment) == (addresses, variable, "")


def test_two_that_differ_are_a_conflict_which_says_what_is_used():
    found = default_name_servers({"NAMESRV_ADDR": "b:1", "HALFMOON_NAMESERVER": "a:1"})
    assert found.addresses == "a:1"
    assert found.conflict == (
        "HALFMOON_NAMESERVER=a:1 and NAMESRV_ADDR=b:1 name different name servers: HALFMOON_NAMESERVER is used; unset the other one"
    )
