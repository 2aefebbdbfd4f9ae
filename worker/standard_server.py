"""The standard server in a program of the user's: what ``ropewalk ps`` and ``ropewalk worker`` do.

TensorFlow's programs begin with it: in the processes of workers and parameter servers they make a
``Server`` and wait for its end, in the chief's they make a strategy and a coordinator.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..cluster.resolvers.resolved import resolve, served_by_coordinator
from ..cluster.resolvers.resolver import SimpleClusterResolver
from ..cluster.spec import CHIEF, PS, WORKER, ClusterSpec
from ..core.errors import ConfigurationError, JobStoppedError, RopewalkError
from ..core.process.threads import new_thread
from ..core.settings import load_settings, quiet_grpc
from ..net.auth.credentials import with_own_job
from ..net.this_machine import free_ports
from .process.surroundings import handle_signals

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class ServerDef:
    """The cluster and the task of a server.

    Attributes:
        cluster: All tasks.
        job_name: The task's role.
        task_index: The task's number in its role.
        protocol: Protocol of :attr:`Server.target`.
    """

    cluster: ClusterSpec
    job_name: str
    task_index: int
    protocol: str = "grpc"


class Server:
    """A server like ``tf.distribute.Server``: a parameter server, or a worker that runs closures.

    ::

        server = rw.distribute.Server(resolver.cluster_spec(), job_name="ps", task_index=0)
        server.join()

    It serves in threads of this process, from its construction until the job is over. Settings come
    from ``ROPEWALK_…`` variables; a ps needs ``ROPEWALK_MODEL_DIR`` to save.

    Args:
        server_or_cluster_def: The cluster: a ClusterSpec, a dict of addresses, or a
            :class:`ServerDef`.
        job_name: ``"ps"`` or ``"worker"``; may be left out if the cluster has one job.
        task_index: May be left out if the job has one task.
        protocol: Protocol of :attr:`target`, and not used otherwise.
        config: Not used: there are no sessions.
        start: Serve at once, instead of with :meth:`start`.

    Raises:
        ConfigurationError: The cluster is not valid, or has no such task; or the task is neither a
            ps nor a worker.
        AddressInUseError: Its port is taken.
    """

    def __init__(
        self,
        server_or_cluster_def: ServerDef | ClusterSpec | Mapping[str, Any],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,  # noqa: ARG002 - TensorFlow's programs give one
        start: bool = True,
    ) -> None:
        cluster = server_or_cluster_def
        if isinstance(cluster, ServerDef):
            job_name, protocol = job_name or cluster.job_name, protocol or cluster.protocol
            task_index = cluster.task_index if task_index is None else task_index
            cluster = cluster.cluster
        spec = cluster if isinstance(cluster, ClusterSpec) else ClusterSpec(cluster)
        job_name, task_index = _only(spec, job_name, task_index)
        if job_name not in (PS, WORKER):
            raise ConfigurationError(
                f"a Server is a ps or a worker, not a {job_name}: the chief's program makes a "
                "strategy, and an evaluator reads checkpoints"
            )
        self._task = resolve(
            SimpleClusterResolver(spec, task_type=job_name, task_id=task_index), source="Server"
        )
        if job_name == WORKER:
            self._task = served_by_coordinator(self._task)
        self._protocol = protocol or "grpc"
        self._ended = threading.Event()
        self._code = 0
        self._error: BaseException | None = None
        self._on_signal: Callable[[str], object] = lambda name: None  # noqa: ARG005
        self._thread: threading.Thread | None = None
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> "Server":
        """Start a parameter server alone in its cluster, at a free port of this machine.

        TensorFlow's runs operations of any client; this one holds variables. A program here, or in
        another process of this user, reaches it at :attr:`target`.

        Args:
            config: Not used.
            start: Serve at once.
        """
        [port] = free_ports(1)
        return Server({PS: [f"127.0.0.1:{port}"]}, PS, 0, config=config, start=start)

    @property
    def target(self) -> str:
        """Address at which it serves, as ``grpc://host:port``."""
        return f"{self._protocol}://{self._task.address}"

    @property
    def server_def(self) -> ServerDef:
        """The cluster and the task of this server."""
        task = self._task.task
        return ServerDef(self._task.spec, task.type, task.index, self._protocol)

    def start(self) -> None:
        """Begin to serve; again does nothing.

        Raises:
            AddressInUseError: The port is taken.
        """
        if self._thread is not None:
            return
        quiet_grpc()
        run = self._begin_ps() if self._task.task.type == PS else self._run_worker
        self._thread = new_thread("server", lambda: self._run(run), failed=self._failed)
        self._thread.start()

    def join(self) -> None:
        """Wait until the job is over. SIGTERM and SIGINT then ask the server to end.

        Raises:
            SystemExit: The job did not end well; with the exit code of docs/exit-codes.md.
            RopewalkError: This task could not take part in it.
        """
        handle_signals(self._stop)
        while not self._ended.wait(_POLL_S):
            pass
        if self._error is not None:
            raise self._error
        if self._code:
            sys.exit(self._code)

    def _stop(self, name: str) -> None:
        self._on_signal(name)

    def _run(self, run: Callable[[], int]) -> None:
        try:
            self._code = int(run())
        except RopewalkError as error:
            self._error = error
        self._ended.set()

    def _failed(self, error: BaseException) -> None:
        self._error = error
        self._ended.set()

    def _begin_ps(self) -> Callable[[], int]:
        from ..server.ps.server import PsServer

        task = self._task
        settings = with_own_job(load_settings())
        server = PsServer(task.task, settings, has_chief=CHIEF in task.spec.jobs)
        server.start(task.address)
        self._on_signal = lambda name: server.drain()  # noqa: ARG005

        def run() -> int:
            try:
                return server.wait()
            finally:
                server.stop()

        return run

    def _run_worker(self) -> int:
        from .closures import serve_closures
        from .data_plane.servers import ServersPlane
        from .job_task import JobTask

        task, settings = self._task, with_own_job(load_settings())
        training = JobTask(task, settings, ServersPlane(task, settings), serves=True)
        self._on_signal = lambda name: training.ask_to_end(
            JobStoppedError(f"{task.task} was asked to stop by {name}", task=task.task)
        )
        try:
            return training.finish(serve_closures(training.start()))
        finally:
            training.close()


def _only(spec: ClusterSpec, job_name: str | None, task_index: int | None) -> tuple[str, int]:
    """Find the task of a server, where a cluster has only one job, or a job only one task.

    Raises:
        ConfigurationError: It is not named, and there are several.
    """
    if job_name is None:
        if len(spec.jobs) != 1:
            raise ConfigurationError(
                f"job_name must be given: the cluster has the jobs {', '.join(spec.jobs)}"
            )
        job_name = spec.jobs[0]
    if task_index is None:
        if job_name in spec.jobs and spec.num_tasks(job_name) != 1:
            raise ConfigurationError(
                f"task_index must be given: the job {job_name!r} has {spec.num_tasks(job_name)} "
                "tasks"
            )
        task_index = 0
    return job_name, task_index
