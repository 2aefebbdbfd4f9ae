"""The changes of a store, announced as they happen to whoever has subscribed.

A store knows none of its subscribers: what keeps values of one moment, or has other ps follow,
hears here that a block is about to change, has changed, that a push is complete. It is called in
the thread of the change and under its locks, so that it can have the change wait, or refuse it.
Without subscribers a change looks at one empty tuple.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...core.arrays.dtypes import Array
from ...core.rules.update_rules import UpdateRule
from ...core.task import Incarnation
from ...core.wire.steps import Advanced, PushResult
from ...engine.push_target import PushTarget, StepInfo, UpdatePart
from ...net.shared_memory import SharedSegment
from .layout import NOTHING, Layout
from .new_blocks import Held
from .served_trace import ServedStep


@dataclass(frozen=True, slots=True)
class Push(StepInfo):
    """A push that was checked; its values are fetched while it is applied.

    Attributes:
        layout: Places of the ps that it changes.
        rows: Rows or elements of each numbered range, strictly ascending int64; or keys.
        step_increment: Added to the global step.
        changed: Id of a bound update rule -> the one to run instead.
        segment: Shared memory that the values are in, if they are.
        advance: Rows that the push advances, if its layout has a gate.
        trace: Measures the push, of a sampled step; None: it is not sampled.
    """

    layout: Layout = NOTHING
    rows: tuple[Array, ...] = ()
    step_increment: int = 0
    changed: Mapping[int, UpdateRule] = field(default_factory=dict)
    segment: SharedSegment | None = None
    advance: Advanced | None = None
    trace: ServedStep | None = None


@dataclass(slots=True)
class BlockChange:
    """A change of a block by a push. The block is locked while subscribers hear of it.

    Attributes:
        block: The block.
        push: The push that changes it.
        info: Step of the push, with the global step as the store resolved it.
        parts: Parts of the push that change it.
        is_last: Whether no other block follows: the push is complete with this one.
        result: Result of the push, if a subscriber had it counted: see ``Store.completing``.
    """

    block: PushTarget
    push: Push
    info: StepInfo
    parts: tuple[UpdatePart, ...]
    is_last: bool
    result: PushResult | None = None


class Subscriber:
    """Hears what happens to a store. Every method does nothing unless a subclass replaces it."""

    def arrives(self, who: Incarnation) -> None:
        """Note that a push of a worker is to be applied. May wait."""

    def before(self, change: BlockChange) -> None:
        """Note that a block is about to change."""

    def done(self, change: BlockChange) -> None:
        """Note that a block has changed."""

    def failed(self, change: BlockChange, error: BaseException) -> None:
        """Note that a change failed; the block may have changed in part."""

    def complete(self, push: Push) -> None:
        """Note that a push is complete, unless it was counted with its last block.

        Called under the lock of the marks, as the next two are.
        """

    def registered(self, who: Incarnation) -> None:
        """Note that a process of a task has opened a session."""

    def step_raised(self, global_step: int) -> None:
        """Note that the global step is at least this, by a restored checkpoint."""

    def bound(self, held: Held, rule: UpdateRule, who: Incarnation, *, has_slots: bool) -> None:
        """Note that a shard has got its update rule; its block is locked.

        Args:
            held: The shard.
            rule: Update rule.
            who: Task that has given the rule.
            has_slots: Whether its slots have values of a checkpoint.
        """

    def defined(self, blocks: Sequence[PushTarget], held: Sequence[Held]) -> None:
        """Note new blocks with their first values, which nobody uses yet."""

    def has_all(self, blocks: Sequence[PushTarget]) -> bool:  # noqa: ARG002 - for a subclass
        """Return whether new blocks may be shown, or :meth:`defined` is to be called again."""
        return True

    def confirm(self) -> None:
        """Note that an answer about a change is to leave. May wait, or refuse it."""

    def confirm_read(self) -> None:
        """Note that an answer that has changed nothing is to leave. May wait, or refuse it."""

    def interrupted(self, why: str) -> None:
        """Note that what was kept or noted of the store holds no longer: its lead ends or begins
        anew.

        Called for every part of the store, whether it hears of changes or not.
        """


class ChangeStream:
    """The subscribers of one store. Thread-safe.

    Attributes:
        subscribers: Replaced as a whole, so that no lock is needed to see that there is none.
    """

    def __init__(self) -> None:
        self.subscribers: tuple[Subscriber, ...] = ()
        self._lock = threading.Lock()

    def keep(self, subscriber: Subscriber, wanted: Callable[[], bool]) -> None:
        """Have a subscriber hear of changes from now on, or not any more.

        Args:
            subscriber: The subscriber.
            wanted: Whether it is to hear of them. Asked under the lock: of two threads that change
                the answer, the later one sees both changes.
        """
        with self._lock:
            others = tuple(each for each in self.subscribers if each is not subscriber)
            self.subscribers = (*others, subscriber) if wanted() else others
