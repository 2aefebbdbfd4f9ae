"""Tasks as processes of this machine, each carried through to its end by a thread.

``ropewalk local`` and the nodes of a standalone cluster carry out their orders here. What to start,
to stop or to start again is not decided here: see ``cluster/supervision/decisions.py``.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ...core.exit_codes import ExitCode
from ...core.process.processes import StoppedSince
from ...core.process.threads import Failed, new_thread
from .process import TaskProcess

log = logging.getLogger(__name__)

# -- Processes that a task has left running: its process group, and programs detached from it --
# A detached process is known by its environment, which has the task's own ``TF_CONFIG``. One that
# has cleared it is not found: a program has the rights of the user that started it as it is.


def end_leftovers(process: TaskProcess, tf_config: str) -> int:
    """End what a task that has ended left running; returns how many processes it had detached.

    What cannot be looked at is logged: the task has ended all the same.

    Args:
        process: The process of the task, which has ended.
        tf_config: The TF_CONFIG of the task.
    """
    try:
        process.signal(signal.SIGKILL)  # to the group
        return end_detached(tf_config)
    except OSError as error:
        log.warning("what %s has left may still run: %s", process.task.short, error)
        return 0


def end_detached(tf_config: str) -> int:
    """End the processes of this user that were started within a task; returns how many.

    Raises:
        OSError: ``/proc`` cannot be read.
    """
    mark = f"TF_CONFIG={tf_config}".encode()
    here, ended = os.getpid(), 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == here:
            continue
        # Gone, another user's, or a thing of the kernel.
        with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as environ:
            if mark in environ.read().split(b"\0"):
                os.kill(int(entry), signal.SIGKILL)
                ended += 1
    return ended


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Work:
    """A task to carry out. All functions are called in its thread.

    Attributes:
        name: Name for threads and logs.
        tf_config: The TF_CONFIG of the task, by which processes that it has detached are known.
        make: Starts the process. May take long, and may raise.
        begin: Called with the process once it can be signalled.
        ended: Called with the exit status as ``subprocess`` reports it, or with the error that kept
            the task from being carried out; after its last line, when nothing of it is left.
    """

    name: str
    tf_config: str
    make: Callable[[], TaskProcess]
    ended: Callable[[int | Exception], None]
    begin: Callable[[TaskProcess], None] = lambda process: None  # noqa: ARG005


@dataclass(slots=True, eq=False)
class _Running:
    process: TaskProcess | None = None  # None: it is being started
    is_cancelled: bool = False


class Executor(Generic[Key]):
    """Carries out tasks. Thread-safe.

    Args:
        output_s: Longest time to wait for the last lines of a task that has ended. Unit: seconds.
        failed: Told what a thread ended with, if ``ended`` raised.
    """

    def __init__(self, output_s: float, failed: Failed) -> None:
        self._output_s = output_s
        self._failed = failed
        self._changed = threading.Condition()
        self._runs: dict[Key, _Running] = {}
        self._stopped = StoppedSince()

    def start(self, key: Key, work: Work) -> None:
        """Carry out a task in a thread. It counts as running at once.

        Raises:
            RuntimeError: There can be no more threads.
        """
        run = _Running()
        with self._changed:
            self._runs[key] = run
        thread = new_thread(
            work.name, partial(self._carry_out, key, run, work), failed=self._failed
        )
        try:
            thread.start()
        except RuntimeError:
            self._forget(key, run)
            raise

    def _carry_out(self, key: Key, run: _Running, work: Work) -> None:
        outcome: int | Exception = int(ExitCode.PEER_LOST)
        try:
            outcome = self._run(run, work)
        except Exception as error:  # noqa: BLE001 - goes to `ended`
            outcome = error
            if run.process is not None:
                run.process.signal(signal.SIGKILL)
        finally:
            work.ended(outcome)
            self._forget(key, run)

    def _run(self, run: _Running, work: Work) -> int:
        process = work.make()
        with self._changed:
            run.process = process
        if run.is_cancelled:
            process.signal(signal.SIGKILL)
            process.process.wait()
            if process.process.stdin is not None:
                process.process.stdin.close()
            return int(ExitCode.DRAINED)
        # It can be signalled from now on, so a process that does not read cannot hold this up.
        work.begin(process)
        code = process.process.wait()
        for reader in process.readers:
            reader.join(self._output_s)
        if left := end_leftovers(process, work.tf_config):
            log.info("%s had detached %d processes, which end", work.name, left)
        return code

    def _forget(self, key: Key, run: _Running) -> None:
        with self._changed:
            if self._runs.get(key) is run:  # else it was started again meanwhile
                del self._runs[key]
            self._changed.notify_all()

    @property
    def running(self) -> set[Key]:
        """The tasks that run or are being started."""
        with self._changed:
            return set(self._runs)

    def send(self, key: Key, number: signal.Signals) -> None:
        """Send a signal to a task, SIGKILL to its group. One that is being started never begins."""
        with self._changed:
            run = self._runs.get(key)
            if run is not None and run.process is None:
                run.is_cancelled = True
        if run is not None and run.process is not None:
            with contextlib.suppress(OSError):
                run.process.signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to all tasks."""
        for key in self.running:
            self.send(key, number)

    def stopped(self, now: float) -> dict[Key, float]:
        """Find the tasks that a signal (SIGSTOP) keeps stopped, and since when. From one thread."""
        with self._changed:
            processes = {key: run.process for key, run in self._runs.items()}
        since = {
            key: self._stopped.look(process.process.pid, now=now)
            for key, process in processes.items()
            if process is not None
        }
        return {key: time for key, time in since.items() if time is not None}

    def wait(self, timeout_s: float) -> None:
        """Wait until no task runs, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not self._runs, timeout_s)
