"""A parameter server in this process: the same session, driven without messages or connections."""

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ..client.ps.step import Exchange
from ..core import annexes
from ..core.arrays.dtypes import Array, total_bytes
from ..core.arrays.gather_buffer import copy_into
from ..core.errors import RopewalkError, ShapeMismatchError
from ..core.rules.definitions import ShardDefinition
from ..core.rules.update_rules import UpdateRule
from ..core.settings import Settings
from ..core.task import Incarnation, TaskId
from ..core.wire import codec
from ..core.wire.cut_marks import CutMark, Elements
from ..core.wire.steps import (
    NO_TARGET,
    HeldShard,
    PullTarget,
    PushResult,
    StepReply,
    StepRequest,
    WireLayout,
)
from ..engine.rows import gather_rows
from ..server.ps.payload import BufferPayload
from ..server.ps.session import Session
from ..server.ps.store import Store


class OwnMemory(Protocol):
    """Values of variables that the program has in memory of its own."""

    def take(self) -> None:
        """Copy them to the variables."""


class LocalPs:
    """See :class:`~ropewalk.client.ps.step.PsPeer`.

    Args:
        task: Task of the ps that this plays.
        who: The worker.
        settings: Settings, for the store's bounds.
        store: Shared by the workers of one process; None: a new one.
    """

    description = "local"

    def __init__(
        self, task: TaskId, who: Incarnation, settings: Settings, store: Store | None = None
    ) -> None:
        self.task = task
        self.store = store or Store(task, settings)
        self.who = who
        self._session = Session(self.store, who)
        self._layouts: dict[int, WireLayout] = {}
        self._aborted: RopewalkError | None = None
        self._own: list[weakref.ref[OwnMemory]] = []

    @property
    def shares_memory(self) -> bool:
        """Yes."""
        return True

    def connect(self, timeout_s: float) -> None:  # noqa: ARG002 - the interface's
        """Present ourselves."""
        self._raise_if_aborted()
        self.store.register_incarnation(self.who)

    def mark_cut(self, number: int, mark: CutMark, timeout_s: float) -> None:  # noqa: ARG002
        """Tell the store where a cut is."""
        _cuts_of(self.store).mark(number, self.who, mark)

    def read_cut(self, number: int, piece: int, timeout_s: float) -> list[Elements]:  # noqa: ARG002
        """Read a piece of the values of a cut of the store."""
        elements: list[Elements] = _cuts_of(self.store).kept(number, self.who).read(piece)
        return elements

    def define(
        self, shards: Sequence[ShardDefinition], *, create: bool, restore_from: str = ""
    ) -> list[HeldShard]:
        """Create shards, or look them up."""
        self._raise_if_aborted()
        if create:
            return self.store.table.define(shards, self.who, restore_from=restore_from or None)
        return self.store.table.lookup(shards, self.who)

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule."""
        self._raise_if_aborted()
        self.store.table.bind(variables, rule, self.who)

    def held_bytes(self) -> int:
        """Count the bytes of values in the store."""
        return self.store.table.held_bytes()

    def step(self, request: StepRequest, target: PullTarget = NO_TARGET) -> Exchange:
        """Carry a step out as its answer is asked for; all values are copied, as that costs no more
        than to look.
        """
        self._raise_if_aborted()
        rows = [numbers.view(np.uint8).data for numbers in (*request.push_rows, *request.pull_rows)]
        payload = BufferPayload([*rows, *(part.buffer() for part in request.kept().values)])
        yield
        self._raise_if_aborted()
        yield
        self._raise_if_aborted()
        self.take_own_arrays()
        message = codec.step_to_wire(request, 0, 0, early_reply=False)
        for layout in (request.push, request.pull):
            self._add_layout(layout)
        answer = _LocalAnswer(target.into)
        self._session.step(message, lambda: payload, answer)
        return answer.result()

    def add_own_arrays(self, own: OwnMemory) -> None:
        """Take these before each step, as long as the program has them."""
        self._own = [*(ref for ref in self._own if ref() is not None), weakref.ref(own)]

    def take_own_arrays(self) -> None:
        """Copy the values that the program has in memory of its own to the store."""
        for ref in self._own:  # never changed, but replaced
            if (own := ref()) is not None:
                own.take()

    def _add_layout(self, layout: WireLayout | None) -> None:
        if layout is not None and self._layouts.get(layout.layout_id) is not layout:
            self._layouts[layout.layout_id] = layout
            self._session.add_layout(layout.layout_id, lambda: layout.entries)

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    def abort(self, error: RopewalkError) -> None:
        """Make later calls raise ``error``."""
        self._aborted = error

    def close(self) -> None:
        """Do nothing: nothing is open."""


_NO_ROOM = np.empty(0, np.uint8)


class _LocalAnswer:
    """Copies values to where they go. See :class:`~ropewalk.server.ps.session.Answer`."""

    def __init__(self, into: Sequence[memoryview]) -> None:
        self._into = [np.frombuffer(target, np.uint8) for target in into]
        self._total = total_bytes(into)
        self._reply = StepReply(0)

    def begin(self, reply: StepReply) -> None:
        if reply.error is None and reply.payload_bytes != self._total:
            raise ShapeMismatchError(
                f"{reply.payload_bytes} bytes were read for a pull of {self._total}"
            )
        self._reply = reply

    def room(self, num_bytes: int) -> Array | None:
        first = self._into[0] if self._into else _NO_ROOM
        return first[:num_bytes] if first.size >= num_bytes else None

    def copy(self, values: Array, rows: Array | None = None) -> None:
        if rows is not None:
            values = gather_rows(values, rows)
        source = values.reshape(-1).view(np.uint8)
        while source.size:
            target = self._into[0]
            count = min(target.size, source.size)
            if target.ctypes.data != source.ctypes.data:  # else they were read into it
                copy_into(target[:count], source[:count])
            source = source[count:]
            if count == target.size:
                self._into.pop(0)
            else:
                self._into[0] = target[count:]

    def write(self, part: object) -> None:
        """Do nothing: the part is in place already."""

    def finish(self) -> None:
        """Do nothing."""

    def result(self) -> PushResult:
        reply = self._reply
        if reply.error is not None:
            raise reply.error
        return PushResult(reply.global_step, reply.staleness, reply.duplicate, reply.payload_bytes)


def _cuts_of(store: Store) -> Any:
    return store.part(annexes.the("server.cuts", "moments", "a snapshot").ShareCuts)
