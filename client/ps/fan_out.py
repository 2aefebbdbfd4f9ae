"""Steps to several ps at once: everything a step needs from one ps is one request to it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from ...core.arrays.dtypes import Array, total_bytes
from ...core.errors import PeerLostError, RopewalkError
from ...core.step_times import clock_here
from ...core.task import Incarnation
from ...core.wire.closure_pushes import ClosureRun
from ...core.wire.cut_marks import CutMark
from ...core.wire.steps import NO_TARGET, PullTarget, PushResult, StepRequest
from .pull_plans import PullPlan
from .step import Exchange, PsPeer, answered

_PARALLEL_BYTES = 1024 * 1024  # below, handing work to another thread costs more than it saves
_MAX_THREADS = 16
_Result = TypeVar("_Result")


@dataclass(slots=True)
class SessionCounters:
    """Payload moved since the session began. Unit: bytes."""

    pushed: int = 0
    pulled: int = 0


class SentRequest(NamedTuple):
    """A request to one ps that is under way."""

    request: StepRequest
    target: PullTarget
    exchange: Exchange


class FanOut:
    """Sends the requests of a step and receives their answers. The caller locks.

    Args:
        peers: Peers, one per ps, by index.
        who: Incarnation of the calling task.

    Attributes:
        sequences: Number of the last applied push to each ps; in a closure, its number there.
        pushes: Number of steps in which anything was pushed, closures included.
        closure: Closure in which pushes are made now; None: no closure.
        broken: Why no step can follow: the outcome of a step is unknown.
    """

    def __init__(self, peers: Sequence[PsPeer], who: Incarnation) -> None:
        self.peers = list(peers)
        self._who = who
        self.sequences = [0] * len(peers)
        self.pushes = 0
        self.closure: ClosureRun | None = None
        self._own_sequences = self.sequences
        self.counters = SessionCounters()
        self.broken: RopewalkError | None = None
        self._pool: ThreadPoolExecutor | None = None

    def enter_closure(self, closure: ClosureRun | None) -> None:
        """Count pushes as those of a closure from now on; None: as those of this task again."""
        self.closure = closure
        self.sequences = [0] * len(self.peers) if closure is not None else self._own_sequences

    def send(
        self, requests: Mapping[int, StepRequest], targets: Mapping[int, PullTarget]
    ) -> dict[int, SentRequest]:
        """Send to all ps, once the values for all are gathered: if that fails, nothing is applied.

        If one cannot be sent to, the answers of the others are read first.

        Raises:
            RopewalkError: A request was refused here.
        """
        size = sum(request.value_bytes for request in requests.values())
        self.pushes += any(request.sequence for request in requests.values())
        steps: dict[int, SentRequest] = {}
        for ps, request in requests.items():
            target = targets.get(ps, NO_TARGET)
            steps[ps] = SentRequest(request, target, self.peers[ps].step(request, target))
        sent: dict[int, SentRequest] = {}
        try:
            self._for_each(steps, lambda ps: next(steps[ps].exchange), size)
            self._send_each(steps, sent)
        except BaseException:
            for ps in steps.keys() - sent.keys():
                steps[ps].exchange.close()
            raise
        return sent

    def _send_each(self, steps: Mapping[int, SentRequest], sent: dict[int, SentRequest]) -> None:
        """Send what is gathered, noting in ``sent`` what was."""
        try:
            for ps, step in steps.items():
                next(step.exchange)
                sent[ps] = step
                self.counters.pushed += step.request.value_bytes
        except RopewalkError:
            self.receive(sent)
            raise
        except BaseException as error:
            self.break_off(error)
            raise

    def receive(
        self, sent: Mapping[int, SentRequest]
    ) -> tuple[dict[int, PushResult], RopewalkError | None]:
        """Receive from all, large pulls at the same time; one that fails leaves no other unread.

        Returns:
            The answer of each ps, and the first failure.
        """

        def receive(ps: int) -> PushResult | RopewalkError:
            try:
                return answered(sent[ps].exchange)
            except RopewalkError as error:
                return error

        try:
            size = sum(total_bytes(step.target.into) for step in sent.values())
            answers = self._for_each(sent, receive, size)
        except BaseException as error:
            self.break_off(error)
            raise
        results: dict[int, PushResult] = {}
        failure: RopewalkError | None = None
        for (ps, step), answer in zip(sent.items(), answers, strict=True):
            sequence = step.request.sequence
            if isinstance(answer, RopewalkError):
                failure = failure or answer
                if isinstance(answer, PeerLostError) and sequence:
                    self.break_off(answer)
                continue
            results[ps] = answer
            if sequence:
                self.sequences[ps] = sequence
            self.counters.pulled += answer.pulled_bytes
        return results, failure

    def break_off(self, error: BaseException) -> None:
        """Refuse to go on: what was applied is not known, and an answer may be unread."""
        self.broken = self.broken or PeerLostError(
            f"{self._who.task}: a step was interrupted ({type(error).__name__}) and its "
            "outcome is not "
            "known; this session cannot go on. Restart the task, or make the strategy anew",
            task=self._who.task,
        )

    def mark_cut(self, number: int, timeout_s: float) -> None:
        """Tell all ps where a cut is; no step is under way.

        Raises:
            RopewalkError: One did not take it: the cut will be void.
        """

        def mark(ps: int) -> None:
            mark = CutMark(self._own_sequences[ps], self.pushes)
            self.peers[ps].mark_cut(number, mark, timeout_s)

        self._for_each(range(len(self.peers)), mark, _PARALLEL_BYTES + 1)

    def abort(self, error: RopewalkError) -> None:
        """Make a running and every later call raise ``error``. From any thread."""
        self.broken = error
        for peer in self.peers:
            peer.abort(error)

    def raise_if_broken(self) -> None:
        """Raise what makes another step impossible."""
        if self.broken is not None:
            raise self.broken

    def close(self) -> None:
        """End the sessions."""
        for peer in self.peers:
            peer.close()
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def _for_each(
        self, several: Collection[int], call: Callable[[int], _Result], num_bytes: int
    ) -> list[_Result]:
        """Call for each ps, at the same time if many bytes are moved, in this thread and others."""
        if len(several) < 2 or num_bytes <= _PARALLEL_BYTES:
            return [call(ps) for ps in several]
        first, *others = several
        if self._pool is None:
            threads = min(_MAX_THREADS, len(self.peers))
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ps")
        pending = [self._pool.submit(call, ps) for ps in others]
        try:
            return [call(first), *(future.result() for future in pending)]
        finally:
            wait(pending)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The outcome of a step: values that were pulled, and the global step.

    Attributes:
        values: Pulled variables by name. Read-only arrays; they stay as they are.
        global_step: Global step after the step.
        staleness: Steps others took between this push's pull and it.
    """

    values: Mapping[str, Array]
    global_step: int
    staleness: int


