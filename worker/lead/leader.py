"""Leading a job, from the question which job it is to its end.

The task that leads does so beside its own part: the chief, or worker 0 in its place, or a process
whose program is elsewhere.
"""

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.spec import PS, WORKER
from ...core.checkpoint.job_record import JobRecord, read_job_record
from ...core.checkpoint.storage import open_model_dir
from ...core.errors import ConfigurationError, JoinTimeoutError, RopewalkError
from ...core.process.waiting import FIRST_S
from ...core.settings import ALL_WORKERS, Settings
from ...core.task import Incarnation, Phase, State, TaskId
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import job_samples, save_samples
from ..data_plane.plane import DataPlane
from .job_identity import find_job
from .leading_job import IdentifiedJob, JobServers, LeadingJob

if TYPE_CHECKING:
    from ...client.chief.calls import ChiefClient
    from ...cluster.job.job import Job

log = logging.getLogger(__name__)

_NOT_HERE = (State.MISSING, State.LOST)
_POLL_S = 0.02
_LONGEST_S = 60.0  # in a job that can go on with fewer workers


def wait_for_workers(
    locked_job: "LockedJob",
    settings: Settings,
    task: ResolvedTask,
    check: Callable[[], None],
    *,
    resumes: bool = False,
) -> None:
    """Wait until ``settings.wait_for_workers`` workers have joined, at most the join timeout.

    Workers wait for the chief by themselves, since it creates the variables. The status names the
    missing ones. Where all workers are wanted (-1), and in a job that resumes and may have been
    scaled down since, the chief goes on with fewer after a minute.

    Raises:
        ConfigurationError: The cluster has fewer workers.
        JoinTimeoutError: Too few workers have joined; names the missing ones.
    """
    listed = task.spec.num_tasks(WORKER) if WORKER in task.spec.jobs else 0
    wants_all = settings.wait_for_workers == ALL_WORKERS
    wanted = listed if wants_all else settings.wait_for_workers
    if wanted > listed and not task.dynamic:
        raise ConfigurationError(
            f"--wait-for-workers={wanted}: the cluster has {listed} workers", wanted=wanted
        )
    can_go_on = resumes or wants_all
    limit_s = min(settings.join_timeout_s, _LONGEST_S) if can_go_on else settings.join_timeout_s
    began, shown = time.monotonic(), ""
    try:
        while True:
            check()
            with locked_job.open() as (job, _):
                # One that came and was lost may be gone for good: the job can go on without it.
                here, missing = _workers_of(job, (State.MISSING,) if wants_all else _NOT_HERE)
                is_enough = here >= wanted
                shorts = ", ".join(each.short for each in missing) or "workers"
                job.wait_for("" if is_enough else f"waiting for {shorts}")
            names = ", ".join(map(str, missing)) or "workers"
            waited_s = time.monotonic() - began
            if is_enough:
                return
            if waited_s >= limit_s and can_go_on:
                log.warning(
                    "goes on with %d of %d workers (wait_for_workers): %s did not join within "
                    "%g s%s",
                    here, wanted, names, limit_s,
                    "; if the job was scaled down, that is as it should be" if resumes else "",
                )  # fmt: skip
                return
            if waited_s >= limit_s:
                raise JoinTimeoutError(
                    f"{task.task} waited {settings.join_timeout_s:g} s (join_timeout_s) for "
                    f"{wanted} workers (wait_for_workers); {here} joined, {names} did not",
                    task=task.task,
                    missing=names,
                )
            # All are started together: a line for each that is a moment later would be noise.
            if names != shown and (not wants_all or waited_s >= FIRST_S):
                shown = names
                log.info("waiting for %d of %d workers: %s", wanted - here, wanted, names)
            time.sleep(_POLL_S)
    finally:
        with locked_job.open() as (job, _):
            job.wait_for("")


def _workers_of(job: "Job", not_here: Collection[State]) -> tuple[int, list[TaskId]]:
    """Count the workers that are in none of these states, and list the workers that are."""
    workers = [member for member in job.members.values() if member.task.type == WORKER]
    missing = [member.task for member in workers if member.state in not_here]
    return len(workers) - len(missing), missing


