"""A parameter server in this process: the same store, driven without messages or sockets."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ..core.arrays import as_bytes, total_bytes
from ..core.definitions import ShardDefinition
from ..core.errors import LimitExceededError, ShapeMismatchError, WindlassError
from ..core.settings import Settings
from ..core.steps import HeldShard, PushResult, StepRequest, WireLayout
from ..core.task import Incarnation, TaskId
from ..core.update_rules import UpdateRule
from ..engine.block import StepFacts
from ..server.ps.layout import Layout
from ..server.ps.payload import FramesReader
from ..server.ps.store import Push, Store


class LocalTransport:
    """The ``local`` transport: see :class:`~windlass.client.ps.transport.PsTransport`.

    Args:
        task: Which ps this plays.
        who: The worker.
        settings: For the store's bounds.
        store: Shared by the workers of one process; None: a new one.
    """

    def __init__(
        self, task: TaskId, who: Incarnation, settings: Settings, store: Store | None = None
    ) -> None:
        self._task = task
        self._who = who
        self.store = store or Store(task, settings)
        self._layouts: dict[int, tuple[WireLayout, Layout]] = {}
        self._request: StepRequest | None = None
        self._aborted: WindlassError | None = None

    @property
    def task(self) -> TaskId:
        """The ps it plays."""
        return self._task

    @property
    def description(self) -> str:
        """How bytes travel."""
        return "local"

    @property
    def shares_memory(self) -> bool:
        """Yes."""
        return True

    def connect(self, timeout_s: float) -> None:  # noqa: ARG002 - the interface's
        """Present ourselves."""
        self._raise_if_aborted()
        self.store.meet(self._who)

    def define(
        self, shards: Sequence[ShardDefinition], *, create: bool, restore_from: str = ""
    ) -> list[HeldShard]:
        """Create shards, or look them up."""
        self._raise_if_aborted()
        if create:
            return self.store.define(shards, self._who, restore_from=restore_from)
        return self.store.lookup(shards, self._who)

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule."""
        self._raise_if_aborted()
        self.store.bind(variables, rule, self._who)

    def held_bytes(self) -> int:
        """Bytes of values in the store."""
        return self.store.held_bytes()

    def send(self, request: StepRequest) -> None:
        """Begin a step."""
        self._raise_if_aborted()
        size, limit = request.payload_bytes, self.store.settings.max_step_bytes
        if size > limit:
            raise LimitExceededError(
                f"a step of {size} bytes to {self._task} is over max_step_bytes={limit}; raise "
                "WINDLASS_MAX_STEP_BYTES, or spread the variables over more ps",
                limit="max_step_bytes",
                value=size,
                task=self._task,
            )
        if request.detached:
            request = replace(request, values=[piece.detached() for piece in request.values])
        self._request = request

    def receive(
        self,
        into: Sequence[memoryview],
        previous: Sequence[memoryview] | None = None,  # noqa: ARG002 - a copy costs as much as a look
    ) -> PushResult:
        """Carry the step out."""
        self._raise_if_aborted()
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("receive without send")
        try:
            return self._run(request, into)
        except WindlassError:
            self.store.count_refused()
            raise

    def _run(self, request: StepRequest, into: Sequence[memoryview]) -> PushResult:
        push, pull = self._compiled(request.push), self._compiled(request.pull)
        expected = push.num_bytes([rows.size for rows in request.push_rows])
        if request.value_bytes != expected:
            raise ShapeMismatchError(
                f"{self._task}: {self._who.task} sent {request.value_bytes} bytes for a push "
                f"of {expected}",
                task=self._who.task,
            )
        self.store.check_rows(push, request.push_rows)
        self.store.check_rows(pull, request.pull_rows)
        result = PushResult(self.store.global_step, 0, duplicate=False)
        if request.sequence:
            size = request.value_bytes
            self.store.count_bytes(received=size)
            buffers: Iterator[memoryview] = (p.buffer() for p in request.values if p.num_bytes)
            payload = FramesReader(b"", size, lambda: next(buffers, memoryview(b"")))
            facts = StepFacts(
                self._who, request.sequence, request.global_step, request.gradient_scale
            )
            rows = tuple(request.push_rows)
            result = self.store.push(Push(push, rows, facts, request.step_increment), payload.take)
        if request.pull is not None:
            self._copy(pull, request, into)
            result = replace(result, pulled_bytes=total_bytes(into))
        return result

    def _copy(self, pull: Layout, request: StepRequest, into: Sequence[memoryview]) -> None:
        arrays = self.store.read(pull, request.pull_rows)
        self.store.count_bytes(sent=sum(array.nbytes for array in arrays))
        buffers = [as_bytes(array) for array in arrays]
        total = total_bytes(buffers)
        pieces = (buffer for buffer in buffers if len(buffer))
        source = FramesReader(b"", total, lambda: next(pieces, memoryview(b"")))
        for target in into:
            np.copyto(
                np.frombuffer(target, np.uint8), np.frombuffer(source.take(len(target)), np.uint8)
            )

    def _compiled(self, layout: WireLayout | None) -> Layout:
        if layout is None:
            return Layout()
        known = self._layouts.get(layout.layout_id)
        if known is None or known[0] is not layout:
            known = (layout, self.store.compile(layout.entries))
            self._layouts[layout.layout_id] = known
        return known[1]

    def expire(self, now: float) -> None:
        """Calls here do not wait."""

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted

    def abort(self, error: WindlassError) -> None:
        """Make later calls raise ``error``."""
        self._aborted = error

    def close(self) -> None:
        """Nothing is open."""
