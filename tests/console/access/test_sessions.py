"""Sessions: how long they last, how many there are, and that a form sent twice is carried out once."""

from __future__ import annotations

import pytest

from halfmoon.console.access.sessions import (
    FORMS_MAX,
    IDLE_MS,
    LIFE_MS,
    RUNNING,
    SESSIONS_MAX,
    USER_SESSIONS_MAX,
    Session,
    Sessions,
)
from halfmoon.console.access.users import User
from halfmoon.errors import UsageError

ADA = User("ada", "operator", False, 1)
BOB = User("bob", "viewer", False, 1)


@pytest.fixture
def sessions(clock) -> Sessions:
    """No sessions yet."""
    return Sessions(clock)


@pytest.fixture
def session() -> Session:
    """One session."""
    return Session(ADA, 0)


def test_a_session_is_found_by_its_token_alone(sessions, clock):
    token, session = sessions.open(ADA)
    other_token, other = sessions.open(ADA)

    assert sessions.find(token) is session
    assert sessions.find(other_token) is other
    assert (session.user, session.changed_ms, session.created_ms, session.notice) == ("ada", 1, clock.now_ms, "")
    assert [sessions.find(wrong) for wrong in ("", "x", token[:-1], token + "x", "\ud800", "x" * 1_000_000)] == [None] * 6


def test_tokens_are_of_256_bits_differ_and_are_not_kept(sessions):
    opened = [sessions.open(ADA) for _ in range(10)]

    secrets = [token for token, _ in opened] + [session.csrf for _, session in opened]
    assert len(set(secrets)) == 20
    assert {len(secret) for secret in secrets} == {43}  # base64 of 32 bytes
    assert not any(token in repr(vars(sessions)) or token in repr(vars(session)) for token, session in opened)


def test_a_session_ends_when_it_was_not_used_for_half_an_hour(sessions, clock):
    token, _ = sessions.open(ADA)
    for _ in range(5):
        clock.passes(IDLE_MS / 1000 - 1)
        assert sessions.find(token) is not None

    clock.passes(IDLE_MS / 1000)

    assert sessions.find(token) is None
    clock.passes(-IDLE_MS / 1000)
    assert sessions.find(token) is None, "what is over stays over"


def test_a_page_that_asks_by_itself_keeps_no_session_alive(sessions, clock):
    token, _ = sessions.open(ADA)
    clock.passes(IDLE_MS / 1000 - 1)
    assert sessions.find(token, renews=False) is not None

    clock.passes(1)

    assert sessions.find(token, renews=False) is None


def test_a_session_ends_after_twelve_hours_however_much_it_is_used(sessions, clock):
    token, _ = sessions.open(ADA)
    for _ in range(LIFE_MS // 60_000 - 1):
        clock.passes(60)
        assert sessions.find(token) is not None

    clock.passes(60)

    assert sessions.find(token) is None


@pytest.mark.parametrize(("back_s", "alive"), [(60, True), (IDLE_MS / 1000, False), (365 * 86_400, False)])
def test_a_clock_that_is_set_back_keeps_no_session_alive(sessions, clock, back_s, alive):
    token, _ = sessions.open(ADA)

    clock.passes(-back_s)

    assert (sessions.find(token) is not None) is alive


def test_a_user_has_at_most_twenty_sessions_and_the_least_recently_used_goes(sessions, clock):
    bobs, _ = sessions.open(BOB)
    tokens = []
    for _ in range(USER_SESSIONS_MAX):
        clock.passes(1)
        tokens.append(sessions.open(ADA)[0])
    clock.passes(1)
    assert sessions.find(tokens[0])
    assert sessions.find(tokens[1], renews=False)

    sessions.open(ADA)

    assert sessions.find(tokens[1]) is None
    assert all(sessions.find(token) for token in (bobs, tokens[0], *tokens[2:]))


def test_there_are_at_most_two_thousand_sessions_and_the_least_recently_used_goes(sessions, clock):
    tokens = []
    for number in range(SESSIONS_MAX):
        clock.passes(0.001)
        tokens.append(sessions.open(User(f"user{number // 19}", "viewer", False, 1))[0])
    clock.passes(1)
    assert sessions.find(tokens[0])

    last, _ = sessions.open(ADA)

    assert [token for token in (*tokens, last) if not sessions.find(token)] == [tokens[1]]


def test_sessions_that_are_over_are_not_kept(sessions, clock):
    for number in range(100):
        sessions.open(User(f"user{number}", "viewer", False, 1))
    clock.passes(IDLE_MS / 1000)
    sessions.open(ADA)

    assert len(sessions._sessions) == 1


def test_a_session_says_which_password_began_it_and_a_login_with_another_ends_it(sessions):
    old, session = sessions.open(ADA)
    bobs, _ = sessions.open(BOB)
    changed = User("ada", "operator", False, 2)
    assert session.changed_ms != changed.changed_ms

    new, _ = sessions.open(changed)

    assert sessions.find(old) is None
    assert all(sessions.find(token) for token in (new, bobs))


def test_a_closed_session_is_gone(sessions):
    token, _ = sessions.open(ADA)
    other, _ = sessions.open(ADA)

    sessions.close(token)
    sessions.close(token)
    sessions.close("never there")

    assert sessions.find(token) is None
    assert sessions.find(other) is not None


def test_a_form_that_is_sent_twice_is_carried_out_once(session):
    assert session.begin("form") is None
    assert session.begin("form") == RUNNING
    session.finish("form", "topic orders is deleted")

    assert session.begin("form") == "topic orders is deleted"
    assert session.begin("other") is None


def test_the_last_two_hundred_forms_are_remembered(session):
    for number in range(FORMS_MAX + 50):
        assert session.begin(str(number)) is None
        session.finish(str(number), f"done {number}")

    assert all(session.begin(str(number)) == f"done {number}" for number in range(50, FORMS_MAX + 50))
    assert session.begin("0") is None


def test_a_form_that_is_running_is_never_forgotten(session):
    session.begin("slow")
    for number in range(3 * FORMS_MAX):
        session.begin(str(number))
        session.finish(str(number), "done")
    assert session.begin("slow") == RUNNING

    session.finish("slow", "done at last")
    assert session.begin("slow") == "done at last"


@pytest.mark.parametrize("form_id", ["", "x" * 65])
def test_an_id_that_no_form_of_ours_has_is_refused(session, form_id):
    with pytest.raises(UsageError, match="open the page again"):
        session.begin(form_id)
