"""ServerStep: what a worker's step reads from the servers, and what it pushes to them.

A step begins with the values of one pull and ends with one push of everything its optimizers gave
and all that it assigned, and the same round trip brings the values for the next step. What needs a
round trip of its own goes out early: a variable that no earlier step read, or that this step has
added to, large assignments, a second update of one variable.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ...client.ps.fan_out import PendingStep, StepResult
from ...client.ps.parameter_session import ParameterSession
from ...client.ps.step import Advance, Step, Write, unpacked
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.process.frameworks import note_shared_step
from ...core.wire.steps import Operation
from ..base.reductions import clip_scale
from ..runtime import ClusterRuntime
from .finite_updates import FiniteUpdates
from .step_writes import DelayedRows, LostWrites, StepWrites, values_of

_NO_VALUES: Mapping[str, Array | None] = {}


def not_advancing() -> Advance | None:
    """Return None: a push advances no row."""
    return None


class ServerStepCount:
    """The count of a worker's steps by the servers.

    Attributes:
        is_counted: Whether they have counted the step that is under way.
    """

    def __init__(self) -> None:
        self.is_counted = False
        self._is_part = False
        self._joins = False

    def begin(self) -> None:
        """Begin a step, which is to be counted, unless it is a part of one that is."""
        self.is_counted = self._joins or (self.is_counted and self._is_part)

    @property
    def increment(self) -> int:
        """Number that the next push of the step adds to the global step."""
        return 0 if self.is_counted else 1

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Count all that is pushed meanwhile, by steps and between them, as one step."""
        self.is_counted, self._is_part = False, True
        try:
            yield
        finally:
            self.is_counted = self._is_part = False

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Count pushes in this block as part of the previous step."""
        self._joins = True
        try:
            yield
        finally:
            self._joins = False


class ServerStep:
    """Steps of one worker, one after the other. Not thread-safe: its user holds a lock.

    Args:
        runtime: Runtime of this task.
        prefetch: Do not wait for a step's push: the next step begins with the values that are
            there.

    Attributes:
        count: Whether the servers have counted the step.
        delayed: Gradients of rows that wait for a later step's push.
        advance: Called for each push of the program: the rows that it advances; None: it advances
            none, and may be made again by whoever makes the step again.
    """

    def __init__(self, runtime: ClusterRuntime, *, prefetch: bool) -> None:
        self._runtime = runtime
        self._active = False
        # What this step reads: values of its pull, and what was read or written since.
        self._pulled: Mapping[str, Array] = {}
        self._fresh: dict[str, Array] = {}
        self._values_step = 0  # the global step they are of
        self._reads: dict[str, None] = {}  # in order
        self._writes = StepWrites()
        self.assign_in_step = self._writes.assign  # a step may have hundreds of them
        self.count = ServerStepCount()
        self._finite = FiniteUpdates(runtime)
        self.lost_writes = LostWrites(runtime)
        self.delayed = DelayedRows()
        self.advance = not_advancing
        self._prefetch = prefetch
        self._under_way: PendingStep | None = None
        self._waiter: ThreadPoolExecutor | None = None

    @property
    def _session(self) -> ParameterSession:
        return self._runtime.session

    @property
    def is_active(self) -> bool:
        """Whether a step has begun and not ended."""
        return self._active

    def begin(self, *, only_replica: bool = False) -> None:
        """Begin a step: pull what the last one read, unless its push has brought it.

        Args:
            only_replica: All of the step runs in this thread.
        """
        if not self._pulled and self._reads:
            self._pulled = self._pull(list(self._reads)).values
        self._reads = {}
        self.count.begin()
        self._active = True
        self._writes.thread = threading.get_ident() if only_replica else 0

    def end(self, *, push: bool) -> None:
        """End the step; ``push`` False: it failed, and nothing of it is pushed."""
        self._active, self._writes.thread = False, 0
        read = {name: self._known(name) for name in self._reads} if self._prefetch else {}
        self._forget()
        if self._writes.has_writes:
            if push:
                self._flush(list(self._reads), read)
            else:
                self._writes.take(goes_on=False)
        self.count.begin()

    def read(self, name: str, small: Callable[[], Sequence[str]]) -> Array:
        """Read a variable's value: this step's, or outside of steps the current one.

        Args:
            name: The variable.
            small: Names of variables to fetch along: the first step does not know yet what it will
                read.
        """
        if not self._active:
            return self._pull([name]).values[name]
        self._reads[name] = None
        value = self._known(name)
        if value is None:
            if name in self._writes.unsettled:
                self._settle()
            else:
                unknown = [
                    other
                    for other in small()
                    if self._known(other) is None and other not in self._writes.unsettled
                ]
                self._fresh |= self._pull(list(dict.fromkeys([name, *unknown]))).values
            value = self._fresh[name]
        return value

    def read_all(self, names: Sequence[str], *, arrived: bool) -> list[Array]:
        """Read the values of several variables outside of steps, by one round trip.

        Args:
            names: Names of the variables.
            arrived: Accept values that came with the last step's push, without a round trip.
        """
        pulled = self._pulled
        if not (arrived and all(name in pulled for name in names)):
            pulled = self._pull(names).values
            if not self._active and arrived:
                self._pulled = pulled  # the next step begins with them
        return [pulled[name] for name in names]

    def will_read(self, names: Sequence[str]) -> None:
        """Have this step's push bring these, as if the step had read them."""
        if self._active:
            self._reads |= dict.fromkeys(names)

    def read_applied(self, names: Sequence[str]) -> list[Array]:
        """Send what a step has collected, and read what came of it."""
        self._flush(names)
        missing = [name for name in names if name not in self._fresh]
        if missing:  # nothing was sent
            self._fresh |= self._pull(missing).values
        for name in names:
            self._writes.unsettled.pop(name, None)
        return [self._fresh[name] for name in names]

    def settle(self, name: str) -> None:
        """Make sure that the servers have what this step wrote to a variable."""
        if self._writes.changes(name):
            self._settle()

    def _settle(self) -> None:
        """Send the writes that wait, and fetch what came of them."""
        unsettled, self._writes.unsettled = list(self._writes.unsettled), {}
        if self._writes.changes_values:
            self._flush(unsettled)
        else:
            self._fresh |= self._pull(unsettled).values

    def write(
        self, name: str, operation: Operation, value: Array | IndexedSlices, *, at_once: bool
    ) -> None:
        """Assign or add.

        Args:
            name: Name of the variable.
            operation: Whether to assign or to add.
            value: An array of the variable's shape and dtype, or some of its rows.
            at_once: False: inside a step it travels with the step's push.
        """
        if at_once or not self._active:
            self._arrived()  # values under way lack this: no step begins with them
            write = Write(operation, {name: value})
            self._session.step(Step([write], advance=self.advance()))
            if not self._active:
                self._forget()
            return
        waits, value = self._writes.write(name, operation, value)
        if waits and operation is Operation.ASSIGN and not isinstance(value, IndexedSlices):
            value.setflags(write=False)  # as all that a step reads
            self._fresh[name] = value
            self._writes.unsettled.pop(name, None)
        else:
            self._fresh.pop(name, None)
            self._writes.unsettled[name] = None
        if not waits:
            self._flush([])

    def advance_with(self, advance: Callable[[], Advance | None] | None) -> None:
        """Have each push advance the rows that ``advance`` returns for it; None: none."""
        self.push_delayed()
        self.advance = advance or not_advancing

    def wait(self) -> None:
        """Wait until the push that is under way, if there is one, is applied."""
        self._arrived()

    def push_delayed(self) -> None:
        """Push the gradients that wait for a later step's push."""
        self._arrived()  # if it raises, what waits goes on waiting
        with self.delayed.everything() as writes:
            pending = self._session.begin(Step(writes)) if writes else None
        if pending is not None:
            pending.result()

    def finish(self) -> None:
        """Wait until every push is applied; the next step pulls anew."""
        self.push_delayed()
        self._arrived()
        self._session.finish()
        self._forget()

    def add(self, gradients: Sequence[Write]) -> None:
        """Put gradients into the step's push; outside of steps, push them now.

        Args:
            gradients: Each is pushed as a whole, in order.
        """
        if not self._active:
            self.count.begin()
        for write in gradients:
            if not self._writes.fits(write):
                self._flush([])
            if write.values:
                self._writes.add(write)
        if not self._active:
            self._flush([])

    @property
    def is_free(self) -> bool:
        """Whether a step may be made beside the session: it is not used, and changes nothing."""
        plain = self.advance is not_advancing and self._session.is_plain
        return plain and not (self._prefetch or self._active)

    def increment_alone(self) -> int:
        """Return what a step beside the session adds to the global step."""
        self.count.begin()
        return self.count.increment

    def made_alone(self, global_step: int, increment: int) -> None:
        """Count a step of finite updates that was made without the session.

        Args:
            global_step: The global step after it.
            increment: Result of :meth:`increment_alone`.
        """
        self.count.is_counted = True
        self.count.begin()
        self._forget()
        self._finite.note_finite()
        self._session.rows.note_changed()
        self._session.global_step = self._values_step = global_step
        progress = self._runtime.progress
        progress.steps += increment
        progress.pushes += 1
        progress.staleness.append(0)
        progress.clock.step_ended()
        note_shared_step()

    def add_writes(self, writes: Sequence[Write]) -> None:
        """Put writes into the step's push, beside its gradients; outside of steps at once.

        They wait for nothing and hold nothing up: unlike after other writes, the next step may
        begin without them (``prefetch``). A step that is refused writes nothing.

        Args:
            writes: Writes to moving averages: ASSIGN_ADD, with the decay of what is there; and to
                growing tables: APPLY, gradients of rows.
        """
        self._writes.beside += writes
        if not self._active:
            self.count.is_counted = False
            self._flush([])

    def add_last(self, writes: Sequence[Write]) -> None:
        """Put writes into the push that ends this step, which reads nothing any more."""
        for write in writes:
            self._writes.add(write)

    def _known(self, name: str) -> Array | None:
        assigned = self._writes.assigned.get(name)
        if assigned is not None:
            return unpacked(assigned, self._session.variables.definition(name))
        value = self._fresh.get(name)
        if value is not None or name in self._writes.unsettled:
            return value
        return self._pulled.get(name)

    def _forget(self) -> None:
        self._pulled, self._fresh, self._writes.unsettled = {}, {}, {}

    def _pull(self, names: Sequence[str]) -> StepResult:
        result = self._session.step(Step(reads=names))
        self._values_step = result.global_step
        return result

    def _flush(self, pulls: Sequence[str], read: Mapping[str, Array | None] = _NO_VALUES) -> None:
        """Push what was collected.

        Args:
            pulls: Names of variables to pull for the next step.
            read: Values that this step read; the next one may begin with them.
        """
        writes, beside = self._take_writes()
        has_gradients = bool(writes) and writes[0].operation is Operation.APPLY
        gradients, others = writes[:has_gradients], writes[has_gradients:]
        if others:
            self.lost_writes.note(others)
        # Once per step of this worker, however many pushes it takes.
        increment = self.count.increment
        progress = self._runtime.progress
        updates = values_of([*gradients, *beside])
        if self._finite.refuses(updates, self._session.global_step):
            if not others:
                return
            gradients, beside = [], []
        self.count.is_counted = True
        progress.steps += increment
        arrived = self._arrived()
        with self._due(beside, is_new_step=bool(increment)) as due:
            pending = self._session.begin(
                Step(
                    [*gradients, *others, *due],
                    pulls,
                    increment,
                    _scale(gradients),
                    self._values_step or None,
                    detached=self._prefetch,
                    advance=self.advance(),
                )
            )
        progress.pushes += 1
        note_shared_step()
        # A step that follows a write begins with it.
        if self._prefetch and not self._active and not others:
            self._wait_for(pending)
            if arrived is None and read:
                # Nothing was under way: the next step reads once more what this one read.
                self._pulled = {name: value for name, value in read.items() if value is not None}
            elif pulls and (arrived is None or not all(name in arrived.values for name in pulls)):
                arrived = self._arrived()
        else:
            arrived = pending.result()
            progress.staleness.append(arrived.staleness)
        if arrived is not None:
            self._values_step = arrived.global_step
            if not self._active:
                self._pulled = arrived.values
            elif pulls:  # otherwise the step goes on reading the values it began with
                self._fresh |= arrived.values
        if increment:
            progress.clock.step_ended()

    def _due(
        self, beside: list[Write], *, is_new_step: bool
    ) -> AbstractContextManager[list[Write]]:
        """Choose the gradients of rows that travel now."""
        # A closure may be run again elsewhere, with its pushes; so may a step that advances a row.
        if self._session.pushes_for_closure or self.advance is not not_advancing:
            return nullcontext(beside)
        return self.delayed.due(beside, is_new_step=is_new_step)

    def _take_writes(self) -> tuple[list[Write], list[Write]]:
        """Take what was written since the last push; the step goes on reading it."""
        writes, assigned, beside = self._writes.take(goes_on=self._active)
        if self._active:
            for name, value in assigned.items():
                self._fresh[name] = unpacked(value, self._session.variables.definition(name))
        return writes, beside

    def _arrived(self) -> StepResult | None:
        """Wait for the exchange under way; None if there is none."""
        pending, self._under_way = self._under_way, None
        if pending is None:
            return None
        result = pending.result()
        self._runtime.progress.staleness.append(result.staleness)
        return result

    def _wait_for(self, pending: PendingStep) -> None:
        """Read the answer while the program goes on."""
        self._under_way = pending
        if self._waiter is None:
            self._waiter = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._waiter.submit(pending.wait)


def _scale(gradients: Sequence[Write]) -> float:
    """Compute what scales the gradients of a push."""
    if not gradients or gradients[0].clip is None:
        return 1.0
    return clip_scale(list(gradients[0].values.values()), gradients[0].clip)