class JobLeader:
    """The control plane of a job, for the task that leads it. Begins with :meth:`identify`.

    Args:
        task: The task that leads, and its cluster.
        settings: The task's settings.
        plane: The task's data plane, which says what checkpoints are made of.
        locked_job: The job that the control plane serves.
        address: Address at which other tasks reach the control plane.
    """

    def __init__(
        self,
        task: ResolvedTask,
        settings: Settings,
        plane: DataPlane,
        locked_job: LockedJob,
        address: str,
    ) -> None:
        self._task = task
        self._settings = settings
        self._plane = plane
        self.locked_job = locked_job
        self.address = address
        self._servers = JobServers(task, settings)
        self._leading: LeadingJob | None = None

    def identify(
        self, check: Callable[[], None] = lambda: None, *, program_is_outside: bool = False
    ) -> IdentifiedJob:
        """Find out which job this is; from now on tasks can register.

        Args:
            check: Called during waits; raises to give up.
            program_is_outside: The chief's program runs beyond the cluster's gateway.

        Raises:
            OtherJobError: Another chief leads these ps.
            JoinTimeoutError: A ps did not answer.
        """
        record, last_generation = self._read_record()
        came = self._servers.newcomers(record)
        known = find_job(
            [*self._servers.controls, *came],
            self._task.task,
            self._settings,
            check,
            is_enough=lambda jobs: self._have_all(record, jobs),
            not_needed=[control.task for control in came],
        )
        goes_on = record is not None and record.job == known.job and known.has_shares
        for control in came:
            if goes_on:
                self._servers.controls.append(control)
            else:
                control.close()
        with self.locked_job.open() as (job, now):
            job.program_is_outside = program_is_outside
            job.holds_first_steps = bool(
                self._settings.wait_for_workers and not self._plane.in_sync
            )
            job.identify(known.job, after=max(known.last_generation, last_generation))
            for control in self._servers.came():
                job.add_ps(control.task, control.address, now=now)
            if record and record.job == known.job and not self._settings.shares_move:
                # A ps that was too slow to say what it has may have kept it.
                job.expect_processes(
                    {TaskId(PS, i): each for i, each in record.processes.items()},
                    if_one_answers=not known.shards,
                )
        return IdentifiedJob(known, record, goes_on)

    def _have_all(self, record: JobRecord | None, jobs: Mapping[TaskId, str]) -> bool:
        """Return whether some ps, with the job that each serves, have each share of the job
        before.
        """
        if record is None or not record.shares or not self._settings.shares_move:
            return False
        here = {task.index for task, job in jobs.items() if job == record.job}
        return all(here & {share.leader, *share.followers} for share in record.shares)

    def _read_record(self) -> tuple[JobRecord | None, int]:
        """Read what the job before wrote down, and the highest generation that is assigned."""
        if not self._settings.model_dir:
            # Without ps either, the generations of the job before are lost: avoid them by chance.
            return None, 0 if self._servers.controls else secrets.randbits(40)
        record = read_job_record(open_model_dir(self._settings.model_dir))
        return record, record.last_generation

    def lead(
        self, identified: IdentifiedJob, who: Incarnation, chief: "ChiefClient | None" = None
    ) -> "LeadingJob":
        """Lead, once the chief's task has registered.

        Args:
            identified: The job.
            who: The chief's task.
            chief: Gives the status for the model directory; None: it is not written.

        Raises:
            StorageError: The model directory cannot be written.
        """
        leading = LeadingJob(
            self._task, self._settings, self._plane, self.locked_job, self.address,
            self._servers, identified, who, chief,
        )  # fmt: skip
        self._leading = leading
        leading.start()
        return leading

    def wait_for_workers(self, check: Callable[[], None]) -> None:
        """Wait for as many workers as the settings ask for."""
        resumes = self._leading is not None and self._leading.resumes
        wait_for_workers(self.locked_job, self._settings, self._task, check, resumes=resumes)

    def tell_first_steps(self) -> str:
        """Have the status say whose first step the chief waits for; returns their short names."""
        with self.locked_job.open() as (job, now):
            names = ", ".join(each.short for each in job.yet_to_begin(self._task.task, now))
            job.wait_for(f"waiting for the first step of {names}" if names else "")
        return names

    def end_first_steps(self) -> None:
        """Let nobody wait for the first steps of others from now on."""
        with self.locked_job.open() as (job, _):
            job.holds_first_steps = False
            job.wait_for("")

    def stop(self, reason: str) -> None:
        """Ask every task to end at its next step."""
        with self.locked_job.open() as (job, _):
            job.stop(reason)

    @property
    def reason(self) -> str:
        """Why the job failed or is stopping; empty otherwise."""
        with self.locked_job.open() as (job, _):
            return job.reason

    @property
    def has_failed_for_good(self) -> bool:
        """Whether the job failed by a task that would fail again."""
        with self.locked_job.open() as (job, _):
            return job.has_failed_for_good

    @property
    def failure(self) -> RopewalkError | None:
        """Why the job failed, if that says more than its phase."""
        return self._leading.failure if self._leading is not None else None

    def samples(self) -> Iterator[Sample]:
        """Yield samples of the job, for Prometheus."""
        with self.locked_job.open() as (job, now):
            states = [(member.task.type, member.state.value) for member in job.members.values()]
            phase, step, goal, age_s = (
                job.phase,
                job.members.global_step,
                job.members.total_steps,
                now - job.began,
            )
            saved = job.saved_step
        yield from job_samples(phase, states, global_step=step, goal_steps=goal, age_s=age_s)
        for part in self.locked_job.parts:
            yield from part.samples()
        yield from save_samples(self.locked_job.saves, saved)

    def hand_over(self, global_step: int) -> bool:
        """Leave the job to the next chief; False: it stops. See :meth:`ChiefLoop.hand_over`."""
        return self._leading is not None and self._leading.hand_over(global_step)

    def end(
        self,
        global_step: int,
        *,
        change_last: Callable[[], None] = lambda: None,
        save_first: bool = False,
    ) -> Phase | None:
        """End the job after the chief's program, and write its status; see :meth:`ChiefLoop.end`.

        Returns:
            The job's final phase; None: this task has not begun to lead.
        """
        if self._leading is None:
            return None
        return self._leading.end(global_step, change_last=change_last, save_first=save_first)

    def close(self) -> None:
        """Stop leading at once."""
        if self._leading is not None:
            self._leading.close()
        self._servers.close()
