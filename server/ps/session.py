"""The session of a worker with a ps: its layouts, and its steps one after the other.

It knows no connections: what carries a step hands in its message and a :class:`Payload`, and takes
what comes back through an :class:`Answer`. Sessions of other processes
(``session_service.py``) and the parameter servers inside a process that trains alone both drive it.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import (
    LimitExceededError,
    RefusedError,
    RopewalkError,
    SegmentError,
    ShapeMismatchError,
)
from ...core.rules.update_rules import UpdateRule
from ...core.spans import context_from_wire
from ...core.task import Incarnation
from ...core.wire.codec import closure_of, hyperparameters_of
from ...core.wire.steps import SMALL_BYTES, Advanced, Encoding, LayoutEntry, PushResult, StepReply
from ...engine.push_target import PushTarget
from ...proto.v1 import session_pb2
from .change_stream import Push
from .layout import NOTHING, Layout, compile_layout
from .limits import LAYOUT_MESSAGES, SessionRoom, StepRoom
from .payload import Payload
from .served_trace import ServedStep, TracedAnswer
from .store import Store

_MAX_LAYOUTS = 4096  # a program has a few; a leak must not fill the ps
_Part = TypeVar("_Part")

Entries = Callable[[], Sequence[LayoutEntry]]


class Answer(Protocol[_Part]):
    """Takes what a step brings back. Used by one thread.

    ``begin``, then for each part of the values ``copy`` under its block's lock and ``write``
    without it, then ``finish``.
    """

    def begin(self, reply: StepReply) -> None:
        """Take the reply; ``reply.payload_bytes`` of values follow."""
        ...

    def room(self, num_bytes: int) -> Array | None:
        """Lend memory for the values that :meth:`copy` gets next, so that it has nothing to copy.

        Returns:
            uint8, shape ``(num_bytes,)``; None: they are read into memory of the caller's.
        """
        ...

    def copy(self, values: Array, rows: Array | None = None) -> _Part:
        """Copy some values, which are memory of a block, or of :meth:`room`.

        Args:
            values: 1-D, or shape ``(n, width)`` if ``rows`` are given; of any dtype.
            rows: int64: the numbers of the rows that are wanted.
        """
        ...

    def write(self, part: _Part) -> None:
        """Take what :meth:`copy` returned."""
        ...

    def finish(self) -> None:
        """End the answer: nothing follows."""
        ...


class Session:
    """Steps of one incarnation of a worker. Used by one thread.

    Args:
        store: The variables.
        who: The worker.
        check: Refuses an operation that this worker may not; called once per layout, and for the
            first push.
        room: Counts the memory of its steps and layouts with those of other sessions; None: they
            are counted alone.
    """

    def __init__(
        self,
        store: Store,
        who: Incarnation,
        check: Callable[[str], None] = lambda operation: None,  # noqa: ARG005
        room: SessionRoom | None = None,
    ) -> None:
        self._store = store
        self._room = room or SessionRoom(StepRoom(store.task, store.settings), who)
        self._check_access = check
        self._may_count = False
        self._who = who
        self._max_step_bytes = store.settings.max_step_bytes
        self._layouts: dict[int, Layout | Entries] = {0: NOTHING}
        self._layout_bytes: Counter[int] = Counter()
        # Pull layout → the request that brought it last, and the versions of what it brought.
        self._pulled: dict[int, tuple[int, Array]] = {}
        # Of the last push that had any: they change less often than there are pushes.
        self._last_changed: tuple[Layout, dict[str, Any], dict[int, UpdateRule]] = NOTHING, {}, {}
        self._trace: ServedStep | None = None  # of the step under way, if it is sampled

    def add_layout(self, layout_id: int, entries: Entries, num_bytes: int = 0) -> None:
        """Keep a layout; the first step that uses it compiles it, and gets the layout's errors.

        Args:
            layout_id: A session may use it again for another layout.
            entries: Entries of the layout.
            num_bytes: Size of the layout before it is compiled.

        Raises:
            LimitExceededError: There are too many layouts, or too many bytes of them.
            RefusedError: ``layout_id`` is 0.
        """
        if len(self._layouts) > _MAX_LAYOUTS and layout_id not in self._layouts:
            raise LimitExceededError(
                f"{self._who.task} uses more than {_MAX_LAYOUTS} different sets of variables "
                "in one "
                "session; push and pull the same sets from step to step",
                limit="layouts",
            )
        if not layout_id:
            raise RefusedError("layout 0 stands for none")
        others = self._layout_bytes.total() - self._layout_bytes[layout_id]
        if others + num_bytes > LAYOUT_MESSAGES * self._store.settings.max_message_bytes:
            raise LimitExceededError(
                f"{self._who.task} has sent layouts of {others + num_bytes} bytes in one session, "
                f"more than {LAYOUT_MESSAGES} messages of max_message_bytes; push and pull the "
                "same sets of variables from step to step",
                task=self._who.task,
                limit="layouts",
                value=others + num_bytes,
            )
        self._room.set_layouts(others + num_bytes)
        self._layout_bytes[layout_id] = num_bytes
        self._layouts[layout_id] = entries
        self._pulled.pop(layout_id, None)

    def step(
        self, step: session_pb2.Step, open_payload: Callable[[], Payload], answer: Answer[Any]
    ) -> None:
        """Carry out one step. A refused one is answered with its error; the session goes on.

        Raises:
            LimitExceededError: The payload is over the limit, and was not read: the session is
                over.
            OSError: What carries the step broke; a push may be applied in part, and may be
                repeated.
        """
        self._check_limit(step.payload_bytes, "a step", "spread the variables over more ps")
        try:
            if step.trace:
                self._carry_out_traced(step, open_payload, answer)
            else:
                self._carry_out(step, open_payload, answer)
        finally:
            self._room.keep(0)

    def _carry_out_traced(
        self, step: session_pb2.Step, open_payload: Callable[[], Payload], answer: Answer[Any]
    ) -> None:
        """Carry out a step that the worker samples, as spans of its trace."""
        place = context_from_wire(step.trace)
        if place is None:  # as W3C Trace Context asks of a receiver
            self._carry_out(step, open_payload, answer)
            return
        name = "push" if step.sequence else "pull"
        self._trace = ServedStep(place, self._store.task.short, self._who.task.short, name)
        try:
            with self._trace.measured():
                self._carry_out(step, open_payload, TracedAnswer(answer, self._trace))
        finally:
            self._trace = None

    def _carry_out(
        self, step: session_pb2.Step, open_payload: Callable[[], Payload], answer: Answer[Any]
    ) -> None:
        reply = StepReply(step.request_id)
        pull, pull_rows = NOTHING, list[Array]()
        payload: Payload | None = None
        early: Generator[None, None, None] | None = None
        try:
            payload = open_payload()
            self._store.count_bytes(received=step.payload_bytes)
            push, pull, pull_rows = self._check(step, payload)
            if push is None:
                reply.global_step = self._store.global_step
            elif _may_overlap(step, push, pull):
                early = self._overlapped(step, push, pull, payload, answer)
                next(early)  # a push that may not be applied shows here
            else:
                reply.put_result(self._store.push(push, payload.take, payload.mark_applied))
        except RopewalkError as error:
            if payload is not None:
                payload.drain()
            if not isinstance(error, SegmentError):  # the step comes again, behind its message
                self._store.count_refused()
            reply.error = error
            pull, pull_rows, early = NOTHING, [], None
        if early is not None:
            for _ in early:
                pass
            return
        if step.direct_bytes and reply.error is None:
            self._store.count_pull(step.direct_bytes)
        self._answer(step, reply, pull, pull_rows, answer)

    def _answer(
        self,
        step: session_pb2.Step,
        reply: StepReply,
        pull: Layout,
        pull_rows: list[Array],
        answer: Answer[Any],
    ) -> None:
        """Send the reply and what is pulled."""
        versions: Array | None = None
        # Of a small pull it costs more to find out what changed than to send it.
        if pull.dense_bytes > SMALL_BYTES and not pull_rows:
            pull, versions = self._only_changed(step, pull, reply)
        reply.payload_bytes = pull.num_bytes([rows.size for rows in pull_rows])
        self._room.keep(reply.payload_bytes)  # the push has no memory any more
        self._store.count_bytes(sent=reply.payload_bytes)
        left = len(pull.ranges)
        has_changed = bool(step.sequence) and reply.error is None and not reply.duplicate
        confirm = self._store.confirm if has_changed else self._store.confirm_read
        if not left:
            confirm()
        answer.begin(reply)
        if left:
            seen = np.empty(pull.num_entries, np.int64) if versions is not None else None
            # Values are copied under the lock of a block, and sent without it.
            for part in self._store.visit(pull, pull_rows, answer.copy, seen, answer.room):
                left -= 1
                if not left:  # what the worker may see, followers have
                    confirm()
                answer.write(part)
            if versions is not None and seen is not None:
                versions[_bits(reply.changed, versions.size)] = seen
        answer.finish()
        if reply.payload_bytes or reply.changed:
            self._store.count_pull(0)

    def _overlapped(
        self,
        step: session_pb2.Step,
        push: Push,
        pull: Layout,
        payload: Payload,
        answer: Answer[Any],
    ) -> Generator[None, None, None]:
        """Send each shard as soon as its push is applied, while the others still arrive.

        Yields once, when the first block is applied and nothing is sent yet.

        Raises:
            RopewalkError: Before that the step is refused; later, the session is over.
        """
        run = self._store.applying(push, payload.take)
        applied, result = _advance(run)
        yield
        answer.begin(
            StepReply(step.request_id, payload_bytes=pull.dense_bytes, outcome_follows=True)
        )
        self._store.count_bytes(sent=pull.dense_bytes)
        versions = np.empty(pull.num_entries, np.int64)
        done = {id(applied)}
        entry = 0
        for part in pull.ranges:
            while result is None and id(part.block) not in done:
                applied, result = _advance(run)
                done.add(id(applied))
            stop = entry + part.where.last - part.where.first
            one = Layout((part,), (0,))
            for values in self._store.visit(one, (), answer.copy, versions[entry:stop]):
                answer.write(values)
            entry = stop
        answer.finish()
        self._store.count_pull(0)
        while result is None:
            applied, result = _advance(run)
        self._pulled[step.pull_layout] = (step.request_id, versions)
        outcome = StepReply(step.request_id)
        outcome.put_result(result)
        self._store.confirm()
        answer.begin(outcome)
        answer.finish()

    def _only_changed(
        self, step: session_pb2.Step, pull: Layout, reply: StepReply
    ) -> tuple[Layout, Array]:
        """Leave out of a pull what the worker has already.

        Returns:
            The rest, and the versions to be remembered; those of the rest follow when it is read.
        """
        request, known = self._pulled.get(step.pull_layout, (0, np.empty(0, np.int64)))
        if step.known_request and step.known_request == request:
            # A version read before its values may be older than they are: they are sent once more.
            changed = pull.versions() != known
            if not changed.all():
                reply.changed = np.packbits(changed, bitorder="little").tobytes()
                pull = pull.only(changed)
        else:
            known = np.zeros(pull.num_entries, np.int64)
        self._pulled[step.pull_layout] = (step.request_id, known)
        return pull, known

    def _check(
        self, step: session_pb2.Step, payload: Payload
    ) -> tuple[Push | None, Layout, list[Array]]:
        """Check the step whole, before any of it is applied.

        Returns:
            Values to push, if any; layout of the pull, with row numbers.
        """
        push_layout, pull_layout = self._layout(step.push_layout), self._layout(step.pull_layout)
        self._check_size(step, push_layout, pull_layout)
        asked = pull_layout.num_bytes(step.pull_rows)
        self._check_limit(asked, "a pull", "ask for fewer rows at a time")
        comes = 0 if payload.segment is not None else step.payload_bytes
        self._room.begin_step(max(comes, asked))
        push_rows = tuple(_take_rows(payload, count) for count in step.push_rows)
        pull_rows = [_take_rows(payload, count) for count in step.pull_rows]
        push_layout.check_rows(push_rows, self._store.task)
        pull_layout.check_rows(pull_rows, self._store.task)
        advance = _advance_of(step)
        push_layout.check_advance(advance, self._who.task)
        pull_layout.check_advance(None, self._who.task)
        if not step.sequence:
            return None, pull_layout, pull_rows
        if not self._may_count:  # every push does, with its sequence number at least
            self._check_access("step COUNT")
            self._may_count = True
        push = Push(
            self._who,
            step.sequence,
            step.global_step,
            step.gradient_scale or 1.0,
            closure_of(step, self._who.task),
            push_layout,
            push_rows,
            step.step_increment,
            self._changed(push_layout, hyperparameters_of(step)),
            payload.segment,
            advance,
            self._trace,
        )
        return push, pull_layout, pull_rows

    def _changed(
        self, push: Layout, hyperparameters: Mapping[str, Any] | None
    ) -> Mapping[int, UpdateRule]:
        """Find the update rules of a push that has hyperparameters of its own, by the bound one's
        id.
        """
        if hyperparameters is None:
            return {}
        layout, known, changed = self._last_changed
        if layout is push and known == hyperparameters:
            return changed
        # Those of tables stay as they are: a program's optimizer is another one.
        arrays = (part for part in push.ranges if part.encoding is not Encoding.KEYS)
        rules = {id(part.rule): part.rule for part in arrays if part.rule is not None}
        try:
            changed = {key: rule.changed(hyperparameters) for key, rule in rules.items()}
        except ValueError as error:
            raise RefusedError(
                f"{self._store.task}: {self._who.task} changes hyperparameters: {error}",
                task=self._who.task,
            ) from error
        self._last_changed = push, dict(hyperparameters), changed
        return changed

    def _layout(self, layout_id: int) -> Layout:
        layout = self._layouts.get(layout_id)
        if layout is None:
            raise RefusedError(f"layout {layout_id} was not sent in this session")
        if isinstance(layout, Layout):
            return layout
        entries = layout()
        for operation in {entry.operation for entry in entries}:
            self._check_access(f"step {operation.name}")
        compiled = compile_layout(self._store.table, entries)
        for part in compiled.ranges:
            part.block.is_pushed_whole |= part.changes_all
        self._layouts[layout_id] = compiled
        return compiled

    def _check_limit(self, num_bytes: int, what: str, remedy: str) -> None:
        if num_bytes > self._max_step_bytes:
            raise LimitExceededError(
                f"{self._store.task}: {what} of {num_bytes} bytes is over "
                f"max_step_bytes={self._max_step_bytes}; raise ROPEWALK_MAX_STEP_BYTES on the "
                "ps, or "
                f"{remedy}",
                task=self._store.task,
                limit="max_step_bytes",
                value=num_bytes,
            )

    def _check_size(self, step: session_pb2.Step, push: Layout, pull: Layout) -> None:
        counts = (len(step.push_rows), len(step.pull_rows))
        if counts != (len(push.numbered), len(pull.numbered)):
            raise ShapeMismatchError(
                f"{self._store.task}: {self._who.task} gives row counts for {counts[0]} pushed and "
                f"{counts[1]} pulled entries; the layouts have {len(push.numbered)} and "
                f"{len(pull.numbered)} that need them"
            )
        rows = sum(step.push_rows) + sum(step.pull_rows)
        expected = 8 * rows + push.num_bytes(step.push_rows)
        if step.payload_bytes != expected:
            raise ShapeMismatchError(
                f"{self._store.task}: {self._who.task} sent {step.payload_bytes} bytes for "
                "a push of "
                f"{expected}; it was built from another model version",
                task=self._who.task,
                expected=expected,
                found=step.payload_bytes,
            )


def _advance_of(step: session_pb2.Step) -> Advanced | None:
    if not step.advance_to:
        return None
    return Advanced(step.advance_row, step.advance_to, step.settle_row, step.settle_to)


def _may_overlap(step: session_pb2.Step, push: Push, pull: Layout) -> bool:
    """Return whether a step is large and pulls only what it pushes: nothing can be left out
    then.
    """
    if not step.early_reply or pull.numbered or pull.dense_bytes <= SMALL_BYTES:
        return False
    if push.layout.gate is not None:  # applied whole, or not at all
        return False
    pushed = {id(part.block) for part in push.layout.ranges}
    return pushed.issuperset(id(part.block) for part in pull.ranges)


def _advance(
    run: Generator[PushTarget, None, PushResult],
) -> tuple[PushTarget | None, PushResult | None]:
    """Advance to the next block that was applied, or to the result."""
    try:
        return next(run), None
    except StopIteration as end:
        return None, end.value


def _bits(packed: bytes, count: int) -> Array | slice:
    """Unpack which entries a reply has; no bitmap stands for all."""
    if not packed:
        return slice(None)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count, bitorder="little")
    return bits.astype(np.bool_)


def _take_rows(payload: Payload, count: int) -> Array:
    # Copied: the payload's memory is used again while the values are read.
    return np.frombuffer(payload.take(8 * count), np.int64).copy()
