"""Asking for ranges: the chief, or in a program alone a table of its own."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ...core.backoff import Backoff
from ...core.errors import PeerLostError, RopewalkError
from ...core.process.waiting import WaitLog
from ...core.wire import codec
from ...distribute.runtime import ClusterRuntime
from ...proto.v1 import chief_pb2
from .leases import Leases, RangeLease
from .messages import answer, leased_to_wire, progress_to_wire
from .plan import Plan, RangesProgress
from .progress import Leased

_CALL_S = 5.0
_GIVE_BACK_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.2


@dataclass(slots=True)
class WorkerNews:
    """News of a worker, told with its next question.

    Attributes:
        done: Ranges that it has trained.
        held: Ranges that it goes on training.
        given_back: Ranges that it does not go on with.
    """

    done: list[Leased] = field(default_factory=list)
    held: list[Leased] = field(default_factory=list)
    given_back: list[Leased] = field(default_factory=list)


class Closed(Exception):  # noqa: N818 - no error: the program wants no more
    """The iterator was closed while its thread waited for a range."""


class RangeAsker:
    """Asks for one range after the other. Used by one thread.

    Args:
        runtime: Runtime of the task.
        name: Name of the ledger.
        plan: The plan.
        read: Reads the progress that the ps have.
        closing: Set when nothing is wanted any more.
        alone: Leases of a program that has no chief.
    """

    def __init__(
        self,
        runtime: ClusterRuntime,
        name: str,
        plan: Plan,
        read: Callable[[], RangesProgress],
        closing: threading.Event,
        alone: Leases,
    ) -> None:
        self._runtime, self._name, self._plan = runtime, name, plan
        self._read, self._closing = read, closing
        self._alone = alone

    def take(self, epoch: int, news: Callable[[], WorkerNews]) -> RangeLease | None:
        """Wait for a range of an epoch; None: all of it is trained.

        Args:
            epoch: The epoch.
            news: Called for each question: what has happened since the last one.

        Raises:
            Closed: Nothing is wanted any more.
            RopewalkError: The job ends, or the chief refuses.
        """
        waits, backoff = WaitLog(self._runtime.task.task), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        progress: RangesProgress | None = None
        told = WorkerNews()
        while True:
            self._runtime.job.check()
            if self._closing.is_set():
                raise Closed
            told = _joined(told, news())
            try:
                response = self._ask(epoch, told, progress)
            except PeerLostError as error:  # the job says when the chief is lost
                waits.tick("the chief to lease examples", error)
                self._closing.wait(backoff.next_s())
                continue
            told, progress = WorkerNews(), None
            kind = response.WhichOneof("kind")
            if kind == "range":
                waits.done()
                return RangeLease(response.range.epoch, response.range.number, response.begun)
            if kind == "over":
                waits.done()
                return None
            if kind == "tell":
                progress = self._read()
                continue
            waits.tick(f"the last examples of epoch {epoch} in {self._name!r}", _holders(response))
            self._closing.wait(backoff.next_s())

    def give_back(self, news: WorkerNews) -> None:
        """Tell that ranges are not gone on with, if the chief can be told."""
        try:
            self._ask(0, news, None, takes=False, timeout_s=_GIVE_BACK_S)
        except (RopewalkError, ValueError):  # of a channel that was closed
            return  # they come back when this task leaves

    def _ask(
        self,
        epoch: int,
        news: WorkerNews,
        progress: RangesProgress | None,
        *,
        takes: bool = True,
        timeout_s: float = _CALL_S,
    ) -> chief_pb2.LeaseRangeResponse:
        request = chief_pb2.LeaseRangeRequest(
            ledger=self._name,
            plan=self._plan.numbers(),
            ranges=self._plan.ranges,
            epoch=epoch,
            done=leased_to_wire(news.done),
            held=leased_to_wire(news.held),
            given_back=leased_to_wire(news.given_back),
            takes=takes,
            progress=None if progress is None else progress_to_wire(progress),
        )
        if (chief := self._runtime.job.chief) is None:
            return answer(self._alone, request, self._runtime.session.who)
        client, who = chief
        return client.lease_range(who, request, timeout_s=timeout_s)


def _joined(first: WorkerNews, then: WorkerNews) -> WorkerNews:
    """Join what was not told yet with what has happened since."""
    return WorkerNews(first.done + then.done, then.held, first.given_back + then.given_back)


def _holders(response: chief_pb2.LeaseRangeResponse) -> str:
    tasks = ", ".join(str(codec.task_from_wire(task)) for task in response.wait.tasks)
    return f"{tasks} trains them" if tasks else ""
