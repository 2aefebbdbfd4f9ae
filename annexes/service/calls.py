"""Calls to the gateway of a standalone cluster: a driver's, and those of its nodes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from ...cluster.access import Principal
from ...core.backoff import attempts
from ...core.errors import RopewalkError
from ...core.outside_text import read_json
from ...core.settings import Settings
from ...core.task import TaskId
from ...core.wire import codec
from ...core.wire.same_fields import from_message
from ...net.channel import UnaryClient
from ...net.routes import open_routes, through_gateway
from ...net.sockets import Connect
from ...proto.v1 import gateway_pb2, gateway_pb2_grpc
from .nodes import LoggedLine

PIECE_BYTES = 1024 * 1024
_CALL_S = 10.0
_PIECE_S = 60.0  # for a MiB of a package, which may go through a slow line
_PATIENCE_S = 30.0  # with a gateway that has answered before
_LONGEST_PAUSE_S = 1.0
_MORE_S = 5.0  # than a call waits at the gateway

_Response = TypeVar("_Response")


@dataclass(frozen=True, slots=True)
class JobView:
    """A job in the gateway's view.

    Attributes:
        exit_code: Once it has ended, in the form of a shell.
        submitted: Unix time, like the other times; 0: not yet.
        cluster: TF_CONFIG's cluster once it runs, otherwise empty.
        tasks: Tasks of the job: None while one runs, otherwise its exit code in the form of
            ``subprocess``.
        nodes: The node of each task.
        warnings: Differences between the driver and the cluster that may matter, as of the
            submission.
        model_dir: Folder of its checkpoints, as its tasks have it; empty: it saves none.
    """

    id: str
    name: str
    state: str
    reason: str
    exit_code: int
    submitted: float
    started: float
    ended: float
    cluster: Mapping[str, Sequence[str]]
    tasks: Mapping[TaskId, int | None]
    nodes: Mapping[TaskId, TaskId]
    owner: str
    program: tuple[str, ...]
    digest: str
    warnings: tuple[str, ...] = ()
    model_dir: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the job has ended."""
        return self.state == "ended"


@dataclass(frozen=True, slots=True)
class News:
    """The answer of :meth:`GatewayClient.follow`.

    Attributes:
        lines: Lines of the log, in order.
        offset: Offset at which the next call continues.
        dropped: Number of bytes of the log before ``lines`` that are no longer kept.
        job: Present state of the job.
    """

    lines: tuple[LoggedLine, ...]
    offset: int
    dropped: int
    job: JobView


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node in the gateway's view."""

    task: TaskId
    host: str
    is_lost: bool
    running: int
    gpus: int = 0


