"""A task that trains, chief or worker, from joining the cluster to leaving it.

The daemon runs one per process; ``windlass.testing`` runs several in threads.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..client.chief.barrier import BarrierClient
from ..client.chief.calls import ChiefClient, JobStatus
from ..client.chief.membership import Membership
from ..client.ps.control import PsControl
from ..client.ps.parameter_session import ParameterSession
from ..client.ps.remote_ps import RemotePs
from ..cluster.access.principal import principal_of_task
from ..cluster.resolvers.resolved import ResolvedTask
from ..cluster.roles import ps_of
from ..core.errors import JobDoneError, JoinTimeoutError, WindlassError
from ..core.exit_codes import ExitCode
from ..core.process.threads import new_thread, nobody_waits
from ..core.process.waiting import WaitLog
from ..core.settings import Settings
from ..core.states import Outcome, Phase, State
from ..core.task import Incarnation
from ..distribute.runtime import ClusterRuntime
from ..net.announcement import ChiefAnnouncement
from ..telemetry.catalogue import Sample
from .lead.enough_workers import wait_for_workers
from .lead.status import write_last_status
from .membership import join_unless_done
from .process.metrics import chief_samples, metrics_port, program_samples
from .process.probes import Probes
from .process.program import Ending, ending_of

if TYPE_CHECKING:
    from ..core.checkpoint.job_record import JobRecord
    from ..server.chief.server import ChiefServer
    from .lead.checkpointer import Checkpointer
    from .lead.chief_loop import ChiefLoop
    from .lead.job_identity import FoundJob

log = logging.getLogger(__name__)


class TrainingTask:
    """A chief or worker. Use from one thread, except :meth:`interrupt`.

    Args:
        task: Who this is, in which cluster.
        settings: Of this task.
        leads: Whether a chief leads the job; False: another process does, at the chief's address.
    """

    def __init__(self, task: ResolvedTask, settings: Settings, *, leads: bool = True) -> None:
        self.task = task
        self._settings = settings
        self._leads = leads and task.is_chief
        self._who = principal_of_task(task.task, settings.job_id)
        self._pending: WindlassError | None = None
        self._chief_server: ChiefServer | None = None
        self._chief: ChiefClient | None = None
        self._membership: Membership | None = None
        self._chief_loop: ChiefLoop | None = None
        self._announcement: ChiefAnnouncement | None = None
        self._checkpointer: Checkpointer | None = None
        self._record: JobRecord | None = None
        self._found: FoundJob | None = None
        self._controls: list[PsControl] = []
        self._session: ParameterSession | None = None
        self._probes = Probes(task, settings)
        self.runtime = ClusterRuntime(
            task, settings, check=self.check, chief_has_ended=self._chief_has_ended
        )
        self._metrics = metrics_port(task, settings, self._samples)
        # Called when the program must end without waiting for its next step.
        self.on_interrupt: Callable[[WindlassError], None] = lambda error: log.error("%s", error)

    def start(self) -> ClusterRuntime:
        """Join the cluster.

        Raises:
            AddressInUseError: The chief's port is taken.
            JoinTimeoutError: A peer did not answer.
            JobDoneError: The job is over; there is nothing to do.
            OtherJobError: Another job has this task's place, or its ps.
            CheckpointError: The checkpoint to resume from cannot be used.
            StorageError: The model directory cannot be written.
        """
        task, settings = self.task, self._settings
        self._metrics.start()
        if self._leads:
            # Only a chief loads what serving and writing checkpoints need.
            from ..server.chief.server import ChiefServer
            from .lead.job_identity import find_job

            self._controls = [
                PsControl(ps, task.address_of(ps), settings, self._who) for ps in ps_of(task.spec)
            ]
            expected = [(other, task.address_of(other)) for other in task.spec.tasks()]
            self._chief_server = ChiefServer(task.task, expected, settings, job_id=None)
            self._chief_server.start(task.address)
            recorded = self._read_record()
            self._found = found = find_job(self._controls, task.task, settings, self.check)
            with self._chief_server.locked_job.open() as (job, _):
                job.identify(found.job, after=max(found.last_generation, recorded))
            chief_address = _dial_address(task.address, self._chief_server.port)
        else:
            self._probes.start()
            chief_address = task.chief_address or self._find_chief()
        self._chief = ChiefClient(chief_address, settings, self._who)
        self._membership = Membership(
            task.task, task.address, self._chief, settings, report=self.runtime.report
        )
        self._membership.on_lost = self.interrupt
        who = join_unless_done(self._membership, task, settings, self.check)
        if self._chief_server is not None:
            self._lead(self._chief_server, who)
        transports = [RemotePs(ps, task.address_of(ps), who, settings) for ps in ps_of(task.spec)]
        self._session = ParameterSession(transports, who, settings)
        self.runtime.connection = self._session
        self._session.connect(still_wanted=self._check_not_done)
        if self._checkpointer is not None:
            self._go_on_from_checkpoint(self._checkpointer)
            if self._chief_loop is not None:
                self._chief_loop.record()
        self.runtime.job_is_over = self._membership.wait_over
        self.runtime.barrier = BarrierClient(self._chief, who, self.check).wait
        if self._chief_server is not None and settings.wait_for_workers:
            locked_job, resumes = self._chief_server.locked_job, self._resumes()
            wait_for_workers(locked_job, settings, self.task, self.check, resumes=resumes)
        return self.runtime

    def _samples(self) -> Iterator[Sample]:
        draining = self._pending is not None
        yield from program_samples(self.runtime, self._membership, draining=draining)
        if self._chief_server is not None:
            yield from chief_samples(self._chief_server.locked_job)
            yield from self._chief_server.samples()

    def _find_chief(self) -> str:
        """Ask the ps for the chief's address, which a dynamic worker's TF_CONFIG does not have."""
        controls = [
            PsControl(ps, self.task.address_of(ps), self._settings, self._who)
            for ps in ps_of(self.task.spec)
        ]
        deadline = time.monotonic() + self._settings.join_timeout_s
        last = "no chief has attached to the ps"
        waits = WaitLog(
            self.task.task, limit_s=self._settings.join_timeout_s, limit="join_timeout_s"
        )
        try:
            while time.monotonic() < deadline:
                self.check()
                for control in controls:
                    try:
                        if address := control.find_job(timeout_s=2.0).chief_address:
                            return address
                    except WindlassError as error:
                        last = str(error)
                waits.tick("the chief, whose address the ps know", last)
                threading.Event().wait(0.1)
        finally:
            for control in controls:
                control.close()
        raise JoinTimeoutError(
            f"{self.task.task} waited {self._settings.join_timeout_s:g} s (join_timeout_s) for the "
            f"chief: {last}. TF_CONFIG does not name it; start it, or give --chief ADDRESS",
            task=self.task.task,
            missing="chief",
        )

    def _read_record(self) -> int:
        """Read what the job before wrote down; the highest generation it knew."""
        from .lead.checkpoint_sources import AloneSource, CheckpointSource, PsShards
        from .lead.checkpointer import Checkpointer

        settings, snapshots = self._settings, self.runtime.snapshots
        if not settings.model_dir:
            return 0
        servers = PsShards(self._controls)
        source: CheckpointSource = servers
        if snapshots is not None:
            source = AloneSource(snapshots, servers, self._has_variables_on_servers)
        self._checkpointer = Checkpointer(
            settings.model_dir, source, settings.keep_checkpoints, str(self.task.task)
        )
        self._record = self._checkpointer.read_record()
        return self._record.last_generation

    def _lead(self, server: "ChiefServer", who: Incarnation) -> None:
        from .lead.chief_loop import ChiefLoop

        settings, task = self._settings, self.task
        if self._checkpointer is not None:
            self._checkpointer.prepare()
        address = _dial_address(task.address, server.port)
        self._chief_loop = ChiefLoop(
            server.locked_job, who, address, self._controls, self._checkpointer, settings
        )
        self._chief_loop.start()
        self._announcement = ChiefAnnouncement(address)
        if settings.model_dir and self._chief is not None:
            # With the addresses: `windlass status` looks there.
            write_last_status(settings.model_dir, self._chief)

    def _has_variables_on_servers(self) -> bool:
        return self._session is not None and bool(self._session.placement())

    def _go_on_from_checkpoint(self, checkpointer: "Checkpointer") -> None:
        """Find the checkpoint to begin with, and say what is lost since then."""
        checkpointer.try_servers()
        found, snapshots = self._found, self.runtime.snapshots
        held = found is not None and found.shards > 0
        chosen = checkpointer.choose(verify=not held)
        self.runtime.restore_from = chosen.name if chosen is not None else ""
        if snapshots is not None:
            snapshots.saves = True
            snapshots.restore_from = chosen.path if chosen is not None else ""
        if found is not None and held:
            log.info(
                "going on at global step %d: the ps have kept the variables", found.global_step
            )
        elif self._record is not None:
            checkpointer.tell_resumed(self._record)

    def _resumes(self) -> bool:
        """Whether the job had begun before this chief: in a checkpoint, or on the ps."""
        return bool(self.runtime.restore_from) or bool(self._found and self._found.shards)

    def check(self) -> None:
        """Raise if the program should end. Called between steps and during waits."""
        if self._pending is not None:
            raise self._pending
        if self._membership is not None:
            self._membership.check()

    def _check_not_done(self) -> None:
        """The same while joining: the ps may have left already.

        Raises:
            JobDoneError: The job has ended meanwhile.
        """
        self.check()
        if self._membership is not None and self._membership.phase is Phase.DONE:
            raise JobDoneError(
                f"{self.task.task}: the job was done before this task had joined it; nothing is "
                "left to do",
                task=self.task.task,
            )

    def ask_to_end(self, error: WindlassError) -> None:
        """Have the program end at its next step; on the chief, the whole job."""
        self._probes.drain()
        self._pending = self._pending or error
        if self.runtime.snapshots is not None:
            self.runtime.snapshots.ask_to_stop(error)
        if self._chief_server is not None:
            with self._chief_server.locked_job.open() as (job, _):
                job.stop(error.message)

    def _chief_has_ended(self) -> bool:
        """Whether the chief's program is over; False as long as it cannot be asked."""
        if self._chief is None:
            return False
        try:
            tasks = self._chief.status(timeout_s=1).tasks
        except WindlassError:
            return False
        return any(item.task == self.task.chief and item.state is State.DONE for item in tasks)

    def interrupt(self, error: WindlassError) -> None:
        """End the program now: its calls to the servers fail with ``error``. Thread-safe."""
        self._pending = self._pending or error
        if self._session is not None:
            self._session.abort(error)
        self.on_interrupt(error)

    def finish(self, ending: Ending) -> ExitCode | int:
        """Report how the program ended and wait for the end of the job; returns the exit code."""
        membership, settings = self._membership, self._settings
        if membership is None or membership.who.generation == 0:
            return ending.code
        for leave in self.runtime.at_end:
            leave()
        ending = self._settled(ending)
        if self.runtime.snapshots is not None:
            self.runtime.snapshots.end(together=ending.outcome is Outcome.DONE)
        membership.finish(ending.outcome, ending.message)
        if self._chief_loop is not None:
            step = self.runtime.report().global_step
            phase = self._chief_loop.end(
                global_step=step,
                on_wait=lambda names: log.info("done; waiting for %s", names),
            )
            if settings.model_dir and self._chief is not None:
                write_last_status(settings.model_dir, self._chief)
            failure = self._chief_loop.failure
            if phase is Phase.FAILED and failure is not None:
                return failure.exit_code
        elif ending.outcome is Outcome.DONE:
            waits = WaitLog(self.task.task, limit="it ends with the job, or if the chief is lost")
            while not membership.wait_over(0.1):
                waits.tick("the chief to end the job: the program here is done")
                if self._pending is not None:
                    return self._pending.exit_code
            phase = membership.phase
        else:
            return ending.code
        if ending.outcome is not Outcome.DONE:
            return ending.code
        return {Phase.DONE: ExitCode.DONE, Phase.STOPPED: ExitCode.DRAINED}.get(
            phase, ExitCode.PEER_LOST
        )

    def _settled(self, ending: Ending) -> Ending:
        """Wait for the last push, which may be unanswered when the program ends."""
        if self._session is None or ending.outcome is not Outcome.DONE:
            return ending
        try:
            self._session.finish()
        except WindlassError as error:
            log.error("the last push failed: %s", error)
            return ending_of(error)
        return ending

    @property
    def reason(self) -> str:
        """Why the job failed or is stopping; empty otherwise."""
        if self._chief_server is not None:
            with self._chief_server.locked_job.open() as (job, _):
                return job.reason
        return self._membership.reason if self._membership is not None else ""

    def status(self) -> JobStatus | None:
        """The job, as the chief sees it; None before joining."""
        return self._chief.status(timeout_s=5) if self._chief is not None else None

    def close(self) -> None:
        """Close every connection at once."""
        if self.runtime.snapshots is not None:
            self.runtime.snapshots.give_last(None)  # nobody waits for one any more
        if self._announcement is not None:
            self._announcement.close()
        if self._membership is not None:
            self._membership.close()
        if self._chief_loop is not None:
            self._chief_loop.close()
        if self._session is not None:
            self._session.close()
        for control in self._controls:
            control.close()
        if self._chief is not None:
            self._chief.close()
        if self._chief_server is not None:
            self._chief_server.stop()
        self._probes.stop()
        self._metrics.stop()


