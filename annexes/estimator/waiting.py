"""Waits of an Estimator: bounded, and ended when this task is asked to end."""

import threading
import time

from ...distribute.program_cluster import program_cluster

_LOOK_S = 0.5


def pause(seconds: float) -> None:
    """Wait so long.

    Raises:
        RopewalkError: This task is asked to end meanwhile.
    """
    runtime = program_cluster()
    until, gate = time.monotonic() + seconds, threading.Event()
    while (left := until - time.monotonic()) > 0:
        if runtime is not None:
            runtime.job.check()
        gate.wait(min(left, _LOOK_S))
