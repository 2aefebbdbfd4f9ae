"""The values of a share at one moment, kept for whoever reads them while pushes change them.

Nothing is copied at that moment itself. The reader copies piece by piece, as a checkpoint is always
written; a push that comes first to a piece copies it before it changes it. A piece is some rows of
a shard with their slots, or the small shards of one block. So the most memory that this takes is
that of the pieces which were changed before they were read: with dense pushes all values and slots
once more, with sparse ones the pieces that have changed rows. It is given back as it is read. For
blocks that pushes change whole it is made beforehand (:class:`KeptMemory`): nearly all of the time
that a copy to fresh memory takes goes to page faults (64 MiB take 10 ms to copy, and up to ten
times as long if the memory is not there yet), which the first push after a cut would take under the
lock of its block.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ....core.arrays.buffers import present_buffer
from ....core.arrays.dtypes import Array
from ....core.errors import CutVoidError, PermissionDeniedError
from ....core.task import Incarnation, TaskId
from ....core.wire.cut_marks import Elements, Marks
from ....engine.block import Block
from ....engine.push_target import PushTarget, RowsByKey, UpdatePart
from ....server.ps.block_reader import (
    ArrayPiece,
    ArrayReader,
    PlannedTensor,
    TableCopy,
    elements_of,
    memory_of,
    parts_of,
    plan_of,
)

_TOGETHER_BYTES = 32 * 1024 * 1024  # of some pieces, given back when all of them are read

Rooms = dict[int, list[Array]]
"""Memory for each piece of a block from the first one on, by ``id`` of the block: uint8, of the
same size.
"""


def make_rooms(
    blocks: Sequence[Block], most: int, *, with_slots: bool, room: int, until: float
) -> Rooms:
    """Allocate memory for the pieces of blocks that pushes change whole, for as many as there is
    room for.

    Args:
        blocks: Blocks of arrays.
        most: Bytes of a piece.
        with_slots: Whether slots go with the values.
        room: Most bytes of all.
        until: Time of ``time.monotonic`` after which nothing is begun. Unit: seconds.
    """
    rooms: Rooms = {}
    for block in blocks:
        if not block.is_pushed_whole:
            continue
        with block.lock:
            plan = plan_of(block, most, with_slots=with_slots)
        memory = rooms[id(block)] = []
        for sizes in _together([sum(tensor.spec.num_bytes for tensor in group) for group in plan]):
            room -= sum(sizes)
            if room < 0 or time.monotonic() > until:
                return rooms
            memory += np.split(present_buffer(sum(sizes)), np.cumsum(sizes)[:-1])
    return rooms


def _together(sizes: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for size in sizes:
        if group and sum(group) + size > _TOGETHER_BYTES:
            yield group
            group = []
        group.append(size)
    if group:
        yield group


class KeptMemory:
    """The memory of what a cut keeps until it is read, and whether the cut holds. Thread-safe.

    Args:
        task: The ps, for messages.
        number: Number of the cut.
        room: Most bytes of all copies.
        unread_s: Longest time between two reads. Unit: seconds.

    Attributes:
        held: Bytes of all copies that are there.
        void_because: Why the cut is void; empty: it holds.
    """

    def __init__(self, task: TaskId, number: int, room: int, unread_s: float) -> None:
        self._task = task
        self._number = number
        self._room = room
        self._unread_s = unread_s
        self._read_at = time.monotonic()
        self._lock = threading.Lock()
        self.held = 0
        self.void_because = ""

    def take(self, num_bytes: int) -> bool:
        """Count the memory of copies; returns whether the cut holds still."""
        with self._lock:
            self.held += num_bytes
            if self.held > self._room:
                self.void_because = (
                    f"{self._task} has no memory to keep {self.held} bytes that changed before "
                    f"they were read: {self._room} are left of max_ps_bytes"
                )
            elif time.monotonic() - self._read_at > self._unread_s:
                self.void_because = (
                    f"{self._task} was not asked for its values for {self._unread_s:g} s"
                )
            return not self.void_because

    def free(self, num_bytes: int) -> None:
        """Note that so many bytes were given back. Called for each piece that was read.

        Raises:
            CutVoidError: The values were not kept.
        """
        with self._lock:
            self.held -= num_bytes
            self._read_at = time.monotonic()
        self.check()

    def drop(self, why: str) -> None:
        """Make the cut void, if it is not."""
        with self._lock:
            self.void_because = self.void_because or why

    def check(self) -> None:
        """Go on only if the values were kept.

        Raises:
            CutVoidError: They were not.
        """
        if self.void_because:
            raise CutVoidError(
                f"cut {self._number} is void: {self.void_because}",
                number=self._number,
                task=self._task,
            )


# -- Images ------------------------------------------------------------------------------------

_MOST_ARRAYS = 4096  # small ones in one answer: each has its name with it
_UNREAD_S = 60.0
"""Values that were not read for this long are not kept any longer. Unit: seconds."""
_SAVE_S = 3600.0
"""Time that a checkpoint's image is kept unread: a ps writes its shares one after the other."""