class EvaluatorTask:
    """The evaluator: reads checkpoints. No task waits for it, and it works without a chief.

    If TF_CONFIG names the chief it registers there: the status shows it, and it learns of a failed
    job.
    """

    def __init__(self, task: ResolvedTask, settings: Settings) -> None:
        self.task = task
        self._settings = settings
        self._pending: WindlassError | None = None
        self._leaving = threading.Event()
        who = principal_of_task(task.task, settings.job_id)
        self._chief = ChiefClient(task.chief_address, settings, who) if task.chief_address else None
        self._membership: Membership | None = None
        self._joining = new_thread("evaluator-join", self._join, failed=nobody_waits)
        self._probes = Probes(task, settings)
        self.runtime = ClusterRuntime(task, settings, check=self.check)
        self._metrics = metrics_port(
            task,
            settings,
            lambda: program_samples(
                self.runtime, self._membership, draining=self._pending is not None
            ),
        )

    def start(self) -> ClusterRuntime:
        """Register in the background, without waiting.

        Raises:
            AddressInUseError: The health port, or that for metrics, is taken.
        """
        self._metrics.start()
        self._probes.start()
        if self._chief is not None:
            self._joining.start()
        return self.runtime

    def _join(self) -> None:
        if self._chief is None:
            return
        membership = Membership(
            self.task.task, "", self._chief, self._settings, report=self.runtime.report
        )
        # The final checkpoint is to be evaluated even if its chief is gone by then.
        membership.on_lost = lambda error: log.debug("%s", error)
        with contextlib.suppress(WindlassError):
            membership.join(still_wanted=self.check)
            self._membership = membership

    def check(self) -> None:
        """Raise if the evaluator was asked to end, or the job failed or was stopped."""
        if self._pending is not None:
            raise self._pending
        membership = self._membership
        if membership is not None and membership.phase in (Phase.STOPPED, Phase.FAILED):
            membership.check()

    def ask_to_end(self, error: WindlassError) -> None:
        """Have the evaluator end when it next looks for a checkpoint."""
        self._probes.drain()
        self._pending = self._pending or error

    def finish(self, ending: Ending) -> int:
        """Report to the chief unless the job is over; returns the exit code."""
        membership = self._membership
        if membership is not None and not membership.phase.is_over:
            membership.finish(ending.outcome, ending.message)
        return ending.code

    def close(self) -> None:
        """Close every connection."""
        if self._membership is not None:
            self._membership.close()
        if self._chief is not None:
            self._chief.close()
        self._probes.stop()
        self._metrics.stop()


def _dial_address(address: str, port: int) -> str:
    # Port 0 asks for any port; the server knows which one it got.
    host, _, requested = address.rpartition(":")
    return address if int(requested) else f"{host}:{port}"
