"""Since when a process is stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

from ropewalk.core.process.processes import StoppedSince, is_stopped

WaitUntil = Callable[..., None]


def test_a_process_is_stopped_until_it_goes_on(wait_until: WaitUntil) -> None:
    command = [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            stopped = StoppedSince()
            assert stopped.look(process.pid, now=1.0) is None
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: is_stopped(process.pid), 10, "it to be stopped")
            assert stopped.look(process.pid, now=2.0) == 2.0
            assert stopped.look(process.pid, now=3.0) == 2.0
            process.send_signal(signal.SIGCONT)
            wait_until(lambda: not is_stopped(process.pid), 10, "it to go on")
            assert stopped.look(process.pid, now=4.0) is None
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: is_stopped(process.pid), 10, "it to be stopped again")
            assert stopped.look(process.pid, now=5.0) == 5.0
        finally:
            process.kill()
    assert stopped.look(process.pid, now=6.0) is None, "it is gone"
    assert not is_stopped(os.getpid())
