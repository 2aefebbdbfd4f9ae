"""The evaluator's task: it reads checkpoints, and works with a chief or without one."""

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

from ..core.errors import RopewalkError
from ..core.process.threads import new_thread, nobody_waits
from ..core.report import TaskEnd
from ..core.task import Phase
from .job_task import JobTask
from .process.program import Ending

if TYPE_CHECKING:
    from .lead.leading_job import IdentifiedJob

log = logging.getLogger(__name__)


class EvaluatorTask(JobTask):
    """An evaluator, which no task waits for.

    If TF_CONFIG names the chief it registers there: the status shows it, and it learns of a failed
    job.
    """

    def _join(self, chief_address: str, job: "IdentifiedJob | None" = None) -> str:  # noqa: ARG002
        """Register in the background, without waiting."""
        join = partial(self._register, chief_address)
        new_thread("evaluator-join", join, failed=nobody_waits).start()
        return ""

    def _register(self, chief_address: str) -> None:
        _, membership = self._client_of(chief_address, "")
        with contextlib.suppress(RopewalkError):
            membership.join(still_wanted=self.check)
            self._membership = membership

    def _lose(self, error: RopewalkError) -> None:
        # The final checkpoint is to be evaluated even if its chief is gone by then.
        log.debug("%s", error)

    def check(self) -> None:
        """Raise if the evaluator was asked to end, or the job failed or was stopped."""
        if self._pending is not None:
            raise self._pending
        membership = self._membership
        if membership is not None and membership.phase in (Phase.STOPPED, Phase.FAILED):
            membership.check()

    def finish(self, ending: Ending) -> int:
        """Report to the chief unless the job is over; returns the exit code."""
        membership = self._membership
        if membership is not None and not membership.phase.is_over:
            membership.finish(TaskEnd(ending.outcome, ending.message))
        return ending.code
