"""Checkpoints that a program saves when one of its machines is about to be taken away.

As ``tf.distribute.experimental.PreemptionCheckpointHandler``. Workers in sync must save after the
same step, so all have to know of a notice that one has heard. They agree in looks: a small
all-reduce at calls that all of them count, about twice a second, of which each says when the next
one is. A look decides by what all workers say, so all of them save at the same call.
"""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from ...cluster.resolvers.resolver import ClusterResolver
from ...cluster.spec import ps_of
from ...core.errors import JobStoppedError
from ...core.exit_codes import ExitCode
from ...core.process.threads import new_thread
from ...distribute.checkpoint_manager import CheckpointManager
from ...distribute.object_checkpoint import ObjectCheckpoint

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_LOOK_EVERY_S = 0.5
_MOST_CALLS = 200  # until the next look: steps may become slow
_POLL_S = 1.0  # of a watcher, as TensorFlow's
_MARGIN, _LEAST_MARGIN_S = 0.25, 5.0  # of the grace period, for the save and the end
_COUNTER = "preemption_run_calls"  # among the objects of the checkpoint


@dataclass(frozen=True, slots=True)
class TerminationConfig:
    """Notice that a program's machine is about to be taken away, and what it does then.

    As ``tf.distribute.experimental.TerminationConfig``.

    Attributes:
        termination_watcher_fn: Called once a second, in a thread: whether the machine is about to
            be taken away. None: SIGTERM says so.
        exit_fn: Called on every worker when the checkpoint is written. None: the task leaves as it
            does on SIGTERM, with exit code 143, which asks for a restart (TensorFlow: 42).
        grace_period: Time from the notice until the machine is gone; training goes on for three
            quarters of it, and until 5 seconds are left at most. None or 0: the checkpoint is saved
            at once. Unit: seconds.
        save_fn: Saves the checkpoint, with the arguments of
            :meth:`PreemptionCheckpointHandler.save_checkpoint_if_preempted`; called on every
            worker. None: the checkpoint manager's ``save``.
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], object] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., object] | None = None


def is_due(noticed: float | None, grace_s: float, now: float) -> bool:
    """Return whether a checkpoint is to be saved now.

    Args:
        noticed: Time of the notice; None: there is none.
        grace_s: Time from the notice until the machine is gone. Unit: seconds.
        now: The current time.
    """
    if noticed is None:
        return False
    return now - noticed >= grace_s - max(_LEAST_MARGIN_S, _MARGIN * grace_s)


class CallLooks:
    """The calls at which all workers look for notices: the same ones on each."""

    def __init__(self) -> None:
        self._calls = 0
        self._next, self._interval = 1, 1
        self._looked: float | None = None

    def begin_call(self) -> bool:
        """Count a call; returns whether it is one at which all look."""
        self._calls += 1
        return self._calls >= self._next

    def suggest(self, now: float) -> int:
        """Say after how many calls this worker would look again."""
        looked, self._looked = self._looked, now
        if looked is None:
            return 1
        call_s = max(1e-6, (now - looked) / self._interval)
        return max(1, min(_MOST_CALLS, 2 * self._interval, int(_LOOK_EVERY_S / call_s)))

    def agree(self, interval: int) -> None:
        """Look again after so many calls, as all workers do."""
        self._interval, self._next = interval, self._calls + interval


class _RunCalls:
    """The number of calls of ``run``, kept in the checkpoint."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        """Return the number, for a checkpoint."""
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from a checkpoint's number."""
        self.count = int(state["count"])


