"""How much processor time may be spent on callers that are not authenticated yet. Pure.

Strangers can send frames, handshakes and connections as fast as the machine allows. The thread that
serves them only works for a share of the time, and they wait.
"""


class WorkBudget:
    """Working time that grows with the clock and is spent by working.

    Args:
        share: Share of one processor, between 0 and 1.
        burst_s: Most working time that may be saved up. Unit: seconds.
    """

    def __init__(self, share: float, burst_s: float) -> None:
        self._share = share
        self._burst_s = burst_s
        self._left_s = burst_s
        self._at = 0.0

    def spend(self, work_s: float) -> None:
        """Subtract time that was spent working. Unit: seconds."""
        self._left_s -= work_s

    def wait_s(self, now: float) -> float:
        """How long to pause; 0: go on. Unit: seconds.

        Args:
            now: Any clock in seconds, the same at each call.
        """
        if self._at:
            self._left_s = min(self._burst_s, self._left_s + (now - self._at) * self._share)
        self._at = now
        return max(0.0, -self._left_s / self._share)
