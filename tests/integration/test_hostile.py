"""Random, damaged and lying frames, the same for both twins: see `tests.integration.hostile`, which takes as many as one likes."""

from __future__ import annotations

import pytest

from halfmoon import hot
from tests.integration.hostile import both, suffer

BYTES = 6_000_000


@pytest.mark.skipif(hot.NATIVE is None, reason="there is one twin only")
@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_frames_are_answered_alike_by_both_twins_and_harm_neither(seed):
    pure, native = both(seed, BYTES)

    assert (pure[0], native[0]) == (None, hot.NATIVE)
    assert pure[2]["bytes"] >= BYTES
    assert min(pure[2]["answers"], pure[2]["closed"]) > 500
    assert pure[2]["log"] > 200_000


def test_brokers_that_answer_otherwise_are_told_apart(tmp_path, capsys):
    """The digest is of what was answered."""
    lines = []
    for seed in (1, 1, 2):
        suffer(str(tmp_path / str(len(lines))), seed, 100_000, -1)
        lines.append(capsys.readouterr().out.splitlines()[-1])

    digests = [line.partition('"digest": ')[2].partition(",")[0] for line in lines]
    assert digests[0] == digests[1] != digests[2]
