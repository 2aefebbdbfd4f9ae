"""Shares that move, as the chief serves them: moves, ps that come, how many there are to be."""

import logging
import threading
from collections.abc import Callable, Iterator

from ...cluster.replication.configuration import Move, MovePhase
from ...core.errors import ConfigurationError, PeerLostError, RefusedError
from ...core.process.events import event
from ...core.task import TaskId
from ...core.versions import check_protocol, own_versions
from ...core.wire import bounds, codec
from ...core.wire.bounds import check_text
from ...core.wire.same_fields import to_message
from ...net.auth.guard import Visitor
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import leader_samples, move_samples, share_samples

log = logging.getLogger(__name__)

# -- Moves -------------------------------------------------------------------------------------

BeginMove = Callable[[int, TaskId], Move]


def _refuse(share: int, to: TaskId) -> Move:
    raise ConfigurationError(
        f"share {share} cannot move to {to.short}: the shares of this job do not move; start it "
        "with ROPEWALK_PS_SHARES or ROPEWALK_PS_REPLICAS=2 on the chief and all ps",
        task=to,
    )


class Moves:
    """The last move of a share, and how many there were. Thread-safe.

    Attributes:
        begin: Begins a move; set by what leads the ps.
        last: The last move; None: there was none.
        done: Number of moves that were made.
        failed: Number of moves that failed.
    """

    def __init__(self) -> None:
        self.begin: BeginMove = _refuse
        self.last: Move | None = None
        self.done = self.failed = 0
        self._lock = threading.Lock()

    def publish(self, move: Move) -> None:
        """Tell how far a move has come, and count it once when it is over."""
        with self._lock:
            before = self.last
            if before is not None and before.number == move.number and before.phase.is_over:
                return
            self.last = move
            if not move.phase.is_over:
                return
            if move.phase is MovePhase.DONE:
                self.done += 1
                done = event("share.moved", move=move)
                log.info("%s took %.2f s", move, move.seconds, extra=done)
            else:
                self.failed += 1
                failed = event("share.move_failed", move=move, reason=move.reason)
                log.error(
                    "%s failed after %.2f s: %s", move, move.seconds, move.reason, extra=failed
                )


# -- The ps that come to a running job, and how many it is to have -----------------------------

JoinPs = Callable[[TaskId, str], None]
"""Takes a ps and its address."""


def _not_yet(task: TaskId, address: str) -> None:
    raise PeerLostError(f"{task} at {address}: the chief does not lead the ps yet", task=task)


class Servers:
    """Requests to the chief about the number of ps. Thread-safe.

    Attributes:
        join: Takes a ps into the job; set by what leads the ps.
        wanted: Number of ps that the job is to have; 0: as many as it began with.
        shares: Number of shares; 0: not known yet.
    """

    def __init__(self) -> None:
        self.join: JoinPs = _not_yet
        self.wanted = 0
        self.shares = 0

    def check(self, ps: TaskId) -> None:
        """Check that a ps of this index may come: the chief asks all of them, again and again.

        Raises:
            RefusedError: There is no share for it, nor may it replace one that has.
        """
        most = 2 * self.shares
        if self.shares and ps.index >= most:
            raise RefusedError(
                f"{ps} cannot come as a ps: ps:0 to ps:{most - 1} can, as there are {self.shares} "
                "shares (ps_shares)",
                task=ps,
            )

    def scale(self, count: int, *, replicas: int, shares: int) -> None:
        """Say how many ps there are to be.

        Args:
            count: The number.
            replicas: Number of ps that are to have each share.
            shares: Number of shares; 0: they do not move.

        Raises:
            ConfigurationError: No ps can come or leave in this job.
            RefusedError: It cannot have so many, or so few.
        """
        if not shares:
            raise ConfigurationError(
                "the ps of this job cannot become more or fewer, since its shares do not move; "
                "start it with ROPEWALK_PS_SHARES on the chief and all ps, at least as many as the "
                "most ps that it is to have"
            )
        if not replicas <= count <= shares:
            raise RefusedError(
                f"this job can have {replicas} to {shares} ps, not {count}: each of its {shares} "
                f"shares (ps_shares) is led by one, and on {replicas} of them (ps_replicas)",
                value=count,
                limit="ps_shares" if count > shares else "ps_replicas",
            )
        self.wanted = count


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
