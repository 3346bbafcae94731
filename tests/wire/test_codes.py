"""Tests of the protocol's numbers: languages, permissions and the version that decides what servers answer."""

from __future__ import annotations

from halfmoon.wire import codes
from halfmoon.wire.codes import Language, Perm


def test_languages_have_the_protocol_s_numbers():
    names = ["JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"]

    assert [Language[name].value for name in names] == list(range(14))


def test_permissions_have_the_protocol_s_bits():
    assert (Perm.INHERIT, Perm.WRITE, Perm.READ, Perm.PRIORITY) == (1, 2, 4, 8)
    assert Perm.READ | Perm.WRITE == 6


def test_our_version_is_one_that_gets_standard_json_from_name_servers():
    assert codes.VERSION == 409
    assert codes.VERSION >= codes.VERSION_V4_9_4
    assert codes.VERSION < codes.VERSION_V5_0_0
