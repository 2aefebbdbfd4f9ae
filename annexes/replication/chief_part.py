"""Shares that move, as the chief serves them: moves, ps that come, how many there are to be."""

from collections.abc import Iterator

from ...cluster.replication.configuration import Move
from ...core.versions import check_protocol, own_versions
from ...core.wire import bounds, codec
from ...core.wire.bounds import check_text
from ...core.wire.same_fields import to_message
from ...net.auth.guard import Visitor
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import leader_samples, move_samples, share_samples
from .moves import Moves, Servers


class SharesPart:
    """Serves the calls about shares that move. Thread-safe.

    Args:
        locked_job: The job.
    """

    def __init__(self, locked_job: LockedJob) -> None:
        self._locked_job = locked_job
        self._moves = locked_job.part(Moves)
        self._servers = locked_job.part(Servers)

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Add nothing."""

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add how many ps there are to be, and the last move."""
        status.wanted_ps = self._servers.wanted
        if self._moves.last is not None:
            status.move.CopyFrom(_move_to_wire(self._moves.last))

    def samples(self) -> Iterator[Sample]:
        """Yield samples of shares and their moves, in a job whose shares move."""
        leaders = self._locked_job.leaders
        if not leaders.shares:
            return
        replicas = {each.share: 1 + len(each.followers) for each in leaders.now()}
        yield from share_samples(replicas, leaders.replicas)
        yield from leader_samples(leaders.failovers, leaders.last_failover_s, leaders.handovers)
        moves, last = self._moves, self._moves.last
        seconds = last.seconds if last is not None and last.phase.is_over else 0.0
        yield from move_samples(moves.done, moves.failed, seconds)

    def MoveShare(
        self, request: chief_pb2.MoveShareRequest, _: Visitor
    ) -> chief_pb2.MoveShareResponse:
        """Begin to move a share. Idempotent while it is under way."""
        move = self._moves.begin(request.share, codec.task_from_wire(request.to))
        return chief_pb2.MoveShareResponse(move=_move_to_wire(move))

    def JoinPs(self, request: chief_pb2.JoinPsRequest, _: Visitor) -> chief_pb2.JoinPsResponse:
        """Take in a ps that the cluster did not have. Idempotent. Blocks while it is tried."""
        task = codec.task_from_wire(request.task)
        check_text(request.address, bounds.MAX_NAME_BYTES, "its address", task)
        check_text(request.job, bounds.MAX_JOB_ID_BYTES, "the id of its job", task)
        theirs = codec.versions_from_wire(request.versions)
        check_protocol(own_versions(), theirs, peer=str(task))
        with self._locked_job.open() as (job, _now):
            job.check_ps(task, request.job)
        self._servers.check(task)
        self._servers.join(task, request.address)
        return chief_pb2.JoinPsResponse(versions=codec.versions_to_wire(own_versions()))

    def ScalePs(self, request: chief_pb2.ScalePsRequest, _: Visitor) -> chief_pb2.ScalePsResponse:
        """Say how many ps there are to be. Idempotent."""
        leaders = self._locked_job.leaders
        self._servers.scale(request.count, replicas=leaders.replicas, shares=leaders.shares)
        return chief_pb2.ScalePsResponse(count=request.count)


def _move_to_wire(move: Move) -> chief_pb2.ShareMove:
    phase = getattr(chief_pb2, f"MOVE_PHASE_{move.phase.name}")
    source, to = codec.task_to_wire(move.source), codec.task_to_wire(move.to)
    return to_message(chief_pb2.ShareMove, move, source=source, to=to, phase=phase)


PART = SharesPart
"""Made for each job."""
