"""A job that is led: known first, then led with its ps, checkpoints and loop until its end."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...client.ps.control import PsControl
from ...cluster.access import principal_of_task
from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.spec import PS, ps_of
from ...core.checkpoint.job_record import JobRecord
from ...core.errors import RefusedError, RopewalkError
from ...core.process.events import event
from ...core.settings import Settings
from ...core.task import Incarnation, Phase, TaskId
from ...net.this_machine import ChiefAnnouncement
from ...server.chief.servicer import LockedJob
from ..data_plane.plane import DataPlane
from .checkpoint_sources import CheckpointSource, PsShards, moments_of, source_of
from .checkpointer import Checkpointer
from .chief_loop import ChiefLoop
from .companions import LedJob, companions_of
from .job_identity import KnownJob
from .job_saver import JobSaver
from .leadership import LedServers, leadership_of
from .status import write_status

if TYPE_CHECKING:
    from ...client.chief.calls import ChiefClient

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IdentifiedJob:
    """A job that is known to the task that will lead it; tasks can register.

    Attributes:
        known: Name of the job, and the parts of it that ps have.
        record: Record that the job before wrote down; None: without a model directory nothing does.
        goes_on: Whether its ps serve the job that the record is about.
    """

    known: KnownJob
    record: JobRecord | None
    goes_on: bool


class JobServers:
    """Controls of the ps of a job, one each.

    Args:
        task: The task that leads, and its cluster.
        settings: The task's settings.

    Attributes:
        controls: Controls of the ps of the cluster, then of ps that came.
        num_listed: Number of ps that the cluster lists.
    """

    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self._task = task
        self._settings = settings
        self.controls = [self.new_control(ps, task.address_of(ps)) for ps in ps_of(task.spec)]
        self.num_listed = len(self.controls)

    def new_control(self, task: TaskId, address: str) -> PsControl:
        """Make the control of a ps, which is not in the list."""
        who = principal_of_task(self._task.task, self._settings.job_id)
        return PsControl(task, address, self._settings, who)

    def came(self) -> list[PsControl]:
        """List those that the cluster does not."""
        return self.controls[self.num_listed :]

    def newcomers(self, record: JobRecord | None) -> list[PsControl]:
        """Make controls of the ps that had come to the job before and had some of its shares."""
        here = {control.task for control in self.controls}
        if record is None or not self._settings.shares_move:
            return []
        needed = {index for each in record.shares for index in (each.leader, *each.followers)}
        return [
            self.new_control(TaskId(PS, index), address)
            for index, address in record.servers.items()
            if index in needed and TaskId(PS, index) not in here
        ]

    def close(self) -> None:
        """Close all."""
        for control in self.controls:
            control.close()


class LeadingJob:
    """A job that is led, from the registration of its chief to its end.

    Args:
        task: The task that leads, and its cluster.
        settings: The task's settings.
        plane: The task's data plane.
        locked_job: The job.
        address: Address of the control plane.
        servers: Controls of the ps.
        identified: The job.
        who: The chief's task.
        chief: Gives the status for the model directory; None: it is not written.

    Attributes:
        resumes: Whether its ps or a checkpoint have values of an earlier run.
    """

    def __init__(
        self,
        task: ResolvedTask,
        settings: Settings,
        plane: DataPlane,
        locked_job: LockedJob,
        address: str,
        servers: JobServers,
        identified: IdentifiedJob,
        who: Incarnation,
        chief: "ChiefClient | None",
    ) -> None:
        self._task = task.task
        self._settings = settings
        self._plane = plane
        self._locked_job = locked_job
        self._servers = servers
        self._job = identified
        self._chief = chief
        self.resumes = False
        self._joining = threading.Lock()
        self._checkpointer = self._prepared_checkpointer()
        saver = JobSaver(locked_job, self._checkpointer, settings, self._add_leadership)
        self._saver = saver
        record = identified.record if identified.goes_on else None
        self._leadership = leadership_of(
            LedServers(
                locked_job, who, servers.controls, settings, servers.num_listed,
                saver.write_record, record,
            )
        )  # fmt: skip
        led = LedJob(locked_job, self._task, settings, asks_ps=not identified.goes_on)
        self._loop = ChiefLoop(
            locked_job, who, address, servers.controls, saver, settings, companions_of(led),
            self._leadership,
        )  # fmt: skip
        leaders = self._leadership.leaders
        self._moments = moments_of(locked_job, who, leaders, settings) if servers.controls else None
        self._announcement = ChiefAnnouncement(address)

    def _prepared_checkpointer(self) -> Checkpointer | None:
        settings = self._settings
        if not settings.model_dir:
            if settings.shares_move:
                self._warn_of_no_record()
            return None
        made = Checkpointer(
            settings.model_dir,
            self._source,
            settings.keep_checkpoints,
            str(self._task),
            settings.save_whole_every,
        )
        made.prepare()
        made.choose(verify=False)  # what is lost is counted from it
        self._tell_saved(made)
        return made

    def _add_leadership(self, record: JobRecord) -> JobRecord:
        return self._leadership.add_to(record)

    def _source(self) -> CheckpointSource:
        plane, leadership = self._plane, self._leadership
        in_use = plane.session is not None and bool(plane.session.variables.placement())
        servers = PsShards(
            self._servers.controls, leadership.leaders, self._moments, leadership.process_of
        )
        return source_of(servers, plane.snapshots, in_use=in_use, alone=plane.alone)

    def start(self) -> None:
        """Begin to renew leases, and tell this machine and the model directory."""
        self._loop.start()
        self._leadership.start(self._join_ps)
        self._write_status()  # with the addresses: `ropewalk status` looks there

    def _warn_of_no_record(self) -> None:
        text = (
            "there is no model_dir to keep a record of who leads which share (ps_replicas, "
            "ps_shares): the job fails if its chief is started again"
        )
        log.warning("%s: %s", self._task, text)
        with self._locked_job.open() as (job, _):
            job.caveat = text
            job.wait_for("")

    def _join_ps(self, task: TaskId, address: str) -> None:
        """Lead a ps that has come. A repeat changes nothing. From any thread.

        Raises:
            RefusedError: The ps of that index is another one.
            StorageError: It does not find the model directory.
        """
        with self._joining:
            known = {control.task: control.address for control in self._servers.controls}
            if known.get(task, address) != address:
                raise RefusedError(
                    f"{task} is at {known[task]} in this job, and another one at {address} cannot "
                    "take its place; give it an index of its own, or that address",
                    task=task,
                )
            if task in known or not self._leadership.takes_ps():
                return
            control = self._servers.new_control(task, address)
            try:
                if self._checkpointer is not None:
                    self._checkpointer.try_server(PsShards([control]))
            except BaseException:
                control.close()
                raise
            with self._locked_job.open() as (job, now):
                job.add_ps(task, address, now=now)
            self._servers.controls.append(control)
            self._loop.add(control)
            self._leadership.add(control)
        came = event("ps.came", of=task.short, address=address)
        log.info("%s has come, at %s", task, address, extra=came)

    def _write_status(self) -> None:
        if self._settings.model_dir and self._chief is not None:
            write_status(self._settings.model_dir, self._chief)

    def resume(self) -> str:
        """Choose the checkpoint to begin with, and log what is lost since; its name, or empty.

        Raises:
            CheckpointError: All checkpoints are damaged.
            StorageError: A ps cannot write to the model directory, or has another one.
        """
        checkpointer, record = self._checkpointer, self._job.record
        self.resumes = held = self._job.known.shards > 0
        if checkpointer is None or record is None:
            return ""
        if (
            not held or not self._leadership.takes_ps()
        ):  # a ps that is lost is no reason to end then
            checkpointer.try_servers()
        chosen = checkpointer.choose(verify=not held)
        self._tell_saved(checkpointer)
        if held and not self._has_failed:
            step = self._job.known.global_step
            kept = event("job.resumed", step=step)
            log.info("going on at global step %d: the ps have kept the variables", step, extra=kept)
        elif not held:
            checkpointer.tell_resumed(record)
        self.resumes = held or chosen is not None
        if self._plane.snapshots is not None:
            self._plane.snapshots.saves = True
            self._plane.snapshots.restore_from = chosen.path if chosen is not None else ""
        self._saver.record()
        return chosen.name if chosen is not None else ""

    def _tell_saved(self, checkpointer: Checkpointer) -> None:
        with self._locked_job.open() as (job, _):
            job.saved_step = checkpointer.last.global_step if checkpointer.last is not None else 0

    @property
    def _has_failed(self) -> bool:
        with self._locked_job.open() as (job, _):
            return job.phase is Phase.FAILED

    @property
    def failure(self) -> RopewalkError | None:
        """Why the job failed, if that says more than its phase."""
        return self._loop.failure

    def hand_over(self, global_step: int) -> bool:
        """Leave the job to the next chief; False: it stops."""
        if not self._loop.hand_over(global_step=global_step):
            return False
        log.info("leaves the job to the next chief; the other tasks go on")
        return True

    def end(
        self, global_step: int, *, change_last: Callable[[], None], save_first: bool
    ) -> Phase | None:
        """End the job after the chief's program, and write its status."""
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
        self._announcement.close()
        self._loop.close()
