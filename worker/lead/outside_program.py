"""The chief of a job whose program runs elsewhere: on a laptop, beyond the gateway.

It leads as every chief does: it knows who belongs to the job, renews its lease on the ps, saves
checkpoints. The program registers with it as the chief's and may be silent for a while.
"""

import contextlib
import logging
import threading

from ...client.ps.control import PsControl
from ...cluster.access.principal import principal_of_task
from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.roles import ps_of
from ...core.errors import JoinTimeoutError
from ...core.exit_codes import ExitCode
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.states import Phase, State
from ...core.task import Incarnation
from ...net.announcement import ChiefAnnouncement
from ...server.chief.server import ChiefServer
from ..process.interrupts import handle_signals
from .checkpoint_sources import PsShards
from .checkpointer import Checkpointer
from .chief_loop import ChiefLoop
from .job_identity import find_job

log = logging.getLogger(__name__)

_POLL_S = 0.05
_ENDED = (State.DONE, State.FAILED, State.LEFT)


def lead(task: ResolvedTask, settings: Settings) -> int:
    """Lead a job until its program has ended, or SIGTERM; returns the exit code.

    Args:
        task: The chief.
        settings: Of the job.

    Raises:
        JoinTimeoutError: No program registered, or a ps did not answer.
        WindlassError: The job cannot be led.
    """
    leader = _Leader(task, settings)
    handle_signals(leader.stop)
    try:
        return leader.run()
    finally:
        leader.close()


class _Leader:
    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self._task = task
        self._settings = settings
        self._stopping = threading.Event()
        self._reason = ""
        who = principal_of_task(task.task, settings.job_id)
        self._controls = [
            PsControl(ps, task.address_of(ps), settings, who) for ps in ps_of(task.spec)
        ]
        expected = [(other, task.address_of(other)) for other in task.spec.tasks()]
        self._server = ChiefServer(task.task, expected, settings, job_id=None)
        self._loop: ChiefLoop | None = None

    def stop(self, name: str) -> None:
        self._reason = f"{self._task.task} was asked to stop by {name}"
        self._stopping.set()

    def run(self) -> int:
        settings, task = self._settings, self._task.task
        self._server.start(self._task.address)
        checkpointer, recorded = None, 0
        if settings.model_dir:
            checkpointer = Checkpointer(
                settings.model_dir, PsShards(self._controls), settings.keep_checkpoints, str(task)
            )
            recorded = checkpointer.read_record().last_generation
        found = find_job(self._controls, task, settings)
        with self._server.locked_job.open() as (job, _):
            job.program_is_outside = True
            job.identify(found.job, after=max(found.last_generation, recorded))
        who = self._wait_for_program()
        if who is None:
            return int(ExitCode.DRAINED)
        if checkpointer is not None:
            checkpointer.prepare()
            checkpointer.try_servers()
        self._loop = ChiefLoop(
            self._server.locked_job, who, self._task.address, self._controls, checkpointer, settings
        )
        self._loop.start()
        with contextlib.closing(ChiefAnnouncement(self._task.address)):
            return self._lead(self._loop)

    def _wait_for_program(self) -> Incarnation | None:
        """Who the program has registered as; None: it was asked to stop before."""
        limit_s = self._settings.join_timeout_s
        waits = WaitLog(self._task.task, limit_s=limit_s, limit="join_timeout_s")
        clock = self._server.locked_job.clock
        until = clock.now() + limit_s
        while clock.now() < until:
            with self._server.locked_job.open() as (job, _):
                member = job.members[self._task.task]
                if member.generation:
                    return Incarnation(self._task.task, member.generation, job.name or "")
            if self._stopping.wait(_POLL_S):
                return None
            waits.tick("the program, which runs at its driver")
        raise JoinTimeoutError(
            f"{self._task.task} waited {limit_s:g} s (join_timeout_s) for the program, which runs "
            "at its driver",
            task=self._task.task,
            missing="program",
        )

    def _lead(self, loop: ChiefLoop) -> int:
        while True:
            with self._server.locked_job.open() as (job, _):
                state, phase = job.members[self._task.task].state, job.phase
            if state in _ENDED or phase.is_over:
                break
            if self._stopping.wait(_POLL_S):
                loop.stop_job(self._reason)
                self._wait_for_end()
                break
        with self._server.locked_job.open() as (job, _):
            step = job.global_step
        phase = loop.end(global_step=step, on_wait=lambda names: log.info("waiting for %s", names))
        if phase is Phase.FAILED:
            log.error("the job failed: %s", self._failure())
            return int(loop.failure.exit_code if loop.failure else ExitCode.PROGRAM_FAILED)
        return int(ExitCode.DONE if phase is Phase.DONE else ExitCode.DRAINED)

    def _wait_for_end(self) -> None:
        """Give the program the time to reach its next step."""
        clock = self._server.locked_job.clock
        until = clock.now() + self._settings.drain_grace_s
        pause = threading.Event()
        while clock.now() < until:
            with self._server.locked_job.open() as (job, _):
                if job.members[self._task.task].state in _ENDED:
                    return
            pause.wait(_POLL_S)

    def _failure(self) -> str:
        with self._server.locked_job.open() as (job, _):
            return job.reason

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close()
        for control in self._controls:
            control.close()
        self._server.stop()
