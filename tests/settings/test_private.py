"""Tests of the rule for files with secrets: whose modes are refused, and who may say that they are meant."""

from __future__ import annotations

import pytest

from halfmoon.settings.private import VARIABLE, exposed, is_private, is_refused


@pytest.mark.parametrize(("mode", "private"), [
    (0o100600, True), (0o100400, True), (0o100700, True), (0o100640, False), (0o100604, False), (0o100440, False),
    (0o100620, False), (0o100602, False),
])  # fmt: skip
def test_a_file_is_private_that_neither_a_group_nor_others_may_use(mode, private):
    assert is_private(mode) is private
    assert is_refused(mode, {}) is not private


@pytest.mark.parametrize(("value", "refused"), [("true", False), ("TRUE ", False), ("", True), ("false", True), ("1", True)])
def test_only_the_word_true_allows_one_that_is_not(value, refused):
    assert is_refused(0o640, {VARIABLE: value}) is refused


def test_a_refusal_names_the_file_the_fix_and_the_setting():
    assert exposed("a.yml", "the secrets in it") == (
        "a.yml: other users may read or change the secrets in it: close it with chmod 600, "
        "or set HALFMOON_SECRETS_READABLE_BY_OTHERS=true (halfmoon docs access)"
    )
    assert "or set acl_readable_by_others=true" in exposed("a.yml", "it", "acl_readable_by_others=true")