class PreemptionCheckpointHandler:
    """Saves a checkpoint when a machine of the program is about to be taken away, and leaves.

    As ``tf.distribute.experimental.PreemptionCheckpointHandler``. In sync every worker saves after
    the same step, whichever of them heard the notice. Made in the main thread, before training; it
    restores the newest checkpoint.

    ::

        checkpoint = rw.train.Checkpoint(model=variables)
        handler = rw.distribute.experimental.PreemptionCheckpointHandler(
            resolver, checkpoint, "runs/preempted"
        )
        for step in range(handler.total_run_calls, 1000):
            handler.run(train_step, next(batches))

    Args:
        cluster_resolver: Cluster of the program; None: not looked at.
        checkpoint_or_checkpoint_manager: ``rw.train.Checkpoint`` or ``rw.train.CheckpointManager``.
        checkpoint_dir: Folder of the checkpoint, with a Checkpoint; not with a manager.
        termination_config: Watcher, grace period and end; None: SIGTERM, and at once.

    Raises:
        NotImplementedError: The cluster has ps, as in TensorFlow: their job saves by itself, and
            goes on without a worker that is taken away.
        ValueError: A Checkpoint without a folder, or a manager with one; or SIGTERM is to be
            caught outside the main thread.
        TypeError: It is neither of them.
        CheckpointError: The newest checkpoint is damaged.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None,
        checkpoint_or_checkpoint_manager: ObjectCheckpoint | CheckpointManager,
        checkpoint_dir: str | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        if cluster_resolver is not None and ps_of(cluster_resolver.cluster_spec()):
            raise NotImplementedError(
                "PreemptionCheckpointHandler is for workers in sync. A job with ps saves when its "
                "chief is asked to stop, and goes on without a worker that is taken away: "
                "docs/preemption.md"
            )
        self._manager = _manager_of(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._config = termination_config or TerminationConfig()
        self._run_calls = _RunCalls()
        setattr(self._manager.checkpoint, _COUNTER, self._run_calls)
        self._looks = CallLooks()
        self._noticed: float | None = None
        self._has_saved = False
        self._before: Any = signal.getsignal(signal.SIGTERM)
        self._manager.restore_or_initialize()
        self._watch()

    @property
    def total_run_calls(self) -> int:
        """Number of calls of :meth:`run` so far, those before the restored checkpoint included."""
        return self._run_calls.count

    def run(
        self, distributed_train_function: Callable[..., _Result], *args: Any, **kwargs: Any
    ) -> _Result:
        """Save and leave if a machine is about to be taken away; else call the function.

        Every worker must make the same calls.

        Args:
            distributed_train_function: Function that makes a step, or some.
            args: Arguments of the function.
            kwargs: Arguments of the function, by name.
        """
        self.save_checkpoint_if_preempted()
        result = distributed_train_function(*args, **kwargs)
        self._run_calls.count += 1
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save and leave if a machine is about to be taken away; for programs without :meth:`run`.

        Every worker must call it equally often, after the same steps.

        Args:
            args: Arguments of ``save_fn``, or of the manager's ``save``.
            kwargs: Arguments of that, by name.
        """
        if self._has_saved or not self._looks.begin_call():
            return
        checkpoint, now = self._manager.checkpoint, time.monotonic()
        grace_s = self._config.grace_period or 0.0
        if checkpoint.any_worker(is_due(self._noticed, grace_s, now)):
            self._has_saved = True
            (self._config.save_fn or self._manager.save)(*args, **kwargs)
            (self._config.exit_fn or self._leave)()
            return
        self._looks.agree(checkpoint.agreed(self._looks.suggest(now)))

    @contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Save and leave at the end of this context if a machine is about to be taken away."""
        yield
        self.save_checkpoint_if_preempted()

    # -- notices and the end -----------------------------------------------------------------

    def _watch(self) -> None:
        if (watcher := self._config.termination_watcher_fn) is not None:
            new_thread("preemption", lambda: self._poll(watcher), failed=self._has_failed).start()
        elif threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_signal)
        else:
            raise ValueError(
                "signals reach the main thread alone: make PreemptionCheckpointHandler there, or "
                "give TerminationConfig a termination_watcher_fn"
            )

    def _poll(self, watcher: Callable[[], bool]) -> None:
        while not watcher():
            threading.Event().wait(_POLL_S)
        self._noticed = time.monotonic()

    def _has_failed(self, error: BaseException) -> None:
        self._noticed = time.monotonic()  # a watcher that cannot look any more is a reason to save
        log.error("termination_watcher_fn failed, so a checkpoint is saved: %r", error)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if self._noticed is None:
            self._noticed = time.monotonic()
        elif callable(self._before):  # whoever signals twice does not want to wait
            self._before(signum, frame)

    def _leave(self) -> None:
        """Leave as a task does on SIGTERM: its job stops in order, and asks for a restart."""
        if not callable(self._before):
            sys.exit(int(ExitCode.DRAINED))
        self._before(signal.SIGTERM, None)
        raise JobStoppedError("a machine is about to be taken away; the checkpoint is saved")


def _manager_of(
    given: ObjectCheckpoint | CheckpointManager, folder: str | None
) -> CheckpointManager:
    if isinstance(given, CheckpointManager):
        if folder is not None:
            raise ValueError("checkpoint_dir is the manager's own; give one of the two")
        return given
    if not isinstance(given, ObjectCheckpoint):
        raise TypeError(
            f"a rw.train.Checkpoint or rw.train.CheckpointManager is needed, got "
            f"{type(given).__name__}"
        )
    if folder is None:
        raise ValueError("with a Checkpoint, checkpoint_dir says where it is saved")
    return CheckpointManager(given, folder, max_to_keep=1)
