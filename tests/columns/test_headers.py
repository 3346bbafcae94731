"""Headers of pulls: a field that cannot be, or is missing, is left to the general decoder."""

from __future__ import annotations

import pytest

from halfmoon.columns.headers import pull_header_json
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.pull import PullMessage


@pytest.mark.parametrize(
    "damage", [(b'"topic":"T"', b'"topic":7.5'), (b'"queueId":"3"', b'"queueId":"x"'), (b'"opaque":5', b'"opaque":"five"')]
)
def test_a_header_with_a_field_that_cannot_be_is_left_to_the_decoder(damage: tuple[bytes, bytes]):
    pull = PullMessage(
        consumer_group="G", topic="T", queue_id=3, queue_offset=0, max_msg_nums=32, sys_flag=0, commit_offset=0,
        suspend_timeout_millis=0, sub_version=0,
    )  # fmt: skip
    header = encode(request_command(pull, opaque=5))[8:]
    assert damage[0] in header
    assert pull_header_json(header) is not None
    assert pull_header_json(header.replace(*damage)) is None
