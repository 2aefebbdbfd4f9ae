"""Times at which a training saves, and who is told of it."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core.checkpoint import latest_checkpoint
from .hooks import CheckpointSaverListener, RunningModel
from .saving import OwnCheckpoints
from .timers import SecondOrStepTimer

if TYPE_CHECKING:
    from .run_config import RunConfig

log = logging.getLogger(__name__)

_LOOK_S = 0.25  # for checkpoints that the job writes


def timer_of(config: "RunConfig") -> SecondOrStepTimer:
    """Make the timer by which a training of this configuration saves."""
    return SecondOrStepTimer(
        config.save_checkpoints_secs or None, config.save_checkpoints_steps or None
    )


class Checkpoints:
    """Times at which a training saves, and who is told.

    Args:
        model_dir: Directory of the checkpoints. Also an attribute.
        own: Writes them; None: the job does, or another task.
        timer: Timer that says when this process saves; it is due at the first step, which counts as
            saved.
        listeners: Are told, on the chief.
        session: Session of the training.
        save_elsewhere: Makes what writes into another directory; None: nothing does.
    """

    def __init__(
        self,
        model_dir: str,
        own: OwnCheckpoints | None,
        timer: SecondOrStepTimer,
        listeners: list[CheckpointSaverListener],
        session: RunningModel,
        save_elsewhere: Callable[[str], OwnCheckpoints] | None = None,
    ) -> None:
        self.model_dir, self._own = model_dir, own
        self._save_elsewhere = save_elsewhere
        self._listeners, self._session = listeners, session
        self._timer = timer if own is not None else SecondOrStepTimer(every_secs=_LOOK_S)
        self.saved_step = session.global_step

    def begin(self) -> None:
        """Begin before the first step."""
        self._timer.note(self._session.global_step)
        for listener in self._listeners:
            listener.begin()

    def use(self, timer: SecondOrStepTimer, listeners: list[CheckpointSaverListener]) -> None:
        """Let a hook say when to save from the first step on, and who else is told.

        A job that saves by itself does so when it was started to.
        """
        if self._own is not None:
            self._timer = timer
            timer.note(self.saved_step)
        if self._session.is_chief:
            self._listeners += listeners
            for listener in listeners:
                listener.begin()

    def elsewhere(
        self, directory: str, timer: SecondOrStepTimer, listeners: list[CheckpointSaverListener]
    ) -> "Checkpoints | None":
        """Make checkpoints in another directory as well; None: this task writes none.

        Raises:
            StorageError: It cannot be written.
        """
        if self._save_elsewhere is None or not self._session.is_chief:
            return None
        own = self._save_elsewhere(directory)
        own.prepare()
        other = Checkpoints(directory, own, timer, listeners, self._session)
        other.saved_step = self.saved_step
        timer.note(self.saved_step)
        for listener in listeners:
            listener.begin()
        return other

    def after_step(self, step: int) -> None:
        """Save if it is time, or look whether the job has saved."""
        if not self._timer.is_due(step):
            return
        self._timer.note(step)
        if self._own is not None:
            self._save(step)
        elif self._listeners:
            newest = latest_checkpoint(self.model_dir)
            if newest is not None and newest.global_step > self.saved_step:
                self._tell(newest.global_step, before=True)

    def end(self, step: int) -> None:
        """Save what was not saved yet."""
        if self._own is not None and step > self.saved_step:
            self._save(step)
        for listener in self._listeners:
            listener.end(self._session, step)

    def _save(self, step: int) -> None:
        for listener in self._listeners:
            listener.before_save(self._session, step)
        assert self._own is not None  # noqa: S101 - the callers look
        self._own.save(step)
        self._tell(step, before=False)

    def _tell(self, step: int, *, before: bool) -> None:
        self.saved_step = step
        for listener in self._listeners:
            if before:
                listener.before_save(self._session, step)
            if listener.after_save(self._session, step):
                log.info("a listener of checkpoints has asked for the end of the training")
                self._session.request_stop()
