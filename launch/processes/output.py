"""A task's output as lines. Pure: bytes and the time in, lines out."""

import re

from ...worker.process.logs import LAUNCHER_MARK

# Where a log line of ours begins behind a part of a line, such as a progress bar's.
_INTERRUPTED = re.compile(rb"(?<=[^\n])" + LAUNCHER_MARK.encode())
_OVERWRITTEN_S = 2.0
_MAX_LINE_BYTES = 64 * 1024


class LineSplitter:
    """Cuts what a process writes into lines.

    A progress bar such as tqdm's ends its lines with a carriage return and writes the next one over
    the last. In a log every one of them would be a line, or all of them a single one: the last is
    shown when the line ends, and meanwhile one every two seconds.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._shown = b""  # of a line that is not over
        self._shown_at = 0.0

    def feed(self, data: bytes, *, now: float) -> list[str]:
        """Return the lines to show after more output; ``now`` in seconds."""
        whole = _INTERRUPTED.sub(b"\n" + LAUNCHER_MARK.encode(), self._rest + data)
        *ended, rest = whole.split(b"\n")
        lines = []
        for raw in ended:
            text = last_version(raw)
            if text != self._shown or not text:
                lines.append(_decoded(text))
            self._shown = b""
        if b"\r" in rest:
            if not self._shown and ended:
                self._shown_at = now
            text = last_version(rest)
            text = text[:_MAX_LINE_BYTES]  # no terminal is as wide
            rest = b"\r" + text + (b"\r" if rest.endswith(b"\r") else b"")
            if text and text != self._shown and now - self._shown_at >= _OVERWRITTEN_S:
                self._shown, self._shown_at = text, now
                lines.append(_decoded(text))
        elif len(rest) > _MAX_LINE_BYTES:
            lines.append(_decoded(rest))
            rest = b""
        self._rest = rest
        return lines

    def end(self) -> list[str]:
        """Return the last line, if it has no end."""
        text, self._rest = last_version(self._rest), b""
        return [_decoded(text)] if text and text != self._shown else []


def last_version(raw: bytes) -> bytes:
    """Find what a terminal would show of a line whose parts overwrite each other."""
    return next((part for part in reversed(raw.split(b"\r")) if part.strip()), b"")


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="replace").rstrip()
