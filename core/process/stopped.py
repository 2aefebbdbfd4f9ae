"""Processes that a signal keeps stopped: they neither work nor end."""

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP, or one of its kind, keeps a process from running.

    One that a debugger holds does not count. False if there is no such
    process, or the system does not say.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    # The name in parentheses may have any bytes; the state is the word behind it.
    return status.rpartition(b")")[2].split()[:1] == [b"T"]


class StoppedSince:
    """Times since which processes are stopped, as of each look. Used by one thread. Used by one
    thread.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def look(self, pid: int, *, now: float) -> float | None:
        """Look at a process; returns since when it has been found stopped, or None: it is not."""
        if not is_stopped(pid):
            self._since.pop(pid, None)
            return None
        return self._since.setdefault(pid, now)
