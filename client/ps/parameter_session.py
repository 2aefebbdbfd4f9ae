"""A parameter session: all the variables of a program, wherever their shards are.

Everything a step needs from one ps travels in one round trip, and the ps are asked in parallel.
What a set of variables means in bytes is worked out once and kept (``plan_cache.py``); a step then
only cuts, sends and receives (``fan_out.py``).
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ...cluster.placement import PartitionFunction, Placement, greedy_by_bytes
from ...core.arrays.dtypes import Array, DType
from ...core.errors import RopewalkError
from ...core.rules.definitions import VariableDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.step_times import CHECKPOINT, PULL, PUSH, StepClock, clock_here
from ...core.step_trace import StepTrace
from ...core.task import Incarnation
from ...core.wire.closure_pushes import ClosureRun
from ...core.wire.steps import NO_TARGET, Advanced, PullTarget, StepRequest, WireFormat
from .definer import Definer
from .error_feedback import ErrorFeedback
from .fan_out import FanOut, PendingStep, SentRequest, StepResult
from .locating import connect_all
from .plan_cache import NO_PULL, PlanCache
from .pull_plans import PullPlan
from .push_plans import PsPayload
from .row_lookups import RowLookups
from .step import PsPeer, Step

log = logging.getLogger(__name__)


class ParameterSession:
    """Push, pull and define variables on all ps. Thread-safe; one step at a time.

    Args:
        peers: Peers, one per ps, by index. The first one owns the global step.
        who: Incarnation of the calling task.
        settings: Deadlines and bounds.

    Attributes:
        who: The task.
        peers: The ps, by index.
        counters: Payload moved.
        variables: Definitions of the variables, and the places of their shards.
        rows: Looks up rows.
        global_step: The last one that this task has seen.
    """

    def __init__(self, peers: Sequence[PsPeer], who: Incarnation, settings: Settings) -> None:
        self.who = who
        self.peers = tuple(peers)
        self._settings = settings
        self.lock = threading.RLock()
        self._closed = threading.Event()
        self._fan_out = FanOut(peers, who)
        self.counters = self._fan_out.counters
        self.variables = Definer(peers, who, settings, self.step, self._closed)
        self._plans = PlanCache(self.peers, self.variables.place)
        self._feedback: ErrorFeedback | None = None
        self._under_way: PendingStep | None = None
        self._unreported: RopewalkError | None = None
        self.rows = RowLookups(self, who, self.variables.place, self._plans)
        self.global_step = 0
        self._in_cut = False  # the next push is held until the other workers have marked, too

    # -- life --------------------------------------------------------------------------------

    def connect(
        self,
        *,
        still_wanted: Callable[[], None] = lambda: None,
        on_wait: Callable[[list[str]], None] | None = None,
    ) -> None:
        """Open a session with every ps, waiting for late ones until the join timeout.

        Args:
            still_wanted: Called between attempts; raises to give up.
            on_wait: Told after every attempt which peers are missing.

        Raises:
            JoinTimeoutError: Names the ps that did not answer, and the last reason.
        """
        connect_all(
            self.peers,
            self.who,
            self._settings.join_timeout_s,
            self._closed,
            still_wanted=still_wanted,
            on_wait=on_wait,
        )

    def close(self) -> None:
        """End the sessions."""
        self._closed.set()
        self._fan_out.close()

    def abort(self, error: RopewalkError) -> None:
        """Make a running and every later call raise ``error``. From any thread."""
        self._fan_out.abort(error)

    @property
    def transports(self) -> tuple[str, ...]:
        """Description of each ps's transport, for the status."""
        return tuple(f"{p.task.short} {p.description}" for p in self.peers)

    @property
    def is_plain(self) -> bool:
        """Whether a push now is no closure's, and changes no gradient on the way.

        Raises:
            RopewalkError: The session is broken.
        """
        self._fan_out.raise_if_broken()
        return self._fan_out.closure is None and self._feedback is None

    @property
    def pushes_for_closure(self) -> bool:
        """Whether a push now is a closure's."""
        return self._fan_out.closure is not None

    @property
    def wire_format(self) -> WireFormat:
        """Format in which values travel over the network."""
        return self._plans.wire_format

    @wire_format.setter
    def wire_format(self, wire_format: WireFormat) -> None:
        with self.lock:
            self.wait()
            self._plans.wire_format = wire_format
            share = wire_format.top_k
            self._feedback = ErrorFeedback(share) if share is not None else None

    # -- definitions -------------------------------------------------------------------------

    def define(
        self,
        definitions: Sequence[VariableDefinition],
        initial: Mapping[str, Array],
        *,
        create: bool,
        partitioner: PartitionFunction | None = None,
        placement: Placement = greedy_by_bytes,
        restore_from: str = "",
        still_wanted: Callable[[], None] = lambda: None,
        chief_has_ended: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Make variables usable: create them (the chief), or wait until the chief has.

        Where shards are is decided once, by the task that creates them; the others ask.

        Args:
            definitions: Definitions of the variables, in the order of creation.
            initial: Values of variables without an initializer.
            create: Whether this task creates what does not exist.
            partitioner: Function that says into how many parts a variable is cut.
            placement: Function that chooses a ps for each shard.
            restore_from: Name of the checkpoint to take values from, where it has them.
            still_wanted: Called while waiting; raises to give up.
            chief_has_ended: Asked now and then while waiting: whether the chief's program is over.

        Returns:
            Names of the variables whose values came from the checkpoint.

        Raises:
            DefinitionMismatchError: Another task defined one differently, and is named; or the
                chief has ended without one.
            JoinTimeoutError: The chief did not create them in time.
        """

        def check() -> None:
            still_wanted()
            self._fan_out.raise_if_broken()

        with self.lock:
            self._after_last_step()
            restored: list[str] = []
            if create:
                restored = self.variables.create(
                    definitions, initial, partitioner, placement, restore_from
                )
            self.variables.wait_for(definitions, check, chief_has_ended)
            # A program may ask for the global step before its first step.
            self.exchange({0: StepRequest()}, {})
            return restored

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule to variables, on every ps that holds a part. Idempotent.

        Raises:
            DefinitionMismatchError: Another task bound a different rule; names both.
        """
        with self.lock:
            self._after_last_step()
            self.variables.bind(variables, rule)

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Let no step begin meanwhile, so that the peers can be asked for something else."""
        with self.lock:
            self._after_last_step()
            yield

    # -- steps -------------------------------------------------------------------------------

    def step(self, step: Step) -> StepResult:
        """Write, then read, in one round trip per ps.

        Raises:
            ShapeMismatchError: A value is not of its variable's shape; nothing was sent.
            RefusedError: A ps refused; nothing was applied there.
            PeerLostError: A ps is gone.
        """
        return self.begin(step).result()

    def begin(self, step: Step) -> PendingStep:
        """Send a step and return; one is under way at a time. Errors: :meth:`step`."""
        clock = clock_here()
        began = clock.begin()
        with self.lock:
            self.wait()
            self._fan_out.raise_if_broken()
            writes, advance = step.writes, step.advance
            push_plan = self._plans.push_plan(writes, advance.variable if advance else "")
            pull_plan = self._plans.pull_plan(step.reads)
            if self._feedback is not None:
                self._feedback.forget()  # the choice of a push that was not even sent
            payloads: Mapping[int, PsPayload] = {}
            if push_plan is not None:
                payloads = push_plan.fill(
                    writes, self.who, self._feedback, self.rows.distinct, self._fan_out.pushes
                )
            self.rows.note_push(writes)
            seen_step = self.global_step if step.seen_step is None else step.seen_step
            buffer, targets = pull_plan.take_targets()
            requests: dict[int, StepRequest] = {}
            for ps, sequence in enumerate(self._fan_out.sequences):
                payload, pull = payloads.get(ps), pull_plan.layouts.get(ps)
                increment = step.increment if ps == 0 else 0
                if payload is None and pull is None and not increment:
                    continue
                requests[ps] = StepRequest(
                    sequence=sequence + 1 if payload or increment else 0,
                    push=push_plan.layouts[ps] if payload and push_plan else None,
                    pull=pull,
                    push_rows=payload.numbers if payload else (),
                    values=payload.buffers if payload else (),
                    global_step=seen_step,
                    step_increment=increment,
                    gradient_scale=step.gradient_scale,
                    hyperparameters=step.hyperparameters if payload else None,
                    has_previous=targets.get(ps, NO_TARGET).previous is not None,
                    detached=step.detached,
                    closure=self._fan_out.closure if payload or increment else None,
                    advance=Advanced(*advance[1:]) if payload and advance else None,
                )
            part = self._part_of(step)
            sent = self._send(requests, targets, pull_plan, clock, part)
            self._under_way = pending = PendingStep(self, sent, buffer, pull_plan, part)
            self.rows.show_push(writes, seen_step)
            clock.end(part, began)
            return pending

    def _part_of(self, step: Step) -> int:
        """Find the part of the program's step that an exchange is."""
        if not (step.writes or step.increment):
            return PULL
        is_held, self._in_cut = self._in_cut, False
        return CHECKPOINT if is_held else PUSH

    def _send(
        self,
        requests: Mapping[int, StepRequest],
        targets: Mapping[int, PullTarget],
        plan: PullPlan,
        clock: StepClock,
        part: int,
    ) -> dict[int, SentRequest]:
        try:
            if clock.trace is not None:
                return self._send_traced(requests, targets, clock.trace, part)
            return self._fan_out.send(requests, targets)
        except RopewalkError:
            plan.pool.forget()
            if self._feedback is not None:
                self._feedback.forget()
            raise

    def _send_traced(
        self,
        requests: Mapping[int, StepRequest],
        targets: Mapping[int, PullTarget],
        trace: StepTrace,
        part: int,
    ) -> dict[int, SentRequest]:
        """Send the requests of a sampled step; each exchange with a ps is a span."""
        places, began = {ps: trace.context.child() for ps in requests}, trace.now()
        told = {ps: replace(each, trace=places[ps].to_wire()) for ps, each in requests.items()}
        return {
            ps: each._replace(
                exchange=trace.exchange(
                    part, self.peers[ps].task.short, places[ps], each.exchange, began
                )
            )
            for ps, each in self._fan_out.send(told, targets).items()
        }

    def wait(self, pending: PendingStep | None = None) -> None:
        """Read the answer of the step under way, if there is one; ``pending``: if it is that one.

        What went wrong with it is raised by its :meth:`PendingStep.result`.
        """
        with self.lock:
            mine = self._under_way
            if mine is None or (pending is not None and mine is not pending):
                return
            self._under_way = None
            mine.plan.pool.forget()
            try:
                results, failure = self._fan_out.receive(mine.sent)
            except BaseException:  # the session has broken off; nobody may hear it where this is
                mine.failure = self._fan_out.broken
                raise
            if self._feedback is not None:
                self._feedback.sent(results.keys())
            if failure is not None or any(result.duplicate for result in results.values()):
                self.rows.forget_shown()
            if failure is not None:
                mine.failure = self._unreported = failure
                return
            if mine.buffer is not None:
                mine.plan.pool.keep(mine.buffer)
            step = max([self.global_step, *(result.global_step for result in results.values())])
            self.global_step = step
            staleness = max((result.staleness for result in results.values()), default=0)
            values = mine.plan.values(mine.buffer) if mine.buffer is not None else {}
            mine.answer = StepResult(values, step, staleness)
            mine.buffer, mine.sent = None, {}

    def mark_reported(self, failure: RopewalkError) -> None:
        """Mark a failure as already raised to the caller."""
        if self._unreported is failure:
            self._unreported = None

    def finish(self) -> None:
        """Wait for the last step.

        Raises:
            RopewalkError: What went wrong with it, unless it was raised before.
        """
        with self.lock:
            self.wait()
            failure, self._unreported = self._unreported, None
        if failure is not None:
            raise failure

    @contextmanager
    def in_closure(self, closure: ClosureRun) -> Iterator[None]:
        """Make pushes as those of a closure, so that another attempt at it does not repeat them.

        Raises:
            RopewalkError: What went wrong with the last push, unless it was raised before.
        """
        with self.lock:
            self.wait()
            self._fan_out.enter_closure(closure)
        try:
            yield
            self.finish()  # a closure is done when its pushes are applied
        finally:
            with self.lock:
                self.wait()
                self._fan_out.enter_closure(None)

    def is_free(self, timeout_s: float) -> bool:
        """Return whether the session becomes free: no call of another thread keeps it busy for
        longer. Unit: seconds.

        A step that is sent or received, or a definition that waits for the chief, does.
        """
        is_free = self.lock.acquire(timeout=timeout_s)
        if is_free:
            self.lock.release()
        return is_free

    def mark_cut(self, number: int) -> bool:
        """Tell all ps up to which push this task's are in a cut, between two of its steps.

        It needs no step of the program: another thread calls it while that computes. The next step
        begins once all ps have answered.

        Returns:
            Whether all ps were told in time; else the cut is void, and nothing is lost.
        """
        hold_s, self._in_cut = self._settings.cut_hold_s, True
        if not self.lock.acquire(timeout=hold_s):
            return False
        try:
            self._after_last_step()
            # A ps that has a mark holds at most this long: whoever waits no longer is held no more.
            self._fan_out.mark_cut(number, hold_s)
        except RopewalkError as error:
            log.debug("cut %d is not marked everywhere: %s", number, error)
            return False
        finally:
            self.lock.release()
        return True

    def set_row_dtype(self, variable: str, dtype: DType) -> None:
        """Have rows of a variable or table, and gradients of them, travel in a narrower dtype.

        Over shared memory they travel as they are. Gradients are rounded at random: right in the
        mean.

        Args:
            variable: Name of the variable; it may not be defined yet.
            dtype: A dtype of floating-point numbers, or int8: with a scale for each row.
        """
        with self.lock:
            self.wait()
            self._plans.set_row_dtype(variable, dtype)

    def exchange(
        self, requests: Mapping[int, StepRequest], targets: Mapping[int, PullTarget]
    ) -> None:
        """Send to all and receive from all; between two steps."""
        clock = clock_here()  # rows may be looked up ahead, in a thread of their own
        began = clock.begin()
        results, failure = self._fan_out.receive(
            self._send(requests, targets, NO_PULL, clock, PULL)
        )
        clock.end(PULL, began)
        if failure is not None:
            raise failure
        step = max((result.global_step for result in results.values()), default=0)
        self.global_step = max(self.global_step, step)

    def _after_last_step(self) -> None:
        """Wait for the step under way; its error is for whoever asks for its result."""
        self._fan_out.raise_if_broken()
        self.wait()
