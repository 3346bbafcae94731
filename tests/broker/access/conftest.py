"""The requests of a broker that came to the general path."""

import pytest

from halfmoon.hot import NATIVE


@pytest.fixture
def general(talk, monkeypatch):
    """The peers whose requests came to the general path; in Python all of them do, and the test is skipped."""
    peers = []
    if NATIVE is None:
        pytest.skip("in Python all requests take the general path")
    handle = talk.broker._handle_frame

    def noted(peer, data, frame, now, **how):
        peers.append(peer.number)
        handle(peer, data, frame, now, **how)

    monkeypatch.setattr(talk.broker, "_handle_frame", noted)
    return peers
