"""Links that open the page, each for one browser. Pure.

As in Jupyter the link has a token. It is used up by who comes first, who gets a cookie; for another
browser there is another link. So a link in a log, in a history or over a shoulder opens nothing,
and other users of the machine do not see the page, though they reach its port.
"""

import hmac
import secrets
from collections import deque

MOST_BROWSERS = 32


class Doors:
    """Links and cookies. Used by one thread."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self._cookies: deque[str] = deque(maxlen=MOST_BROWSERS)

    def open(self, token: str) -> str | None:
        """Return the cookie for who comes with a token, which is used up; None: it is not valid."""
        if not _same(token, self.token):
            return None
        self.token = secrets.token_urlsafe(24)
        cookie = secrets.token_urlsafe(24)
        self._cookies.append(cookie)
        return cookie

    def knows(self, cookie: str) -> bool:
        """Return whether a cookie was given to somebody; the oldest are forgotten."""
        return any(_same(cookie, each) for each in self._cookies)


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())