class GatewayClient(UnaryClient):
    """Unary calls to a gateway. Thread-safe. Every call may be repeated.

    Args:
        address: host:port.
        settings: The caller's credentials, and bounds.
        who: The caller.

    Raises:
        ConfigurationError: The address is none, or no credentials are set.
    """

    def __init__(self, address: str, settings: Settings, who: Principal) -> None:
        super().__init__(address, f"the gateway ({address})", settings, who)
        self._stub = gateway_pb2_grpc.GatewayStub(self._channel)

    def put_package(self, digest: str, data: bytes, on_progress: Callable[[int], None]) -> None:
        """Send a package, or the rest of it, unless the gateway has it.

        Args:
            digest: SHA-256, in hex.
            data: The whole package.
            on_progress: Called with how many bytes the gateway has.

        Raises:
            PeerLostError: No answer.
            RopewalkError: It is refused.
        """
        total, held, piece, patience_s = len(data), 0, b"", 0.0
        while True:
            request = gateway_pb2.PackagePiece(digest=digest, offset=held, data=piece, total=total)

            def send(request: Message = request) -> gateway_pb2.PutPackageResponse:
                return self._call(self._stub.PutPackage, request, "send a package", _PIECE_S)

            held = _retry(send, patience_s).held
            patience_s = _PATIENCE_S  # it is known that the gateway is there
            on_progress(held)
            if held >= total:
                return
            piece = data[held : held + PIECE_BYTES]

    def get_package(self, digest: str) -> bytes:
        """Fetch a package.

        Raises:
            PeerLostError: No answer.
            RefusedError: The gateway does not have it.
        """
        data = bytearray()
        while True:
            request = gateway_pb2.GetPackageRequest(digest=digest, offset=len(data))
            piece = self._call(self._stub.GetPackage, request, "fetch a package", _PIECE_S)
            data += piece.data
            if len(data) >= piece.total or not piece.data:
                return bytes(data)

    def submit(self, request: gateway_pb2.SubmitRequest, patience_s: float = 0.0) -> JobView:
        """Begin a job.

        Args:
            request: Description of the job with an id, so that a repeated request is the same job.
            patience_s: Time to repeat the call while no answer comes. Unit: seconds.

        Raises:
            PeerLostError: No answer; the call may be repeated.
            RopewalkError: It is refused.
        """
        answer = _retry(
            lambda: self._call(self._stub.Submit, request, "submit", _CALL_S), patience_s
        )
        return _job_from_wire(answer)

    def jobs(self) -> tuple[list[JobView], list[NodeView]]:
        """List all jobs, the oldest first, and all nodes.

        Raises:
            PeerLostError: No answer.
        """
        answer = self._call(
            self._stub.ListJobs, gateway_pb2.ListJobsRequest(), "list jobs", _CALL_S
        )
        nodes = [
            NodeView(
                codec.task_from_wire(node.task), node.host, node.is_lost, node.running, node.gpus
            )
            for node in answer.nodes
        ]
        return [_job_from_wire(job) for job in answer.jobs], nodes

    def follow(self, job: str, offset: int, *, wait_s: float, drives: bool) -> News:
        """Wait for lines of a job's log, or a change of its state.

        Args:
            job: Id or name of the job.
            offset: The offset of the last news; 0 at first.
            wait_s: Longest wait. Unit: seconds.
            drives: Whether the job ends when these calls end.

        Raises:
            PeerLostError: No answer; repeat the call with the same offset.
            RefusedError: There is no such job.
        """
        request = gateway_pb2.FollowRequest(job=job, offset=offset, wait_s=wait_s, drives=drives)
        answer = self._call(self._stub.Follow, request, "follow a job", wait_s + _MORE_S)
        lines = tuple(
            LoggedLine(codec.task_from_wire(line.task), line.text, line.is_error)
            for line in answer.lines
        )
        return News(lines, answer.offset, answer.dropped, _job_from_wire(answer.job))

    def stop(self, job: str, reason: str = "", *, kill: bool = False) -> JobView:
        """Ask a job to save and end, or end it at once.

        Raises:
            PeerLostError: No answer; the call may be repeated.
            RefusedError: There is no such job.
        """
        request = gateway_pb2.StopRequest(job=job, reason=reason, kill=kill)
        return _job_from_wire(self._call(self._stub.Stop, request, "stop a job", _CALL_S))

    def scale(self, job: str, ps: int) -> JobView:
        """Have a job have more or fewer ps: start some, or ask some to leave.

        Raises:
            PeerLostError: No answer; the call may be repeated.
            RefusedError: It is not possible, and nothing has changed.
        """
        request = gateway_pb2.ScaleRequest(job=job, ps=ps)
        return _job_from_wire(self._call(self._stub.Scale, request, "scale a job", _CALL_S))

    def open_route(self, job: str, task: TaskId, timeout_s: float) -> bytes:
        """Ask for a ticket for one connection to a task of a job, through the gateway.

        Raises:
            PeerLostError: No answer, or the task is not reached.
            RopewalkError: The gateway refuses.
        """
        request = gateway_pb2.OpenRouteRequest(job=job, destination=codec.task_to_wire(task))
        return self._call(self._stub.OpenRoute, request, "reach a task", timeout_s).ticket

    def poll(self, request: gateway_pb2.PollRequest) -> gateway_pb2.PollResponse:
        """Hand over a node's events, and receive its orders.

        Raises:
            PeerLostError: No answer; repeat the call with the same numbers.
            RopewalkError: It is refused.
        """
        return self._call(self._stub.Poll, request, "poll", request.wait_s + _MORE_S)


def _retry(call: Callable[[], _Response], patience_s: float) -> _Response:
    """Make a call that may be repeated, for ``patience_s`` while the gateway is lost."""
    for attempt in attempts(timeout_s=patience_s, max_s=_LONGEST_PAUSE_S):
        with attempt:
            answer = call()
    return answer


def _job_from_wire(message: gateway_pb2.JobInfo) -> JobView:
    tasks = {codec.task_from_wire(task.task): task for task in message.tasks}
    return from_message(
        JobView,
        message,
        cluster=read_json(message.cluster) if message.cluster else {},
        tasks={
            task: status.exit_code if status.has_ended else None for task, status in tasks.items()
        },
        nodes={task: codec.task_from_wire(status.node) for task, status in tasks.items()},
        program=tuple(message.program),
        warnings=tuple(message.warnings),
    )


# -- Reaching the tasks of a job through the gateway of its cluster ----------------------------


def routes_to(client: GatewayClient, job: JobView) -> AbstractContextManager[None]:
    """Reach every task of a job by its own address, for as long as the block runs."""
    return open_routes(
        {
            job.cluster[task.type][task.index]: _way_to(client, job.id, task)
            for task in job.tasks
            if task.index < len(job.cluster.get(task.type, ()))
        }
    )


def _way_to(client: GatewayClient, job: str, task: TaskId) -> Connect:
    def ask_ticket(timeout_s: float) -> bytes:
        try:
            return client.open_route(job, task, timeout_s)
        except RopewalkError as error:
            raise ConnectionError(error.message) from error

    return through_gateway(client.address, ask_ticket)
