"""The calls of a gateway: messages in, :class:`JobTable` calls, messages out."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...cluster.access import Principal
from ...core.errors import PeerLostError, RefusedError
from ...core.process.log_records import RareLog
from ...core.task import MAX_TASK_INDEX
from ...core.versions import check_protocol, own_versions
from ...core.wire import bounds, codec
from ...core.wire.bounds import check_count, check_number, check_text, shorten
from ...net.auth.guard import Visitor, one_caller
from ...net.http2.shares import Places
from ...proto.v1 import gateway_pb2
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import cluster_samples
from .gpus import gpus_left_out
from .job import MOST_GPUS, StandaloneJob, Submission
from .kept import JobLog, PackageStore
from .nodes import UNKNOWN, LoggedLine, Order, Start
from .table import JobTable
from .versions import check_environments, own_environment

log = logging.getLogger(__name__)
audit_log = logging.getLogger("ropewalk.audit")

SERVICE = gateway_pb2.DESCRIPTOR.services_by_name["Gateway"]
TICK_S = 0.25

_MAX_WAIT_S = 20.0
_MAX_PORTS = 64
_MAX_EVENTS = 4096
_MAX_RUNNING = 4096  # 512 jobs, of eight tasks each
_MAX_ORDERS = 64  # in one answer
_SUBMISSIONS = 50  # lines of the audit log in a second
_MAX_LINE_BYTES = 256 * 1024  # twice what a node makes of what a task prints


class GatewayServicer:
    """Serves one standalone cluster. Thread-safe.

    Args:
        table: The cluster.
        folder: Returns the folder this gateway has for packages and logs, and makes it again if it
            has been removed.
        instance: Instance id of this process.
        ticket: Makes a ticket for a connection to an address, for a caller.
        most_following: Calls of drivers that may wait for lines at once, each in a thread, half of
            them of one driver; others are answered at once.
    """

    def __init__(
        self,
        table: JobTable,
        folder: Callable[[], Path],
        instance: str,
        ticket: Callable[[str, Principal | None], bytes],
        most_following: int = 64,
    ) -> None:
        self._table = table
        self._folder = folder
        self._instance = instance
        self._ticket = ticket
        self._following = Places(most_following)
        self._packages = PackageStore(folder() / "packages", self._needed)
        self._logs: dict[str, JobLog] = {}
        self._events: dict[str, int] = {}  # taken, by instance of the node
        self._losses = RareLog(log)
        self._submissions = RareLog(audit_log, 1.0, _SUBMISSIONS)
        self._changed = threading.Condition()
        self._stopped = False
        # Of Unix times: what people see does not jump with the clock of this machine.
        self._epoch = time.time() - time.monotonic()

    # -- nodes -------------------------------------------------------------------------------

    def Poll(self, request: gateway_pb2.PollRequest, visitor: Visitor) -> gateway_pb2.PollResponse:
        """Take a node's events, and return its orders."""
        task = codec.task_from_wire(request.node)
        if visitor.principal is not None and not visitor.principal.may_be(task):
            raise RefusedError(f"{visitor.principal} is not the node {task.short}")
        check_protocol(own_versions(), codec.versions_from_wire(request.versions), peer=str(task))
        check_text(request.instance, bounds.MAX_NAME_BYTES, "its instance", task)
        check_text(request.host, bounds.MAX_NAME_BYTES, "its host", task)
        check_count(request.ports, _MAX_PORTS, "ports", task)
        check_count(request.gpus, MOST_GPUS, "GPUs", task)
        for gpu in request.gpus:
            check_text(gpu, bounds.MAX_NAME_BYTES, "the name of a GPU", task)
        check_count(request.events, _MAX_EVENTS, "events", task)
        running = request.running.tasks
        check_count(running, _MAX_RUNNING, "running tasks", task)
        check_number(request.orders_taken, bounds.MAX_COUNT, "orders taken", task)
        until = time.monotonic() + _wait_s(request.wait_s)
        with self._open() as table:
            now = time.monotonic()
            why = table.why_wait(task, request.instance, request.host, now=now)
            if why:
                return gateway_pb2.PollResponse(gateway=self._instance, waits_for=why)
            node = table.node_polls(
                task,
                request.instance,
                request.host,
                request.ports,
                has_own_index=request.has_own_index or visitor.has_own_index,
                gpus=request.gpus,
                now=now,
            )
            node.orders.taken(request.orders_taken)
            taken = self._take_events(request, now=now)
            if request.HasField("running"):
                runs = [(each.job, codec.task_from_wire(each.task)) for each in running]
                table.node_runs(task, runs, request.orders_taken, now=now)
            table.tick(now=now)
        with self._changed:
            while not self._stopped and (left := until - time.monotonic()) > 0:
                if node.orders.waiting() or table.nodes.get(task) is not node:
                    break
                self._changed.wait(left)
            node.heard = time.monotonic()
            orders = node.orders.waiting()[:_MAX_ORDERS]
        return gateway_pb2.PollResponse(
            orders=[_order_to_wire(number, order) for number, order in orders],
            events_taken=taken,
            gateway=self._instance,
        )

    def _take_events(self, request: gateway_pb2.PollRequest, *, now: float) -> int:
        taken = self._events.get(request.instance, 0)
        node = codec.task_from_wire(request.node)
        for number, event in enumerate(request.events, request.first_event):
            if number <= taken:
                continue  # it came before, and the answer was lost
            # Before anything of it is done: what fails halfway is not done twice.
            taken = self._events[request.instance] = number
            task = codec.task_from_wire(event.task)
            if event.WhichOneof("kind") == "exit_code":
                self._table.task_ended(node, event.job, task, event.exit_code, now=now)
            elif self._table.was_placed(event.job, task, node):
                text = shorten(event.line.text, _MAX_LINE_BYTES)
                self._append(event.job, LoggedLine(task, text, event.line.is_error))
        return taken

    def _append(self, job: str, line: LoggedLine) -> None:
        try:
            self._log_of(job).append(line)
        except OSError as error:
            # The job goes on without its lines, rather than that its node's news wait for room.
            self._losses.warning("a line of job %s is lost, it cannot be written: %s", job, error)

    def GetPackage(
        self, request: gateway_pb2.GetPackageRequest, _: Visitor
    ) -> gateway_pb2.PackagePiece:
        """Return a piece of a package, for a node."""
        with self._changed:
            data, total = self._packages.get(request.digest, request.offset)
        return gateway_pb2.PackagePiece(
            digest=request.digest, offset=request.offset, data=data, total=total
        )

    # -- drivers -----------------------------------------------------------------------------

    def PutPackage(
        self, request: gateway_pb2.PackagePiece, visitor: Visitor
    ) -> gateway_pb2.PutPackageResponse:
        """Take a piece of a package, from a driver."""
        with self._changed:
            self._folder()
            held = self._packages.put(
                request.digest, request.offset, request.data, request.total, _owner(visitor)
            )
        return gateway_pb2.PutPackageResponse(held=held)

    def Submit(self, request: gateway_pb2.SubmitRequest, visitor: Visitor) -> gateway_pb2.JobInfo:
        """Begin a job. Idempotent by its id."""
        check_text(request.name, bounds.MAX_NAME_BYTES, "its name", "a job")
        differing = check_environments(
            dict(request.environment),
            own_environment(),
            peer="the cluster",
            pickled=not request.program,
        )
        with self._open() as table:
            if request.digest and not self._packages.has(request.digest):
                raise RefusedError(
                    f"package {request.digest[:12]} of job {request.id} is not here; send it first"
                )
            owner = _owner(visitor)
            submission = Submission(
                request.id,
                request.name,
                request.digest,
                tuple(request.program),
                tuple(request.arguments),
                request.workers,
                request.ps,
                coordinator=request.coordinator,
                detached=request.detached,
                grace_s=request.grace_s,
                settings=dict(request.settings),
                owner=owner,
                model=request.model,
                gpus_per_worker=request.gpus_per_worker,
            )
            is_new = request.id not in table.jobs
            job = table.submit(submission, now=time.monotonic())
            if is_new:
                what = f"package {request.digest}" if request.digest else "a program at its driver"
                self._submissions.info("audit: job %s was submitted by %s: %s", job.id, owner, what)
            info = self._info(job)
            info.warnings.extend(filter(None, [gpus_left_out(submission, table.nodes.values())]))
        info.warnings.extend(
            f"{each.name} is {each.ours or 'missing'} here and {each.theirs or 'missing'} on the "
            f"cluster: {each.reason}"
            for each in differing
        )
        return info

    def ListJobs(self, _: gateway_pb2.ListJobsRequest, __: Visitor) -> gateway_pb2.ListJobsResponse:
        """Return all jobs and nodes."""
        with self._open() as table:
            nodes = [
                gateway_pb2.Node(
                    task=codec.task_to_wire(node.task),
                    host=node.host,
                    is_lost=node.is_lost,
                    running=len(node.running),
                    gpus=len(node.gpus),
                )
                for node in table.nodes.values()
            ]
            jobs = [self._info(job) for job in table.jobs.values()]
        return gateway_pb2.ListJobsResponse(jobs=jobs, nodes=nodes)

    def Follow(
        self, request: gateway_pb2.FollowRequest, visitor: Visitor
    ) -> gateway_pb2.FollowResponse:
        """Wait for lines of a job from an offset on, or its end."""
        check_number(request.offset, bounds.MAX_COUNT, "offset", "a driver")
        until = time.monotonic() + _wait_s(request.wait_s)
        with self._changed:
            job = self._table.find(request.job)
            log_of = self._log_of(job.id)
            state = job.state, job.reason
            waits = self._following.take(one_caller(visitor.principal))
            if not waits:
                until = 0.0
            try:
                while not self._stopped and visitor.is_waiting():
                    if request.drives:
                        job.driver_heard = time.monotonic()
                    left = until - time.monotonic()
                    news = log_of.end > request.offset or (job.state, job.reason) != state
                    if news or job.has_ended or left <= 0:
                        break
                    self._changed.wait(min(left, 1.0))
            finally:
                if waits:
                    self._following.give_back(one_caller(visitor.principal))
            piece = log_of.read(request.offset)
            return gateway_pb2.FollowResponse(
                lines=[
                    gateway_pb2.LogLine(
                        task=codec.task_to_wire(line.task), text=line.text, is_error=line.is_error
                    )
                    for line in piece.lines
                ],
                offset=piece.offset,
                dropped=piece.dropped,
                job=self._info(job),
            )

    def Stop(self, request: gateway_pb2.StopRequest, visitor: Visitor) -> gateway_pb2.JobInfo:
        """Ask a job to save and end."""
        reason = request.reason or f"stopped by {_owner(visitor)}"
        check_text(reason, bounds.MAX_TEXT_BYTES, "the reason", "a driver")
        with self._open() as table:
            job = table.stop(request.job, reason, kill=request.kill, now=time.monotonic())
            return self._info(job)

    def Scale(self, request: gateway_pb2.ScaleRequest, _: Visitor) -> gateway_pb2.JobInfo:
        """Have a job have more or fewer ps."""
        check_number(request.ps, MAX_TASK_INDEX, "ps", "a driver")
        with self._open() as table:
            job = table.scale(request.job, max(1, request.ps))
            return self._info(job)

    def OpenRoute(
        self, request: gateway_pb2.OpenRouteRequest, visitor: Visitor
    ) -> gateway_pb2.OpenRouteResponse:
        """Issue a ticket for a connection to a task of a job that runs."""
        task = codec.task_from_wire(request.destination)
        with self._open() as table:
            job = table.find(request.job)
            placed = job.tasks.get(task)
            if placed is None or job.has_ended:
                raise RefusedError(f"job {job.id} is {job.state} and has no {task.short} to reach")
            address = placed.address
        try:
            ticket = self._ticket(address, visitor.principal)
        except OSError as error:
            why = error.strerror or str(error)
            raise PeerLostError(
                f"{task} of job {job.id} is not reached at {address}: {why}"
            ) from error
        return gateway_pb2.OpenRouteResponse(ticket=ticket, address=address)

    # -- meanwhile ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Call every :data:`TICK_S`."""
        with self._open() as table:
            self._folder()
            table.tick(now=time.monotonic())
            for gone in [job for job in self._logs if job not in table.jobs]:
                self._logs.pop(gone).remove()
            living = {node.instance for node in table.nodes.values()}
            for gone in [instance for instance in self._events if instance not in living]:
                del self._events[gone]

    def stop(self) -> None:
        """Answer all calls that wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @contextmanager
    def _open(self) -> Iterator[JobTable]:
        """Lend the table under its lock; calls that wait look again afterwards."""
        with self._changed:
            try:
                yield self._table
            finally:
                self._changed.notify_all()

    def samples(self) -> Iterator[Sample]:
        """Yield the cluster's jobs and nodes, for Prometheus."""
        with self._changed:
            jobs = [job.state.value for job in self._table.jobs.values()]
            nodes = ["lost" if node.is_lost else "alive" for node in self._table.nodes.values()]
        return cluster_samples(jobs, nodes)

    def _needed(self) -> set[str]:
        """Collect the digests of the packages of jobs that have not ended."""
        return {job.submission.digest for job in self._table.jobs.values() if not job.has_ended}

    def _log_of(self, job: str) -> JobLog:
        if job not in self._logs:
            self._logs[job] = JobLog(self._folder() / f"log-{job}")
        return self._logs[job]

    def _info(self, job: StandaloneJob) -> gateway_pb2.JobInfo:
        def unix(at: float | None) -> float:
            return self._epoch + at if at is not None else 0.0

        asked = job.submission
        return gateway_pb2.JobInfo(
            id=job.id,
            name=asked.name,
            state=job.state.value,
            reason=job.reason,
            exit_code=job.exit_code,
            submitted=unix(job.submitted),
            started=unix(job.started),
            ended=unix(job.ended),
            tasks=[
                gateway_pb2.JobTask(
                    task=codec.task_to_wire(placed.task),
                    node=codec.task_to_wire(placed.node),
                    address=placed.address,
                    has_ended=placed.has_ended,
                    exit_code=placed.code or 0,
                    gpus=placed.gpus,
                )
                for placed in job.tasks.values()
            ],
            cluster=json.dumps(job.cluster) if job.tasks else "",
            owner=asked.owner,
            detached=asked.detached,
            digest=asked.digest,
            program=asked.program,
            model_dir=self._table.model_dir_of(job),
        )


def _owner(visitor: Visitor) -> str:
    return str(visitor.principal or UNKNOWN)


def _wait_s(asked_s: float) -> float:
    """Limit how long to wait; not at all for what is no number."""
    return min(asked_s, _MAX_WAIT_S) if asked_s > 0 else 0.0


def _order_to_wire(number: int, order: Order) -> gateway_pb2.Order:
    task = codec.task_to_wire(order.task)
    if isinstance(order, Start):
        start = gateway_pb2.StartTask(
            job=order.job,
            task=task,
            attempt=order.attempt,
            tf_config=order.tf_config,
            digest=order.digest,
            command=order.command,
            settings=dict(order.settings),
            gpus=order.gpus,
        )
        return gateway_pb2.Order(number=number, start=start)
    stop = gateway_pb2.StopTask(job=order.job, task=task, kill=order.kill)
    return gateway_pb2.Order(number=number, stop=stop)
