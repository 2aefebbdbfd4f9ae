"""The chief of a job whose program runs elsewhere: on a laptop, beyond the gateway.

It leads as every chief does: it knows who belongs to the job, renews its lease on the ps, chooses
the checkpoint to begin with, saves others. The program registers with it as the chief's, asks it
for that checkpoint, and may be silent for a while.
"""

import contextlib
import logging
import threading

from ...cluster.resolvers.resolved import ResolvedTask
from ...core.errors import JoinTimeoutError
from ...core.exit_codes import ExitCode
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.task import Incarnation, Phase, State
from ..data_plane.servers import ServersPlane
from ..process.surroundings import handle_signals
from .leader import JobLeader

log = logging.getLogger(__name__)

_POLL_S = 0.05
_ENDED = (State.DONE, State.FAILED, State.LEFT)


def lead(task: ResolvedTask, settings: Settings) -> int:
    """Lead a job until its program has ended, or SIGTERM; returns the exit code.

    Args:
        task: The chief.
        settings: The job's settings.

    Raises:
        JoinTimeoutError: No program registered, or a ps did not answer.
        RopewalkError: The job cannot be led.
    """
    servers = ServersPlane(task, settings)
    program = _OutsideProgram(task, settings)
    handle_signals(program.stop)
    try:
        with contextlib.closing(
            JobLeader(task, settings, servers, *servers.serve_chief())
        ) as leader:
            return program.run(leader)
    finally:
        servers.close()


class _OutsideProgram:
    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self._task = task.task
        self._settings = settings
        self._stopping = threading.Event()
        self._reason = ""

    def stop(self, name: str) -> None:
        self._reason = f"{self._task} was asked to stop by {name}"
        self._stopping.set()

    def run(self, leader: JobLeader) -> int:
        identified = leader.identify(program_is_outside=True)
        who = self._wait_for_program(leader)
        if who is None:
            return ExitCode.DRAINED
        begins_with = leader.lead(identified, who).resume()
        with leader.locked_job.open():
            leader.locked_job.begins_with = begins_with
        while not (self._has_ended(leader) or self._stopping.wait(_POLL_S)):
            pass
        if not self._has_ended(leader):
            leader.stop(self._reason)
            self._wait_for_end(leader)
        with leader.locked_job.open() as (job, _):
            step = job.members.global_step
        phase = leader.end(step)
        if phase is None or phase is Phase.FAILED:
            log.error("the job failed: %s", leader.reason)
            return leader.failure.exit_code if leader.failure else ExitCode.PROGRAM_FAILED
        return phase.exit_code

    def _wait_for_program(self, leader: JobLeader) -> Incarnation | None:
        """Wait for the program's registration; None: this process was asked to stop before."""
        limit_s = self._settings.join_timeout_s
        waits = WaitLog(self._task, limit_s=limit_s, limit="join_timeout_s")
        clock = leader.locked_job.clock
        until = clock.now() + limit_s
        while clock.now() < until:
            with leader.locked_job.open() as (job, _):
                member = job.members[self._task]
                if member.generation:
                    return Incarnation(self._task, member.generation, job.name or "")
            if self._stopping.wait(_POLL_S):
                return None
            waits.tick("the program, which runs at its driver")
        raise JoinTimeoutError(
            f"{self._task} waited {limit_s:g} s (join_timeout_s) for the program, which runs "
            "at its driver",
            task=self._task,
            missing="program",
        )

    def _has_ended(self, leader: JobLeader) -> bool:
        with leader.locked_job.open() as (job, _):
            return job.members[self._task].state in _ENDED or job.phase.is_over

    def _wait_for_end(self, leader: JobLeader) -> None:
        """Give the program the time to reach its next step."""
        clock = leader.locked_job.clock
        until = clock.now() + self._settings.drain_grace_s
        pause = threading.Event()
        while clock.now() < until and not self._has_ended(leader):
            pause.wait(_POLL_S)