@dataclass(slots=True)
class KeptPiece(ArrayPiece):
    """A piece of a block, of which a push keeps what it is about to change.

    Attributes:
        kept: Copies of the tensors, flat, if they were to be changed; None: they were not.
        room: Memory for the copies, uint8; None: it is taken when they are made.
        is_read: Whether it is no longer needed.
    """

    kept: list[Array] | None = None
    room: Array | None = None
    is_read: bool = False

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that it has, filled or not."""
        return 0 if self.kept is None and self.room is None else self.num_bytes

    def keep(self, block: Block) -> int:
        """Copy the tensors if that is yet to be done. The caller locks the block.

        Returns:
            Bytes of memory that were taken for it.
        """
        if self.is_read or self.kept is not None:
            return 0
        taken = self.num_bytes - self.held_bytes
        sources = [memory_of(block, tensor) for tensor in self.tensors]
        if self.room is None:
            self.kept = [source.copy() for source in sources]
            return taken
        self.kept, start = [], 0
        for source in sources:
            stop = start + source.nbytes
            self.kept.append(self.room[start:stop].view(source.dtype))
            start = stop
            np.copyto(self.kept[-1], source)
        return taken

    def memory(self, block: Block, number: int) -> Array:
        """View a tensor, flat, as it is kept or as it is. The caller locks the block."""
        return memory_of(block, self.tensors[number]) if self.kept is None else self.kept[number]

    def take(self) -> tuple[list[Array] | None, int]:
        """Take the copies, if there are any: the piece is read then. The caller locks the block.

        Returns:
            (the copies, bytes of memory that it had)
        """
        kept, held = self.kept, self.held_bytes
        self.kept, self.room, self.is_read = None, None, True
        return kept, held


class BlockImage(ArrayReader):
    """Reads a block of arrays as it was at one moment.

    Args:
        block: The block.
        most: Bytes of a piece.
        with_slots: Whether slots go with the values.
        memory: Memory of what pushes keep; None: they keep nothing, and each piece is of the moment
            it is read.
        rooms: Memory for copies of the first pieces.
    """

    pieces: list[KeptPiece]

    def __init__(
        self,
        block: Block,
        most: int,
        *,
        with_slots: bool = True,
        memory: KeptMemory | None = None,
        rooms: Sequence[Array] = (),
    ) -> None:
        super().__init__(block, most, with_slots=with_slots)
        self._memory = memory
        for piece, room in zip(self.pieces, rooms, strict=False):
            # Another size: a shard was defined or bound after the memory was made.
            piece.room = room if room.size == piece.num_bytes else None
        self._starts = np.array([piece.start for piece in self.pieces], np.int64)

    @staticmethod
    def _piece(group: Sequence[PlannedTensor]) -> KeptPiece:
        return KeptPiece(group, *elements_of(group))

    def read(self, memory: Array) -> Iterator[Iterator[memoryview]]:
        """See :meth:`BlockReader.read`."""
        if self._memory is None:
            yield from super().read(memory)
            return
        for piece in self.pieces:
            yield from parts_of(self._read_kept(piece, memory))

    def _read_kept(self, piece: KeptPiece, memory: Array) -> list[Array]:
        """Copy a piece, or take what a push has kept of it before it changed it."""
        views: list[Array] = []
        if piece.num_bytes > memory.size:
            with self.block.lock:
                piece.keep(self.block)  # a row that does not fit
        elif piece.kept is None:
            views = self.copy(piece, memory)
        kept = self.take(piece)  # a push meanwhile has changed what we were copying
        return views if kept is None else kept

    def take(self, piece: KeptPiece) -> list[Array] | None:
        """Take the copies of a piece, if there are any: it is read then.

        Raises:
            CutVoidError: The values were not kept.
        """
        with self.block.lock:
            kept, held = piece.take()
        if self._memory is not None:
            self._memory.free(held)
        return kept

    def keep(self, parts: Sequence[UpdatePart]) -> int:
        """Copy what a push is about to change; bytes taken for it. The caller locks the block."""
        return sum(piece.keep(self.block) for part in parts for piece in self._changed_by(part))

    def _changed_by(self, part: UpdatePart) -> Iterator[KeptPiece]:
        where, rows = part.where, part.gradient.rows
        if rows is None:
            inside = (
                where.start < piece.stop and piece.start < where.stop for piece in self.pieces
            )
            numbers = [number for number, is_inside in enumerate(inside) if is_inside]
        else:
            shard = self.block.shards[where.first]
            width = shard.size // max(1, shard.rows)
            found = np.searchsorted(self._starts, where.start + rows * width, "right") - 1
            numbers = np.unique(found[found >= 0]).tolist()
        for number in numbers:
            yield self.pieces[number]


@dataclass(frozen=True, slots=True)
class Moment:
    """The identity of a moment.

    Attributes:
        number: Number of the cut.
        marks: The last push of each worker in it.
        global_step: Global step as far as this ps knows.
        pushes: Number of pushes that this ps has counted.
        may_be_base: Whether what changes from then on is to be noted.
        reader: Task that alone may read the values; None: they are for a checkpoint.
    """

    number: int
    marks: Marks = field(default_factory=dict)
    global_step: int = 0
    pushes: int = 0
    may_be_base: bool = False
    reader: Incarnation | None = None


class CutImage:
    """The state of a share at one moment. Thread-safe.

    Args:
        task: The ps, for messages.
        moment: Moment of the image.
        blocks: Blocks of arrays.
        tables: Parts of growing tables; empty for a reader that wants none.
        most: Bytes of a piece.
        room: Most bytes of copies.
        with_slots: Whether slots go with the values.
        rooms: Memory for copies of blocks.
        rows: Rows that a reader has named, by range of its layout.
    """

    def __init__(
        self,
        task: TaskId,
        moment: Moment,
        blocks: Sequence[Block],
        tables: Sequence[RowsByKey],
        *,
        most: int,
        room: int,
        with_slots: bool,
        rooms: Rooms,
        rows: Sequence[Array] = (),
    ) -> None:
        self.moment = moment
        self._rows = rows
        self._task = task
        self._lock = threading.Lock()
        self._memory = KeptMemory(task, moment.number, room, _SAVE_S if with_slots else _UNREAD_S)
        self.blocks = [
            BlockImage(
                block,
                most,
                with_slots=with_slots,
                memory=self._memory,
                rooms=rooms.get(id(block), ()),
            )
            for block in blocks
        ]
        self._memory.held = sum(piece.held_bytes for image in self.blocks for piece in image.pieces)
        self.tables = [TableCopy(part, most) for part in tables]
        self._most = most
        self._reading = self._values()
        self._next = 0
        self._by_block: dict[int, BlockImage | TableCopy] = {
            id(image.block): image for image in self.blocks
        }
        self._by_block |= {id(table.block): table for table in self.tables}

    def before(self, block: PushTarget, parts: Sequence[UpdatePart]) -> None:
        """Keep what a push is about to change. The caller locks the block."""
        image = self._by_block.get(id(block))
        if image is None or self._memory.void_because:  # a block that was made later
            return
        if (taken := image.keep(parts)) and not self._memory.take(taken):
            self._by_block = {}
            self.blocks, self.tables = [], []

    def drop(self, why: str) -> None:
        """Keep nothing any more; who still reads gets a ``CutVoidError``."""
        self._memory.drop(why)
        with self._lock:
            self._by_block, self._rows = {}, ()

    # -- reading -------------------------------------------------------------------------------

    def check_reader(self, who: Incarnation | None) -> None:
        """Check that the cut was taken for the one who reads it; None: a checkpoint.

        Raises:
            PermissionDeniedError: It was taken for somebody else. Each value is read once, so two
                who read would both miss some.
        """
        reader = self.moment.reader
        if reader != who:
            raise PermissionDeniedError(
                f"{self._task}: cut {self.moment.number} was taken for {reader or 'a checkpoint'}, "
                f"so {who or 'a checkpoint'} may not read it; have the chief take another one",
                number=self.moment.number,
                task=self._task,
            )

    def take_rows(self) -> Sequence[Array]:
        """Take the rows that a reader has named; once.

        Raises:
            CutVoidError: They are not here any more.
        """
        with self._lock:
            rows, self._rows = self._rows, ()
        if not rows:
            raise CutVoidError(
                f"cut {self.moment.number} has no rows that were named here",
                number=self.moment.number,
            )
        return rows

    def read(self, number: int) -> list[Elements]:
        """Read some values; nothing when there are no more.

        Args:
            number: 0 for the first ones, then ascending: each is read once.

        Raises:
            CutVoidError: The values were not kept, or have been read.
        """
        with self._lock:
            if number != self._next:
                raise CutVoidError(
                    f"part {number} of cut {self.moment.number} was asked for when part "
                    f"{self._next} was next: its values are read once, by one task",
                    number=self.moment.number,
                )
            self._next += 1
        self.check()
        return next(self._reading, [])

    def _values(self) -> Iterator[list[Elements]]:
        for image in self.blocks:
            for piece in image.pieces:
                with image.block.lock:
                    taken = piece.keep(image.block)
                    kept, held = piece.take()
                self._memory.free(held - taken)
                found = [
                    _elements(tensor, values)
                    for tensor, values in zip(piece.tensors, kept or (), strict=True)
                ]
                if piece.num_bytes <= self._most:
                    for first in range(0, len(found), _MOST_ARRAYS):
                        yield found[first : first + _MOST_ARRAYS]
                    continue
                for each in found:  # a row that does not fit
                    step = max(1, self._most // each.values.itemsize)
                    for first in range(0, each.values.size, step):
                        part = each.values[first : first + step]
                        yield [replace(each, start=each.start + first, values=part)]

    def check(self) -> None:
        """See :meth:`KeptMemory.check`."""
        self._memory.check()


def _elements(tensor: PlannedTensor, values: Array) -> Elements:
    shard = tensor.shard
    start = tensor.row_offset * (shard.size // max(1, shard.rows))
    return Elements(shard.variable.name, shard.variable.shape, start, values)
