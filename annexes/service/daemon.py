"""The daemons of a standalone cluster: its gateway, which is a node for chiefs, and other nodes."""

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from ...cluster.access import Leadership
from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core import annexes
from ...core.errors import ConfigurationError, said_of
from ...core.exit_codes import ExitCode
from ...core.files.temporary import TemporaryFolder
from ...core.process.log_records import RareLog
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings
from ...core.task import TaskId
from ...net.auth.credentials import job_of_credentials, with_own_job
from ...net.auth.guard import Guard
from ...net.host import HostedServer, MetricsPort, TaskHost
from ...net.routes import Forwarder
from ...net.unary import servicer
from ...telemetry.catalogue import NODE_TASKS, Sample
from ...telemetry.task_metrics import task_samples
from ...worker.process.probes import Probes
from ...worker.process.surroundings import check_limits, handle_signals
from .chief_of_job import GatewayJobs, cluster_client
from .node import NodeAgent
from .servicer import SERVICE, TICK_S, GatewayServicer
from .settings import ServiceSettings
from .table import ClusterLimits, JobTable

log = logging.getLogger(__name__)


class GatewayServer(HostedServer):
    """Serves drivers and nodes.

    Args:
        task: The cluster's chief.
        table: The cluster.
        settings: Settings of the gateway.
    """

    def __init__(self, task: TaskId, table: JobTable, settings: Settings) -> None:
        self._folder = TemporaryFolder("ropewalk-gateway")
        self._forwarder = Forwarder()
        self.instance = secrets.token_hex(8)
        self._servicer = GatewayServicer(
            table,
            self._folder.present,
            self.instance,
            self._forwarder.ticket,
            max(1, settings.max_sessions // 4),  # of the threads that answer
        )
        self._host = TaskHost(
            task,
            threads=settings.max_sessions,
            waits_for_news=True,
            settings=settings,
            calls={SERVICE: servicer(SERVICE, self._servicer)},
            guard=Guard(
                task,
                settings,
                job=lambda: settings.job_id,
                leadership=lambda: Leadership(has_chief=True),
            ),
            routed=self._forwarder.accept,
        )
        self._stopping = threading.Event()
        self._losses = RareLog(log)
        self._ticks = new_thread("gateway", self._tick, failed=nobody_waits)

    def start(self, address: str) -> None:
        """Listen.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: Nothing says how callers show who they are.
        """
        super().start(address)
        self._ticks.start()

    def samples(self) -> Iterator[Sample]:
        """Yield the cluster's jobs and nodes, and the callers, for Prometheus."""
        yield from self._servicer.samples()
        yield from self._host.samples()

    def stop(self) -> None:
        """End: nodes that hear nothing any more end their tasks."""
        self._stopping.set()
        self._host.drain()
        self._servicer.stop()
        self._host.stop(0.5)
        self._forwarder.stop()
        if self._ticks.ident is not None:
            self._ticks.join()
        self._folder.remove()

    def _tick(self) -> None:
        while not self._stopping.wait(TICK_S):
            try:
                self._servicer.tick()
            except Exception as error:  # without ticks no job would ever end
                self._losses.warning("the gateway cannot tidy up: %s", said_of(error))
                log.debug("the gateway cannot tidy up", exc_info=True)


_LOOK_S = 0.1
_PATHS = (
    "tls_cert", "tls_key", "tls_ca", "key_file", "token_file", "token_keys", "socket_dir",
    "model_dir",
)  # fmt: skip


def run_standalone(task: ResolvedTask, settings: Settings) -> int:
    """Serve a standalone cluster in this process's role until SIGTERM; returns the exit code.

    Args:
        task: The task and its cluster.
        settings: Settings of the daemon.

    Raises:
        ConfigurationError: The cluster has no chief, this task is an evaluator, or this process may
            have too few open files or too little address space.
        AddressInUseError: The gateway's port is taken.
        RopewalkError: The gateway refuses this node.
    """
    check_limits(tasks=ServiceSettings.of(settings).max_node_tasks)
    settings = with_own_job(with_absolute_paths(settings))
    if task.task.type == EVALUATOR:
        raise ConfigurationError("a standalone cluster has no evaluator of its own")
    if TaskId(CHIEF, 0) not in task.spec.tasks():
        raise ConfigurationError(
            "a standalone cluster needs a chief, which drivers and nodes reach: name it in "
            "TF_CONFIG, or with --cluster"
        )
    host = task.address.rpartition(":")[0]
    if task.task.type == CHIEF:
        with serving_gateway(task.task, task.address, settings) as gateway:
            address = f"{host}:{gateway.port}"
            log.info("the cluster is at %s: ropewalk submit SCRIPT --cluster %s", address, address)
            node = NodeAgent(task.task, address, host, settings)
            return _run_node(node, task, settings, gateway.samples)
    chief = task.spec.task_address(CHIEF, 0)
    probes = Probes(task, settings)
    probes.start()
    try:
        return _run_node(NodeAgent(task.task, chief, host, settings), task, settings)
    finally:
        probes.stop()


def with_absolute_paths(settings: Settings) -> Settings:
    """Make paths in the settings absolute, which hold in the folders of tasks, too, that each job
    has.
    """
    relative = {name: str(getattr(settings, name)) for name in _PATHS}
    return settings.model_copy(
        update={
            name: os.path.abspath(path)
            for name, path in relative.items()
            if path and "://" not in path
        }
    )


@contextlib.contextmanager
def serving_gateway(task: TaskId, address: str, settings: Settings) -> Iterator[GatewayServer]:
    """Serve a gateway, for as long as the block runs."""
    service = ServiceSettings.of(settings)
    table = JobTable(
        ClusterLimits(
            jobs=service.max_jobs,
            workers=service.max_job_workers,
            tasks_per_node=service.max_node_tasks,
        ),
        model_dir=settings.model_dir,
        # The cluster's own name is not its jobs': each has an id, unless its credentials name one.
        job_id=job_of_credentials(settings),
        max_ps_bytes=settings.max_ps_bytes,
    )
    gateway = GatewayServer(task, table, settings)
    with contextlib.ExitStack() as stack:
        stack.callback(gateway.stop)
        gateway.start(address)
        own = f"{address.rpartition(':')[0]}:{gateway.port}"
        for module in annexes.at("beside_gateway"):
            stack.enter_context(module.beside(own, partial(_own_jobs, own, settings), settings))
        yield gateway


@contextlib.contextmanager
def _own_jobs(address: str, settings: Settings) -> Iterator[GatewayJobs]:
    """Open the jobs of the gateway of this process, whose tasks it reaches by itself."""
    with cluster_client(address, settings) as client:
        yield GatewayJobs(client, by_routes=False)


def _run_node(
    node: NodeAgent,
    task: ResolvedTask,
    settings: Settings,
    gateway: Callable[[], Iterable[Sample]] = tuple,
) -> int:
    def samples() -> Iterator[Sample]:
        yield from task_samples(task.task, settings.job_id, draining=node.is_stopping)
        yield Sample(NODE_TASKS, node.running)
        yield from gateway()

    metrics = MetricsPort(task.task, task.known_address, settings, samples)
    metrics.start()
    try:
        handle_signals(lambda name: node.stop())  # noqa: ARG005
        return node.run()
    finally:
        metrics.stop()


class LocalStandaloneCluster:
    """A standalone cluster whose daemons are threads of this process, on loopback.

    Args:
        workers: Nodes for workers.
        ps: Nodes for parameter servers.
        address: Address of the gateway; port 0: any.
        settings: Settings of all daemons.
    """

    def __init__(self, workers: int, ps: int, address: str, settings: Settings) -> None:
        self._settings = with_absolute_paths(settings)
        self._roles = [(CHIEF, 1), (PS, ps), (WORKER, workers)]
        self._where = address
        self._stack = contextlib.ExitStack()
        self._nodes: list[NodeAgent] = []
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self.address = ""

    def start(self) -> None:
        """Start the daemons.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: This process may have too few open files, or too little memory.
        """
        check_limits(tasks=sum(count for _, count in self._roles))
        chief = TaskId(CHIEF, 0)
        gateway = self._stack.enter_context(serving_gateway(chief, self._where, self._settings))
        host = self._where.rpartition(":")[0]
        self.address = f"{host}:{gateway.port}"
        for role, count in self._roles:
            for index in range(count):
                node = NodeAgent(TaskId(role, index), self.address, host, self._settings)
                self._nodes.append(node)
                thread = new_thread(f"node-{role}:{index}", node.run, failed=self._node_failed)
                self._threads.append(thread)
                thread.start()

    def wait(self) -> int:
        """Serve until :meth:`stop`, and end all tasks; returns the exit code.

        Raises:
            RopewalkError: A node could not go on.
        """
        while not self._stopping.wait(_LOOK_S):
            pass
        for node in self._nodes:
            node.stop()
        for thread in self._threads:
            thread.join()
        self._stack.close()
        if self._failure is not None:
            raise self._failure
        return int(ExitCode.DRAINED)

    def _node_failed(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._stopping.set()

    def stop(self, name: str = "") -> None:  # noqa: ARG002
        """End it."""
        self._stopping.set()
