"""Leases of data as the chief serves them: one table for each name."""

import threading
from collections.abc import Callable, Iterator

from ...cluster.job.job import Job
from ...core.errors import LimitExceededError, RefusedError
from ...core.task import Incarnation, State
from ...core.wire import codec
from ...core.wire.bounds import MAX_NAME_BYTES, check_number, check_text
from ...net.auth.guard import Visitor
from ...proto.v1 import chief_pb2
from ...server.chief.servicer import LockedJob
from ...telemetry.catalogue import Sample
from .leases import Leases
from .messages import answer
from .plan import MOST_RANGES

_MOST_LEDGERS = 64
_PLAN_NUMBERS = 3


class LedgerPart:
    """Serves the call about ranges of examples. Thread-safe.

    Args:
        locked_job: The job.
    """

    def __init__(self, locked_job: LockedJob) -> None:
        self._locked_job = locked_job
        self._lock = threading.Lock()
        self._ledgers: dict[str, tuple[tuple[int, ...], Leases, Incarnation]] = {}

    def add_to_heartbeat(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Add nothing."""

    def add_to_status(self, status: chief_pb2.GetStatusResponse) -> None:
        """Add how far each ledger has come."""
        with self._lock:
            for name, (_, leases, _) in self._ledgers.items():
                status.ledgers.add(
                    name=name,
                    epoch=leases.epoch,
                    ranges=leases.ranges,
                    done=leases.num_done,
                    leased=len(leases.holders),
                )

    def samples(self) -> Iterator[Sample]:
        """Yield nothing."""
        return iter(())

    def LeaseRange(
        self, request: chief_pb2.LeaseRangeRequest, _: Visitor
    ) -> chief_pb2.LeaseRangeResponse:
        """Lease a range, and hear which ones are trained. Not idempotent."""
        who = codec.sender_of(request)
        check_text(request.ledger, MAX_NAME_BYTES, "the name of a ledger", who)
        check_number(request.ranges, MOST_RANGES, "the number of ranges", who, least=1)
        with self._locked_job.open() as (job, _now):
            is_gone = _gone(job)
        with self._lock:
            leases = self._leases(request, who)
            leases.release(is_gone)
            return answer(leases, request, who)

    def _leases(self, request: chief_pb2.LeaseRangeRequest, who: Incarnation) -> Leases:
        """Find the table of a ledger; the first one who asks says what its plan is.

        Raises:
            RefusedError: This task has another plan.
            LimitExceededError: There are too many ledgers.
        """
        plan = (*request.plan[:_PLAN_NUMBERS], request.ranges)
        known = self._ledgers.get(request.ledger)
        if known is None:
            if len(self._ledgers) >= _MOST_LEDGERS:
                raise LimitExceededError(
                    f"{who.task} begins the ledger {request.ledger!r}, and the job has "
                    f"{_MOST_LEDGERS} already; give a dataset the same name in each pass",
                    task=who.task,
                    limit="ledgers",
                    value=_MOST_LEDGERS,
                )
            known = self._ledgers[request.ledger] = plan, Leases(request.ranges), who
        if known[0] != plan:
            raise RefusedError(
                f"{who.task} goes through {_described(plan)} in the ledger {request.ledger!r}, "
                f"and {known[2].task} through {_described(known[0])}; all tasks need the same data",
                task=who.task,
            )
        return known[1]


def _described(plan: tuple[int, ...]) -> str:
    examples, batch, order, _ = (*plan, 0, 0, 0)[:4]
    return f"{examples} examples in batches of {batch}, by seed {order >> 1}"


def _gone(job: Job) -> Callable[[Incarnation], bool]:
    """Make the function that says whether a task has left, or was started again."""
    alive = {
        Incarnation(member.task, member.generation)
        for member in job.members.values()
        if member.state is State.ALIVE
    }
    return lambda who: who not in alive


PART = LedgerPart
"""Made for each job."""
