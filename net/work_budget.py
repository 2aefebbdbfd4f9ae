"""How much of a processor may be spent on callers who have not shown who they are. Pure.

Strangers can send frames, handshakes and connections as fast as the machine lets them. Whatever
they send, the thread that serves them works for a share of the time only, and they wait.
"""


class WorkBudget:
    """Working time that grows with the clock and is spent by working.

    Args:
        share: Of one processor, between 0 and 1.
        burst_s: Most that may be saved up. Unit: seconds of work.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at = 0.0

    def spend(self, work_s: float) -> None:
        """So much was worked. Unit: seconds."""
        self._left_s -= work_s

    def wait_s(self, now: float) -> float:
        """How long to do nothing more; 0: go on. Unit: seconds.

        Args:
            now: Any clock in seconds, the same at each call.
        """
        if self._at:
            self._left_s = min(self._burst_s, self._left_s + (now - self._at) * self._share)
        self._at = now
        return max(0.0, -self._left_s / self._share)
