"""How long a peer has been silent, while this process has listened.

A machine that was suspended, or a process that was stopped, finds that hours have passed: nobody
was heard meanwhile, and nobody can be blamed for it. So what passes between two looks counts only
as far as a look takes at most.
"""


class Silence:
    """Used by one thread.

    Args:
        now: The current time. Unit: seconds.
        longest_look_s: What passes between two looks at most if this process runs. Unit: seconds.
    """

    def __init__(self, now: float, longest_look_s: float) -> None:
        self._longest_look_s = longest_look_s
        self._looked = now
        self._silent_s = 0.0

    def heard(self, now: float) -> None:
        """The peer was heard."""
        self._looked, self._silent_s = now, 0.0

    def look(self, now: float) -> float:
        """It was not heard; returns how long that lasts. Unit: seconds."""
        self._silent_s += min(now - self._looked, self._longest_look_s)
        self._looked = now
        return self._silent_s
