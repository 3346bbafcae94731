"""Sessions of users, in memory only: a restart of the console ends them all. Tokens are kept as hashes only."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

from halfmoon.console.access.users import User
from halfmoon.errors import UsageError

IDLE_MS, LIFE_MS = 30 * 60_000, 12 * 3_600_000
SESSIONS_MAX, USER_SESSIONS_MAX = 2_000, 20
FORMS_MAX = 200
"""Forms of a session that are remembered, besides those that are running, which are fewer than requests may be."""
RUNNING = "running"


class Session:
    """Session of one login.

    ``user`` is the user's name, ``changed_ms`` is of the password (`User.changed_ms`): where that is another now, the session is
    worth nothing. ``csrf`` is what each form carries, ``notice`` a text for the next page, which takes it.
    """

    def __init__(self, user: User, now_ms: int) -> None:
        self.user, self.changed_ms = user.name, user.changed_ms
        self.created_ms = self.used_ms = now_ms
        self.csrf = secrets.token_urlsafe(32)
        self.notice = ""
        self._done: dict[str, str] = {}

    def begin(self, form_id: str) -> str | None:
        """Return None if a form is to be carried out now, and then to be finished (`finish`).

        Else it was sent before: return `RUNNING`, or its outcome. Raises UsageError for an id that is empty or over 64 characters.
        """
        if form_id in self._done:
            return self._done[form_id]
        if not 1 <= len(form_id) <= 64:
            raise UsageError("the id of the form is missing or too long: open the page again")
        over = [form for form, outcome in self._done.items() if outcome != RUNNING]
        if len(over) >= FORMS_MAX:
            del self._done[over[0]]
        self._done[form_id] = RUNNING
        return None

    def finish(self, form_id: str, outcome: str) -> None:
        """Keep the outcome of a form, in case it is sent again."""
        self._done[form_id] = outcome


class Sessions:
    """All sessions, for one thread.

    One ends when it was not used for 30 minutes, after 12 hours, and if there are too many by being the least recently used.
    ``now_ms``: milliseconds since the epoch.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._sessions: dict[bytes, Session] = {}

    def open(self, user: User) -> tuple[str, Session]:
        """Begin a session, and return its token and the session.

        Ends the sessions that the same user began with another password.
        """
        token, session = secrets.token_urlsafe(32), Session(user, self._now_ms())
        self._sessions = {
            key: other
            for key, other in self._sessions.items()
            if not self._is_over(other) and (other.user != user.name or other.changed_ms == user.changed_ms)
        }
        same = [key for key, other in self._sessions.items() if other.user == user.name]
        if len(same) >= USER_SESSIONS_MAX or len(self._sessions) >= SESSIONS_MAX:
            among = same if len(same) >= USER_SESSIONS_MAX else self._sessions
            del self._sessions[min(among, key=lambda key: self._sessions[key].used_ms)]
        self._sessions[_key(token)] = session
        return token, session

    def find(self, token: str, *, renews: bool = True) -> Session | None:
        """Return the session of a token; None: there is none, or it has ended. What a page asks for by itself does not renew it.

        The caller compares ``changed_ms`` with the user's as it is now.
        """
        session = self._sessions.get(_key(token))
        if session is None or self._is_over(session):
            self.close(token)
            return None
        session.used_ms = self._now_ms() if renews else session.used_ms
        return session

    def close(self, token: str) -> None:
        """End a session, if there is one of this token."""
        self._sessions.pop(_key(token), None)

    def _is_over(self, session: Session) -> bool:
        now = self._now_ms()  # either way: no session lives on because the clock was set back
        return abs(now - session.used_ms) >= IDLE_MS or abs(now - session.created_ms) >= LIFE_MS


def _key(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
