"""``rw.connect``: a program on a laptop or in a notebook, and its job on a standalone cluster.

The job's ps, workers and leader run on the cluster; the chief's program runs here, and reaches all
of them through the one address of the cluster's gateway.
"""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ...cluster.access import DRIVER, Principal
from ...cluster.resolvers.resolved import resolve
from ...cluster.resolvers.resolver import SimpleClusterResolver
from ...cluster.spec import CHIEF, ClusterSpec
from ...core.backoff import Backoff
from ...core.errors import (
    ConfigurationError,
    JoinTimeoutError,
    PeerLostError,
    PermissionDeniedError,
    RopewalkError,
    said_of,
)
from ...core.exit_codes import ExitCode
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings, load_settings, quiet_grpc
from ...core.task import Outcome, TaskId
from ...core.terminal import Shown, terminal_line
from ...distribute.program_cluster import enter_cluster, program_cluster
from ...net.auth.credentials import with_own_job
from ...proto.v1 import gateway_pb2
from ...worker.data_plane.servers import ServersPlane
from ...worker.job_task import JobTask
from ...worker.process.program import Ending, ending_of
from .calls import GatewayClient, JobView, routes_to
from .versions import own_environment

log = logging.getLogger(__name__)

_WAIT_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
_END_S = 10.0  # for tasks that know that the job is over
_GRACE_S = 120.0  # a laptop that sleeps for a minute goes on


def connect(
    address: str,
    *,
    token: str = "",
    ca: str = "",
    cert: str = "",
    key: str = "",
    insecure: bool = False,
    workers: int = -1,
    ps: int = -1,
    gpus_per_worker: int = 0,
    model: str = "",
    name: str = "",
    grace_s: float = _GRACE_S,
    timeout_s: float = 60.0,
    settings: Mapping[str, Any] | None = None,
) -> "ConnectedCluster":
    """Run this program on a standalone cluster: variables and closures there, the program here.

    ::

        with rw.connect("chief.example:2222", token="driver.token", ca="ca.pem") as cluster:
            strategy = rw.distribute.ParameterServerStrategy(cluster.resolver)
            coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)

    The job ends with the block, with :meth:`ConnectedCluster.close`, or when this process has been
    silent for ``grace_s``. Each connection is a job of its own: it sees nothing of others.

    Args:
        address: Address of the cluster's chief, host:port.
        token: File with this program's token, of the role chief.
        ca: File with the CA of the cluster's certificates.
        cert: File with this program's certificate, where the cluster asks for one.
        key: File with its key.
        insecure: Whether the cluster runs with ``--insecure``: no encryption, no identity.
        workers: Number of workers that run closures; -1: as many as the cluster has.
        ps: Number of ps that hold variables; -1: as many as the cluster has.
        gpus_per_worker: GPUs that each worker alone has; 0: workers see none.
        model: Folder of the model below the cluster's ``--model-dir``. The job goes on from the
            last checkpoint there. Empty: a new folder, called as the job.
        name: Name of the job, for people.
        grace_s: Time that this process may be silent. Unit: seconds.
        timeout_s: Time limit for the cluster to answer and to have room. Unit: seconds.
        settings: Further settings by name, as in ``ROPEWALK_NAME`` variables.

    Raises:
        ConfigurationError: This process belongs to a cluster already, or a setting is not valid.
        JoinTimeoutError: The cluster did not begin the job in time.
        PeerLostError: There is no answer at the address.
        AccessError: The cluster does not let this driver in.
        IncompatibleError: The cluster runs versions that do not fit.
    """
    if program_cluster() is not None:
        raise ConfigurationError(
            "this process belongs to a cluster already; close that connection first, or run this "
            "program without TF_CONFIG"
        )
    files = {"token_file": token, "tls_ca": ca, "tls_cert": cert, "tls_key": key}
    chosen: dict[str, Any] = {name: value for name, value in files.items() if value}
    if insecure:
        chosen["insecure"] = True
    loaded = load_settings({**chosen, **(settings or {})})
    loaded = with_own_job(loaded)
    quiet_grpc()
    request = _request(name, workers, ps, gpus_per_worker, model, grace_s, settings or {})
    return ConnectedCluster(address, loaded, request, timeout_s)


def _request(
    name: str,
    workers: int,
    ps: int,
    gpus_per_worker: int,
    model: str,
    grace_s: float,
    settings: Mapping[str, Any],
) -> gateway_pb2.SubmitRequest:
    from .job import SETTINGS, new_id

    name = name or Path(sys.argv[0] or "program").stem or "program"
    return gateway_pb2.SubmitRequest(
        id=new_id(name),
        name=name,
        workers=workers,
        ps=ps,
        coordinator=True,
        grace_s=grace_s,
        # A link that breaks is no lost task: the laptop may come back.
        settings={
            "reconnect_timeout_s": f"{grace_s:g}",
            **{n: str(v) for n, v in settings.items() if n in SETTINGS},
        },
        environment=own_environment(),
        model=model,
        gpus_per_worker=gpus_per_worker,
    )


