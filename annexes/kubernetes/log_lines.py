"""The lines of a container's log, each once, however often the stream breaks. Pure.

Every line comes behind its time. A stream that breaks off, maybe in the middle of a line, is begun
again at a whole second before the last line that was heard, because the API knows no smaller unit.
Lines of that overlap are recognised by their time and text, counted (the same line may have been
written twice). Times alone would not do: two streams of one container are not in order.
"""

import hashlib
import re
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...launch.processes.output import last_version

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d) ?")
_OVERLAP_S = 1  # beyond the whole second
_MOST_REMEMBERED = 200_000  # beyond, lines may be shown twice; none is lost
_LONGEST_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log.

    Attributes:
        text: Text of the line without its time and end.
        time: Time as the API wrote it, to the second; empty: the line had none, so it is the
            kubelet's, which writes its errors into the stream with status 200
            (kubernetes/kubernetes#142258).
    """

    text: str
    time: str


class LogCursor:
    """Reads one log over several streams."""

    def __init__(self) -> None:
        self._rest = b""
        self._within = ""  # time of a line that was too long, and goes on
        self._newest: datetime | None = None
        self._recent: deque[tuple[datetime, bytes]] = deque()
        self._seen: Counter[bytes] = Counter()

    def begin(self) -> str:
        """Begin a stream; returns the time to ask for lines since, or empty: all of them."""
        self._rest, self._within = b"", ""  # a cut line comes again, whole
        since = self._since()
        while self._recent and since is not None and self._recent[0][0] < since:
            self._recent.popleft()
        self._seen = Counter(digest for _, digest in self._recent)
        return "" if since is None else since.strftime("%Y-%m-%dT%H:%M:%SZ")

    def feed(self, chunk: bytes) -> list[LogLine]:
        """Take in a chunk; returns the new lines that are complete."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        taken = [self._take(raw) for raw in lines]
        if len(self._rest) > _LONGEST_LINE:
            within = self._within
            cut, self._rest = self._take(self._rest), b""
            taken.append(cut)
            self._within = cut.time if cut is not None else within
        return [line for line in taken if line is not None]

    def end(self) -> list[LogLine]:
        """End the log; returns a last line without an end."""
        raw, self._rest = self._rest, b""
        line = self._take(raw) if raw else None
        return [line] if line is not None else []

    def _take(self, raw: bytes) -> LogLine | None:
        match = _STAMP.match(raw)
        time, self._within = self._within, ""
        if match is None:
            return LogLine(raw.decode(errors="replace").rstrip("\r"), time)
        digest = hashlib.blake2b(raw, digest_size=12).digest()
        if self._seen[digest] > 0:
            self._seen[digest] -= 1
            return None
        zone = b"+00:00" if match[2] == b"Z" else match[2]
        at = datetime.fromisoformat((match[1] + zone).decode()).astimezone(UTC)
        self._newest = max(at, self._newest or at)
        self._recent.append((at, digest))
        self._forget()
        # A progress bar writes its line over and over; the last one is what a terminal would show.
        shown = last_version(raw[match.end() :])
        return LogLine(shown.decode(errors="replace"), at.isoformat())

    def _since(self) -> datetime | None:
        return None if self._newest is None else self._newest - timedelta(seconds=_OVERLAP_S)

    def _forget(self) -> None:
        """Forget what no stream will begin before, or is more than is remembered."""
        since = self._since()
        while len(self._recent) > _MOST_REMEMBERED or (
            since is not None and len(self._recent) > 1 and self._recent[0][0] < since
        ):
            self._recent.popleft()
