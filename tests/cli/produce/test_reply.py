"""`halfmoon reply` alone; what it replies to requests is tested with `halfmoon request`."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("how", [(), ("42", "--echo"), ("--echo", "--command", "cat")])
def test_exactly_one_way_to_reply_is_named(run, topic, how):
    ran = run("reply", topic, *how)

    assert ran.code == 2
    assert "give one of BODY, --echo and --command" in ran.err
