"""The data plane of a job with parameter servers: a session with every one of them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ...client.chief.calls import ChiefClient
from ...client.ps.control import PsControl
from ...client.ps.locating import LeaderWatch
from ...client.ps.parameter_session import ParameterSession
from ...client.ps.remote_ps import RemotePs
from ...cluster.access import principal_of_task
from ...cluster.replication.configuration import first_leaders
from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.spec import ps_of
from ...core.errors import JoinTimeoutError, RopewalkError
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.task import Incarnation, Outcome
from ...distribute.job_snapshots import JobSnapshots
from ...telemetry.catalogue import Sample
from ..process.program import Ending
from .plane import DataPlane, attempted

if TYPE_CHECKING:
    from ...server.chief.server import ChiefServer
    from ...server.chief.servicer import LockedJob
    from ...server.ps.server import PsServer


class ServersPlane(DataPlane):
    """A task's connection to the parameter servers of its cluster.

    Args:
        task: Task of this process, and its cluster.
        settings: The task's settings.
        here: The only server, if it is in this process; then the program may have a synchronous
            strategy, too.
    """

    def __init__(
        self, task: ResolvedTask, settings: Settings, here: "PsServer | None" = None
    ) -> None:
        super().__init__(task, settings)
        self._here = here
        self._chief_server: ChiefServer | None = None
        self._leaders: LeaderWatch | None = None
        if here is not None:
            self.alone = True
            self.snapshots = JobSnapshots(settings.drain_grace_s)

    def serve_chief(self) -> "tuple[LockedJob, str]":
        """Serve the control plane at the task's address; see :class:`DataPlane`."""
        from ...server.chief.server import ChiefServer  # only a chief loads what serving needs

        task = self._task
        self._chief_server = server = ChiefServer(
            task.task, task.addresses(), self._settings, job_id=None
        )
        server.start(task.address)
        # Port 0 asks for any port; the server knows which one it got.
        host, _, requested = task.address.rpartition(":")
        return server.locked_job, task.address if int(requested) else f"{host}:{server.port}"

    def listen(self, check: Callable[[], None]) -> str:
        """Answer health probes; a dynamic worker asks for the chief's address."""
        return super().listen(check) or self._find_chief(check)

    def _find_chief(self, check: Callable[[], None]) -> str:
        """Ask the ps for the chief's address, which a dynamic worker's TF_CONFIG does not have."""
        task, settings, limit_s = self._task, self._settings, self._settings.join_timeout_s
        who = principal_of_task(task.task, settings.job_id)
        controls = [PsControl(ps, task.address_of(ps), settings, who) for ps in ps_of(task.spec)]
        last = "no chief has attached to the ps"
        waits = WaitLog(task.task, limit_s=limit_s, limit="join_timeout_s")
        with ExitStack() as opened:
            for control in controls:
                opened.callback(control.close)
            while not waits.is_over:
                check()
                for control in controls:
                    try:
                        if address := control.find_job(timeout_s=2.0).chief_address:
                            return address
                    except RopewalkError as error:
                        last = str(error)
                waits.tick("the chief, whose address the ps know", last)
                threading.Event().wait(0.1)
        raise JoinTimeoutError(
            f"{task.task} waited {limit_s:g} s (join_timeout_s) for the chief: {last}. TF_CONFIG "
            "does not name it; start it, or give --chief ADDRESS",
            task=task.task,
            missing="chief",
        )

    def connect(self, who: Incarnation, chief: ChiefClient, check: Callable[[], None]) -> None:
        """Open a session for every share; see :class:`DataPlane`."""
        task, settings, servers = self._task, self._settings, ps_of(self._task.spec)
        self._leaders = leaders = LeaderWatch(chief)
        leaders.begin(settings.join_timeout_s, check)
        homes = first_leaders(leaders.shares, servers)
        peers = [
            RemotePs(
                ps,
                task.address_of(ps),
                who,
                settings,
                locate=leaders.leader_of,
                share=share,
                learn=leaders.learn,
            )
            for share, ps in homes.items()
        ]
        for peer in peers:
            leaders.tell(peer.moved)
        self.session = ParameterSession(peers, who, settings)
        self.session.connect(still_wanted=check)

    def abort(self, error: RopewalkError) -> None:
        """Let the calls to the servers fail with ``error``. Thread-safe."""
        if self.session is not None:
            self.session.abort(error)

    def finish(self, ending: Ending) -> Ending:
        """Wait for the last push, which may be unanswered when the program ends."""
        if self.session is not None and ending.outcome is Outcome.DONE:
            ending = attempted(ending, "the last push failed", self.session.finish)
        return super().finish(ending)

    def samples(self) -> Iterator[Sample]:
        """Yield the callers of the chief, and the work of the server in this process."""
        if self._here is not None:
            yield from self._here.samples()
        if self._chief_server is not None:
            yield from self._chief_server.samples()

    def close(self) -> None:
        """Close the session, and stop serving. Idempotent."""
        super().close()
        if self._leaders is not None:
            self._leaders.close()
        if self.session is not None:
            self.session.close()
        if self._chief_server is not None:
            self._chief_server.stop()