class StepSender(Protocol):
    """The session that has sent a step."""

    def wait(self, pending: "PendingStep") -> None:
        """Read the answer, unless it was read."""
        ...

    def mark_reported(self, failure: RopewalkError) -> None:
        """Note that the caller was told of a failure."""
        ...


class PendingStep:
    """A step that was sent. Its answer is read by :meth:`result`, or by the session's next step."""

    def __init__(
        self,
        session: "StepSender",
        sent: dict[int, SentRequest],
        buffer: Array | None,
        plan: PullPlan,
        part: int,
    ) -> None:
        self._session = session
        self._part = part  # of the program's step that a wait is
        self.sent = sent
        self.buffer = buffer
        self.plan = plan
        self.answer: StepResult | None = None
        self.failure: RopewalkError | None = None

    def wait(self) -> None:
        """Wait for the answer; :meth:`result` says what it was. From any thread."""
        self._session.wait(self)

    def result(self) -> StepResult:
        """Wait for the answer. From any thread.

        Raises:
            RefusedError: A ps refused; nothing was applied there.
            PeerLostError: A ps is gone.
        """
        clock = clock_here()
        began = clock.begin()
        self._session.wait(self)
        clock.end(self._part, began)
        if self.failure is not None:
            self._session.mark_reported(self.failure)
            raise self.failure
        if self.answer is None:
            raise RuntimeError("a step has neither an answer nor a failure")
        return self.answer
