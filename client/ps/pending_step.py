"""A step that was sent, and what it brings back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...core.arrays.dtypes import Array
from ...core.errors import RopewalkError
from ...core.wire.steps import PullTarget, StepRequest
from .pull_plans import PullPlan


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
        requests: dict[int, StepRequest],
        buffer: Array | None,
        targets: dict[int, PullTarget],
        plan: PullPlan,
    ) -> None:
        self._session = session
        self.requests = requests
        self.buffer = buffer
        self.targets = targets
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
        self.wait()
        if self.failure is not None:
            self._session.mark_reported(self.failure)
            raise self.failure
        if self.answer is None:
            raise RuntimeError("a step has neither an answer nor a failure")
        return self.answer
