"""Leading a job, from the question which job it is to its end.

The task that leads does so beside its own part: the chief, or worker 0 in its place, or a process
whose program is elsewhere.
"""

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ...client.ps.control import PsControl
from ...cluster.access.principal import principal_of_task
from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.roles import PS, ps_of
from ...core.checkpoint.job_record import JobRecord
from ...core.errors import RefusedError, RopewalkError
from ...core.settings import Settings
from ...core.states import Phase
from ...core.task import Incarnation, TaskId
from ...net.this_machine import ChiefAnnouncement
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import (
    job_samples,
    save_samples,
)
from ..data_plane.plane import DataPlane
from .checkpoint_sources import CheckpointSource, PsShards, source_of
from .checkpointer import Checkpointer
from .chief_loop import ChiefLoop
from .companions import LedJob, companions_of
from .enough_workers import wait_for_workers
from .job_identity import KnownJob, find_job
from .job_saver import JobSaver
from .leadership import LedServers, OwnShares, ShareLeadership, leadership_of
from .moments import Moments, moments_of
from .status import write_status

if TYPE_CHECKING:
    from ...client.chief.calls import ChiefClient

log = logging.getLogger(__name__)


class JobLeader:
    """Leads a job. Call :meth:`identify`, :meth:`lead`, maybe :meth:`resume`, and :meth:`end`.

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
        self._controls = [self._new_control(ps, task.address_of(ps)) for ps in ps_of(task.spec)]
        self._num_servers = len(self._controls)  # of the cluster, without those that come
        self._checkpointer: Checkpointer | None = None
        self._record: JobRecord | None = None
        self._known = KnownJob("")
        self._resumes = False
        self._saver: JobSaver | None = None
        self._loop: ChiefLoop | None = None
        self._leadership: ShareLeadership = OwnShares(locked_job, self._controls)
        self._moments: Moments | None = None
        self._announcement: ChiefAnnouncement | None = None
        self._chief: ChiefClient | None = None
        self._joining = threading.Lock()

    def _new_control(self, task: TaskId, address: str) -> PsControl:
        who = principal_of_task(self._task.task, self._settings.job_id)
        return PsControl(task, address, self._settings, who)

    def identify(
        self, check: Callable[[], None] = lambda: None, *, program_is_outside: bool = False
    ) -> None:
        """Find out which job this is; from now on tasks can register.

        Args:
            check: Called during waits; raises to give up.
            program_is_outside: The chief's program runs beyond the cluster's gateway.

        Raises:
            OtherJobError: Another chief leads these ps.
            JoinTimeoutError: A ps did not answer.
        """
        last_generation = self._read_record()
        came = self._controls_of_newcomers()
        self._known = find_job(
            [*self._controls, *came],
            self._task.task,
            self._settings,
            check,
            is_enough=self._have_all,
            not_needed=[control.task for control in came],
        )
        if self._goes_on:
            self._controls += came
        else:
            for control in came:
                control.close()
        with self.locked_job.open() as (job, now):
            job.program_is_outside = program_is_outside
            job.holds_first_steps = bool(
                self._settings.wait_for_workers and not self._plane.in_sync
            )
            job.identify(self._known.job, after=max(self._known.last_generation, last_generation))
            for control in self._controls[self._num_servers :]:
                job.add_ps(control.task, control.address, now=now)
            record = self._record
            if record and record.job == self._known.job and not self._settings.shares_move:
                # A ps that was too slow to say what it has may have kept it.
                job.expect_processes(
                    {TaskId(PS, i): each for i, each in record.processes.items()},
                    if_one_answers=not self._known.shards,
                )

    def _controls_of_newcomers(self) -> list[PsControl]:
        """List the ps that had come to the job before, of those that had some of its shares."""
        record, here = self._record, {control.task for control in self._controls}
        if record is None or not self._settings.shares_move:
            return []
        needed = {index for each in record.shares for index in (each.leader, *each.followers)}
        return [
            self._new_control(TaskId(PS, index), address)
            for index, address in record.servers.items()
            if index in needed and TaskId(PS, index) not in here
        ]

    @property
    def _goes_on(self) -> bool:
        """Whether the ps serve the job that the record is about."""
        record, known = self._record, self._known
        return record is not None and record.job == known.job and known.has_shares

    def _have_all(self, jobs: Mapping[TaskId, str]) -> bool:
        """Return whether some ps, with the job that each serves, have each share of the job
        before.
        """
        record = self._record
        if record is None or not record.shares or not self._settings.shares_move:
            return False
        here = {task.index for task, job in jobs.items() if job == record.job}
        return all(here & {share.leader, *share.followers} for share in record.shares)

    def _read_record(self) -> int:
        """Read what the job before wrote down; the highest generation that counts as assigned."""
        settings = self._settings
        if not settings.model_dir:
            # Without ps either, the generations of the job before are lost: avoid them by chance.
            return 0 if self._controls else secrets.randbits(40)
        self._checkpointer = Checkpointer(
            settings.model_dir,
            self._source,
            settings.keep_checkpoints,
            str(self._task.task),
            settings.save_whole_every,
        )
        self._record = self._checkpointer.read_record()
        return self._record.last_generation

    def _source(self) -> CheckpointSource:
        plane = self._plane
        in_use = plane.session is not None and bool(plane.session.variables.placement())
        leadership = self._leadership
        servers = PsShards(self._controls, leadership.leaders, self._moments, leadership.process_of)
        return source_of(servers, plane.snapshots, in_use=in_use, alone=plane.alone)

    def lead(self, who: Incarnation, chief: "ChiefClient | None" = None) -> None:
        """Lead, once the chief's task has registered.

        Args:
            who: The chief's task.
            chief: Gives the status for the model directory; None: it is not written.

        Raises:
            StorageError: The model directory cannot be written.
        """
        self._chief = chief
        if self._checkpointer is not None:
            self._checkpointer.prepare()
            self._checkpointer.choose(verify=False)  # what is lost is counted from it
            self._tell_saved()
        elif self._settings.shares_move:
            self._warn_of_no_record()
        self._saver = saver = JobSaver(self.locked_job, self._checkpointer, self._settings)
        self._leadership = saver.leadership = leadership_of(self._led(who, saver))
        led = LedJob(self.locked_job, self._task.task, self._settings, asks_ps=not self._goes_on)
        self._loop = ChiefLoop(
            self.locked_job, who, self.address, self._controls, saver, self._settings,
            companions_of(led), self._leadership,
        )  # fmt: skip
        if self._controls:
            leaders = self._leadership.leaders
            self._moments = moments_of(self.locked_job, who, leaders, self._settings)
        self._loop.start()
        self._leadership.start(self._join_ps)
        self._announcement = ChiefAnnouncement(self.address)
        self._write_status()  # with the addresses: `ropewalk status` looks there

    def _warn_of_no_record(self) -> None:
        text = (
            "there is no model_dir to keep a record of who leads which share (ps_replicas, "
            "ps_shares): the job fails if its chief is started again"
        )
        log.warning("%s: %s", self._task.task, text)
        with self.locked_job.open() as (job, _):
            job.caveat = text
            job.wait_for("")

    def _led(self, who: Incarnation, saver: JobSaver) -> LedServers:
        return LedServers(
            self.locked_job,
            who,
            self._controls,
            self._settings,
            self._num_servers,
            saver.write_record,
            self._record if self._goes_on else None,
        )

    def _join_ps(self, task: TaskId, address: str) -> None:
        """Lead a ps that has come. A repeat changes nothing. From any thread.

        Raises:
            RefusedError: The ps of that index is another one.
            StorageError: It does not find the model directory.
        """
        with self._joining:
            known = {control.task: control.address for control in self._controls}
            if known.get(task, address) != address:
                raise RefusedError(
                    f"{task} is at {known[task]} in this job, and another one at {address} cannot "
                    "take its place; give it an index of its own, or that address",
                    task=task,
                )
            if task in known or self._loop is None or not self._leadership.takes_ps():
                return
            control = self._new_control(task, address)
            try:
                if self._checkpointer is not None:
                    self._checkpointer.try_server(PsShards([control]))
            except BaseException:
                control.close()
                raise
            with self.locked_job.open() as (job, now):
                job.add_ps(task, address, now=now)
            self._controls.append(control)
            self._loop.add(control)
            self._leadership.add(control)
        log.info("%s has come, at %s", task, address)

    def _write_status(self) -> None:
        if self._settings.model_dir and self._chief is not None:
            write_status(self._settings.model_dir, self._chief)

    def resume(self) -> str:
        """Choose the checkpoint to begin with, and log what is lost since; its name, or empty.

        Raises:
            CheckpointError: All checkpoints are damaged.
            StorageError: A ps cannot write to the model directory, or has another one.
        """
        checkpointer = self._checkpointer
        self._resumes = held = self._known.shards > 0
        if checkpointer is None or self._record is None or self._saver is None:
            return ""
        if (
            not held or not self._leadership.takes_ps()
        ):  # a ps that is lost is no reason to end then
            checkpointer.try_servers()
        chosen = checkpointer.choose(verify=not held)
        self._tell_saved()
        if held and not self._has_failed:
            step = self._known.global_step
            log.info("going on at global step %d: the ps have kept the variables", step)
        elif not held:
            checkpointer.tell_resumed(self._record)
        self._resumes = held or chosen is not None
        if self._plane.snapshots is not None:
            self._plane.snapshots.saves = True
            self._plane.snapshots.restore_from = chosen.path if chosen is not None else ""
        self._saver.record()
        return chosen.name if chosen is not None else ""

    def _tell_saved(self) -> None:
        last = self._checkpointer.last if self._checkpointer is not None else None
        with self.locked_job.open() as (job, _):
            job.saved_step = last.global_step if last is not None else 0

    def wait_for_workers(self, check: Callable[[], None]) -> None:
        """Wait for as many workers as the settings ask for; see ``enough_workers.py``."""
        wait_for_workers(self.locked_job, self._settings, self._task, check, resumes=self._resumes)

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
    def _has_failed(self) -> bool:
        with self.locked_job.open() as (job, _):
            return job.phase is Phase.FAILED

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
        return self._loop.failure if self._loop is not None else None

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
        if self._loop is None or not self._loop.hand_over(global_step=global_step):
            return False
        log.info("leaves the job to the next chief; the other tasks go on")
        return True

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
        if self._loop is None:
            return None
        phase = self._loop.end(
            global_step=global_step,
            on_wait=lambda names: log.info("done; waiting for %s", names),
            change_last=change_last,
            save_first=save_first,
        )
        self._write_status()
        return phase

    def close(self) -> None:
        """Stop leading at once."""
        for part in (self._announcement, self._loop, *self._controls):
            if part is not None:
                part.close()
