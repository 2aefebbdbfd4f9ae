"""Cuts of one share on the ps that leads it: pushes that wait, and the values once all have marked.

At most one cut is under way, and at most one is kept. As long as there is one, a push waits at
:attr:`ShareCuts.gate`, and :attr:`ShareCuts.image` keeps what a block had before it changes.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from ....core.arrays.dtypes import Array
from ....core.errors import CutVoidError
from ....core.task import Incarnation
from ....core.wire.cut_marks import CutMark
from ....server.ps.block_reader import piece_bytes
from ....server.ps.change_stream import BlockChange, Subscriber
from ....server.ps.store import Store
from . import marks
from .deltas import Bases
from .image import CutImage, Moment, Rooms, make_rooms
from .marks import CutState, ShareCut

log = logging.getLogger(__name__)

_ROOM_PART = 0.5  # of the longest hold: other ps may hold by then, and still wait for marks


class CutGate:
    """Lets pushes wait that are not in the cut under way. Thread-safe.

    Args:
        cut: The cut, once it was begun.
        taken: Called once with the marks, when the values are the cut's and no push is applied.
    """

    def __init__(self, cut: ShareCut, taken: Callable[[ShareCut], None]) -> None:
        self._change = threading.Condition()
        self._taken = taken
        self._begun = cut
        self.cut = replace(cut, state=CutState.HOLDING)

    def start(self) -> None:
        """Take the cut at once, if there are no workers. Pushes ask this gate by now."""
        with self._change:
            self._advance(self._begun)

    def wait(self, who: Incarnation) -> None:
        """Wait until a push of this worker may be applied."""
        if not self.cut.is_holding:
            return
        with self._change:
            if marks.holds(self.cut, who, time.monotonic()):
                self._change.wait_for(
                    lambda: not marks.holds(self.cut, who, time.monotonic()),
                    self.cut.until - time.monotonic(),
                )
            self._expire()

    def mark(self, who: Incarnation, mark: CutMark, applied: int) -> None:
        """Take a worker's mark; see :func:`~ropewalk.annexes.moments.server.marks.marked`."""
        with self._change:
            self._advance(marks.marked(self.cut, who, mark, applied, time.monotonic()))

    def void(self, why: str) -> None:
        """End the cut, if it is not over."""
        with self._change:
            if self.cut.is_holding:
                self._advance(marks.voided(self.cut, why))

    def finished(self) -> ShareCut:
        """Wait until the cut is over."""
        with self._change:
            self._change.wait_for(
                lambda: not self.cut.is_holding, self.cut.until - time.monotonic()
            )
            self._expire()
            return self.cut

    def _expire(self) -> None:
        after = marks.expired(self.cut, time.monotonic())
        if after is not self.cut:
            self._advance(after)

    def _advance(self, after: ShareCut) -> None:
        if after.state is CutState.TAKEN:
            self._taken(after)
        self.cut = after  # from here on pushes go on, also those that look without the lock
        if not after.is_holding:
            self._taken = lambda _: None  # the other one has memory
            self._change.notify_all()