class ConnectedCluster(Shown):
    """A job on a standalone cluster whose program is this process. Made by :func:`connect`.

    Attributes:
        job: The job's id, for ``ropewalk jobs`` and ``ropewalk logs``.
        resolver: Names the job's cluster, and this process as its chief.
    """

    def __init__(
        self,
        address: str,
        settings: Settings,
        request: gateway_pb2.SubmitRequest,
        timeout_s: float,
    ) -> None:
        self.job = request.id
        self._stack = contextlib.ExitStack()
        self._over = threading.Event()
        self._task: JobTask | None = None
        self._offset = 0
        self._stack.callback(self._over.set)
        who = Principal(DRIVER, settings.job_id)
        self._client = GatewayClient(address, settings, who)
        self._stack.callback(self._client.close)
        self._follower = new_thread("driver", self._keep_alive, failed=nobody_waits)
        try:
            job = self._begin(request, timeout_s)
            self._stack.callback(self._stop)
            self._follower.start()
            self._join(job, settings.model_copy(update={"job_id": settings.job_id or job.id}))
        except BaseException:
            self._stack.close()
            raise

    def _shown(self) -> dict[str, Any]:
        return {"job": self.job, "cluster": self.resolver.cluster_spec().as_dict()}

    def _begin(self, request: gateway_pb2.SubmitRequest, timeout_s: float) -> JobView:
        job = self._client.submit(request)
        for warning in job.warnings:
            log.warning("%s", warning)
        until = time.monotonic() + timeout_s
        try:
            while job.state == "queued" and time.monotonic() < until:
                job = self._client.follow(self.job, 0, wait_s=1.0, drives=True).job
        finally:
            if job.state != "running":  # it may begin later, without its driver
                with contextlib.suppress(RopewalkError):
                    self._client.stop(self.job, "its driver did not wait any longer")
        if job.state == "queued":
            raise JoinTimeoutError(
                f"the cluster at {self._client.address} did not begin job {self.job} within "
                f"{timeout_s:g} s (timeout_s): {job.reason or 'no reason is known'}",
                task=TaskId(CHIEF, 0),
            )
        if job.state != "running":
            raise PeerLostError(
                f"job {self.job} is {job.state} before this program could join it: {job.reason}; "
                f"`ropewalk logs {self.job}` shows what its tasks have printed"
            )
        return job

    def _join(self, job: JobView, settings: Settings) -> None:
        spec = ClusterSpec({role: list(addresses) for role, addresses in job.cluster.items()})
        self.resolver = SimpleClusterResolver(spec, task_type=CHIEF, task_id=0)
        task = resolve(self.resolver, source="connect")

        self._stack.enter_context(routes_to(self._client, job))
        self._task = training = JobTask(task, settings, ServersPlane(task, settings), leads=False)
        self._stack.callback(training.close)
        try:
            runtime = training.start()
        except PermissionDeniedError as error:
            raise PermissionDeniedError(
                f"{error.message}. A program that is connected is the chief of its job: connect "
                "with credentials of the role chief",
                **error.fields,
            ) from None
        self._stack.callback(enter_cluster(runtime))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def close(self, error: BaseException | None = None) -> None:
        """End the job: it saves, its tasks end, and this process belongs to no cluster any more.

        Args:
            error: The error that the program failed with.

        Raises:
            PeerLostError: The cluster did not take the last steps or the last checkpoint.
        """
        training, self._task = self._task, None
        try:
            if training is not None:
                done = Ending(Outcome.DONE, ExitCode.DONE)
                ending = done if error is None else ending_of(error, show=lambda text: None)  # noqa: ARG005
                code = training.finish(ending)
                if error is None and code:
                    raise PeerLostError(
                        f"job {self.job} did not end in order: {training.reason or f'code {code}'}"
                    )
        finally:
            self._stack.close()

    def _stop(self) -> None:
        """Wait for the end of the job's tasks, and stop those that do not end by themselves."""
        self._follower.join(_END_S)  # it ends with the job, and when the last lines are shown
        if self._follower.is_alive():
            with contextlib.suppress(RopewalkError):
                self._client.stop(self.job, "its driver has left")

    def _keep_alive(self) -> None:
        """Show what the job's tasks print, which also tells the gateway that this process lives."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._over.is_set():
            try:
                news = self._client.follow(self.job, self._offset, wait_s=_WAIT_S, drives=True)
            except Exception as error:  # noqa: BLE001 - without this thread the job would be stopped
                log.debug("the gateway does not answer: %s", said_of(error))
                self._over.wait(backoff.next_s())
                continue
            backoff.reset()
            self._offset = news.offset
            # stderr was closed on purpose; the job does not end for that.
            with contextlib.suppress(OSError, ValueError):
                for line in news.lines:
                    shown = terminal_line(f"{line.task.short} | {line.text}", colours=True)
                    print(shown, file=sys.stderr)  # noqa: T201
            if news.job.has_ended and not news.lines:
                return