class ShareCuts(Subscriber):
    """Cuts of one share. Thread-safe.

    Args:
        store: Content of the share.

    Attributes:
        gate: Gate at which pushes wait; None: they do not.
        image: Image that is asked before values are changed; None: nothing is kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._beginning = threading.Lock()  # memory is made once, though an order may be repeated
        self._last: CutGate | None = None
        self.gate: CutGate | None = None
        self.image: CutImage | None = None

    def _listen(self) -> None:
        """Listen to pushes as long as there is a cut."""
        self._store.stream.keep(self, lambda: self.gate is not None or self.image is not None)

    def arrives(self, who: Incarnation) -> None:
        """Let a push wait that is not in the cut under way."""
        gate = self.gate
        if gate is not None:
            gate.wait(who)

    def before(self, change: BlockChange) -> None:
        """Keep what a push is about to change."""
        image = self.image
        if image is not None:
            image.before(change.block, change.parts)

    def interrupted(self, why: str) -> None:
        """Keep nothing of any cut."""
        self.abandon(why)

    def begin(
        self,
        number: int,
        workers: Set[Incarnation],
        hold_s: float,
        *,
        with_slots: bool,
        may_be_base: bool = False,
        reader: Incarnation | None = None,
        rows: Callable[[], Sequence[Array]] | None = None,
    ) -> None:
        """Begin to hold the pushes that are not in a cut. What was kept of another one is dropped.

        Memory for what pushes will change is made first: they go on meanwhile, and each worker
        marks once all ps hold.

        Args:
            number: Number of the cut.
            workers: Workers whose marks it waits for.
            hold_s: Longest time that pushes wait. Unit: seconds.
            with_slots: Whether slots are wanted, or values alone.
            may_be_base: Whether what changes from then on is to be noted.
            reader: Task that alone may read the values; None: they are for a checkpoint.
            rows: Copies the rows that the reader has named, if these alone are wanted.

        Raises:
            FencedError: A later cut was begun.
        """
        with self._beginning:
            rooms: Rooms = {}
            if self._last is None or self._last.cut.number < number:
                self.abandon(f"cut {number} was begun")  # its memory is free for this one
                if rows is None:
                    rooms = self._make_rooms(with_slots, time.monotonic() + hold_s * _ROOM_PART)
            with self._lock:
                before = self._last.cut if self._last is not None else None
                until = time.monotonic() + hold_s
                cut = marks.begun(before, number, workers, until)
                if cut is before:
                    return

                def taken(after: ShareCut) -> None:
                    moment = Moment(
                        after.number, dict(after.marks), may_be_base=may_be_base, reader=reader
                    )
                    self.image = self._take_image(moment, rows, rooms, with_slots=with_slots)

                self._last = self.gate = gate = CutGate(cut, taken)
                self._listen()
                gate.start()

    def _make_rooms(self, with_slots: bool, until: float) -> Rooms:
        """Allocate memory for what pushes will change, until this time."""
        most, room = self._bounds(with_slots=with_slots)
        blocks = self._store.table.blocks()
        return make_rooms(blocks, most, with_slots=with_slots, room=room, until=until)

    def _bounds(self, *, with_slots: bool) -> tuple[int, int]:
        """Compute the bytes of a piece, and the most bytes of all copies."""
        store = self._store
        in_use = store.table.bytes_in_use()
        most = piece_bytes(in_use) if with_slots else store.settings.max_message_bytes // 2
        return most, max(0, store.table.max_bytes - in_use - store.beside().memory)

    def _take_image(
        self,
        moment: Moment,
        rows: Callable[[], Sequence[Array]] | None,
        rooms: Rooms,
        *,
        with_slots: bool,
    ) -> CutImage:
        """Keep the values of now, or rows of them; no push is applied meanwhile."""
        store = self._store
        most, room = self._bounds(with_slots=with_slots)
        if moment.may_be_base:
            store.part(Bases).begin(moment.number)
        return CutImage(
            store.task,
            replace(moment, global_step=store.global_step, pushes=store.pushes),
            store.table.blocks() if rows is None else (),
            store.table.tables() if with_slots else (),
            most=most,
            room=room,
            with_slots=with_slots,
            rows=() if rows is None else rows(),
            rooms=rooms,
        )

    def mark(self, number: int, who: Incarnation, mark: CutMark) -> None:
        """Take a worker's mark.

        Raises:
            CutVoidError: This cut is not under way.
            FencedError: It is over, or does not wait for this worker.
        """
        self._current(number).mark(who, mark, self._store.last_push(who))

    def finish(self, number: int) -> Moment:
        """Wait until all workers have marked; which moment it is.

        Raises:
            CutVoidError: A mark did not come in time, or this cut is not under way.
        """
        gate = self._current(number)
        cut = gate.finished()
        self._open(gate)
        if cut.state is not CutState.TAKEN:
            raise CutVoidError(cut.void_because, number=number)
        return self._kept(number).moment

    def kept(self, number: int, who: Incarnation | None) -> CutImage:
        """Return the values of a cut.

        Args:
            number: Number of the cut.
            who: Task that reads them; None: a checkpoint.

        Raises:
            CutVoidError: They are not here, or not any more.
            PermissionDeniedError: The cut was taken for somebody else.
        """
        image = self._kept(number)
        image.check_reader(who)
        return image

    def _kept(self, number: int) -> CutImage:
        image = self.image
        if image is None or image.moment.number != number:
            raise CutVoidError(f"the values of cut {number} are not here", number=number)
        image.check()
        return image

    def end(self, number: int) -> None:
        """Let all pushes go on, and keep nothing of this cut. Idempotent."""
        with self._lock:
            gate, image = self._last, self.image
            if gate is not None and gate.cut.number == number:
                gate.void("the chief has given it up")
                self.gate = None
            if image is not None and image.moment.number == number:
                image.drop("the chief has given it up")
                self.image = None
            self._listen()

    def abandon(self, why: str) -> None:
        """Let all pushes go on, and keep nothing of any cut."""
        with self._lock:
            self._abandon(why)

    def _abandon(self, why: str) -> None:
        if self._last is not None:
            self._last.void(why)
        if self.image is not None:
            self.image.drop(why)
        self.gate = self.image = None
        self._listen()

    def _open(self, gate: CutGate) -> None:
        with self._lock:
            if self.gate is gate:
                self.gate = None
                self._listen()

    def _current(self, number: int) -> CutGate:
        gate = self._last
        if gate is None or gate.cut.number != number:
            raise CutVoidError(f"cut {number} is not under way", number=number)
        return gate
