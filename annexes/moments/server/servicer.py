"""The calls about cuts, and about checkpoints that are of one moment or have only changes."""

from collections.abc import Sequence
from dataclasses import dataclass

from ....core.arrays.dtypes import Array
from ....core.checkpoint.folder import Folder
from ....core.checkpoint.manifest import SavedPart
from ....core.errors import CutVoidError
from ....core.task import Incarnation
from ....core.wire import codec
from ....core.wire.bounds import MAX_LEASE_S, check_number
from ....core.wire.cut_marks import CutMark, elements_to_wire, marks_to_wire
from ....net.auth.guard import Visitor
from ....proto.v1 import ps_pb2
from ....server.ps.block_reader import COPY_BYTES, BlockReader, TableCopy
from ....server.ps.parts import ServedPs
from ....server.ps.saving import SaveSource, save_shards
from ....server.ps.store import Store
from .cuts import ShareCuts
from .deltas import BaseMarks, Bases
from .image import BlockImage, CutImage

# -- Checkpoints of a store at one moment, and those that have only what changed ---------------
# Of a cut all is of one moment: what a push changes is kept for it (``image.py``). Of a delta only
# what changed since a whole checkpoint is written of growing tables and of large arrays, where that
# is known and not too much.


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """An order to save.

    Attributes:
        checkpoint: Name of the checkpoint.
        base: Whole checkpoint since which changes are wanted; empty: everything is.
        may_be_base: Whether deltas that follow may name this one.
    """

    checkpoint: str = ""
    base: str = ""
    may_be_base: bool = False


WHOLE = SaveOrder()


class MomentSource(SaveSource):
    """The content of a checkpoint that is of a cut, or a delta.

    Args:
        store: The store.
        image: State of the store at one moment; None: each tile is of the moment it is copied.
        order: Whether it is a delta, and whether deltas of it may follow.
    """

    def __init__(self, store: Store, image: CutImage | None, order: SaveOrder) -> None:
        super().__init__(store)
        self._image = image
        self._order = order
        self._bases = store.part(Bases)

    @property
    def pushes(self) -> int:
        """See :attr:`SaveSource.pushes`."""
        return super().pushes if self._image is None else self._image.moment.pushes

    @property
    def global_step(self) -> int:
        """See :attr:`SaveSource.global_step`."""
        return super().global_step if self._image is None else self._image.moment.global_step

    def readers(self, most: int) -> Sequence[BlockReader]:
        """See :meth:`SaveSource.readers`."""
        arrays, tables = self._whole(most)
        marks = self._bases.of(self._order.base)
        changed = [(image, _changed_rows(image, marks)) for image in arrays]
        return [
            *(image for image, rows in changed if rows is None),
            *(rows for _, rows in changed if rows is not None),
            *(_changed_keys(table, marks) or table for table in tables),
        ]

    def _whole(self, most: int) -> tuple[list[BlockImage], list[TableCopy]]:
        if self._image is not None:
            self._image.check()
            return self._image.blocks, self._image.tables
        if self._order.may_be_base:
            self._bases.begin()
        table = self._store.table
        arrays = [BlockImage(block, most) for block in table.blocks()]
        return arrays, [TableCopy(part, most) for part in table.tables()]

    def check(self) -> None:
        """See :meth:`SaveSource.check`.

        Raises:
            CutVoidError: What the image is of was not kept.
        """
        if self._image is not None:
            self._image.check()


def save_moment(
    store: Store,
    directory: str | Folder,
    copy_bytes: int = COPY_BYTES,
    image: CutImage | None = None,
    order: SaveOrder = WHOLE,
) -> SavedPart:
    """Write a store's part of a checkpoint, of one moment or as a delta; see :func:`save_shards`.

    Args:
        store: The shards of this ps.
        directory: Directory of the checkpoint.
        copy_bytes: Bytes copied at a time.
        image: State of the store at one moment; None: each tile is of the moment it is copied.
        order: Whether it is a delta, and whether deltas of it may follow.

    Raises:
        OSError: The file system refused.
        CutVoidError: What the image is of was not kept.
    """
    part = save_shards(store, directory, copy_bytes, MomentSource(store, image, order))
    bases = store.part(Bases)
    if order.may_be_base:
        bases.commit(order.checkpoint, 0 if image is None else image.moment.number)
    elif not order.base:
        bases.clear()  # no delta follows
    return part


def _changed_rows(image: BlockImage, marks: BaseMarks) -> BlockReader | None:
    mark = marks.get(image.block)
    if mark is None:
        return None
    from .deltas import delta_of_array  # most jobs write no deltas

    return delta_of_array(image, mark)


def _changed_keys(table: TableCopy, marks: BaseMarks) -> BlockReader | None:
    mark = marks.get(table.block)
    if mark is None:
        return None
    from .deltas import delta_of_table  # a ps without tables never loads it

    return delta_of_table(table, mark)


# -- The calls -----------------------------------------------------------------------------------


class CutCalls:
    """Serves the calls about cuts. Thread-safe.

    Args:
        served: The ps.
    """

    def __init__(self, served: ServedPs) -> None:
        self._task = served.task
        self._shares = served.shares
        self._lease = served.lease
        self._rows_of = served.rows_of

    def _cuts(self, share: int) -> ShareCuts:
        return self._shares.led(share).part(ShareCuts)

    def save(self, store: Store, folder: Folder, request: ps_pb2.SaveShardsRequest) -> SavedPart:
        """Write a store's part of a checkpoint: of a cut, if it names one, or what changed."""
        image = store.part(ShareCuts).kept(request.cut, None) if request.cut else None
        order = SaveOrder(request.checkpoint, request.base, request.may_be_base)
        return save_moment(store, folder, image=image, order=order)

    def rows(self, store: Store, number: int, who: Incarnation | None) -> Sequence[Array]:
        """Take the rows that a cut has for a reader."""
        return store.part(ShareCuts).kept(number, who).take_rows()

    def BeginCut(self, request: ps_pb2.BeginCutRequest, _: Visitor) -> ps_pb2.BeginCutResponse:
        """Hold pushes that are not in a cut. A repeat changes nothing."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        check_number(request.hold_s, MAX_LEASE_S, "hold_s", self._task)
        workers = {codec.incarnation_from_wire(each) for each in request.workers}
        store = self._shares.led(request.share)
        reader = codec.incarnation_from_wire(request.reader) if request.HasField("reader") else None
        store.part(ShareCuts).begin(
            request.cut,
            workers,
            request.hold_s,
            with_slots=request.with_slots,
            may_be_base=request.may_be_base,
            reader=reader,
            rows=(lambda: self._rows_of(store, reader)) if request.rows_only else None,
        )
        return ps_pb2.BeginCutResponse()

    def MarkCut(self, request: ps_pb2.MarkCutRequest, _: Visitor) -> ps_pb2.MarkCutResponse:
        """Take a worker's mark. A repeat changes nothing."""
        who = codec.sender_of(request)
        self._lease.check_job(who)
        cuts = self._cuts(request.share)
        cuts.mark(request.cut, who, CutMark(request.sequence, request.pushes))
        return ps_pb2.MarkCutResponse()

    def FinishCut(self, request: ps_pb2.FinishCutRequest, _: Visitor) -> ps_pb2.FinishCutResponse:
        """Wait until all workers have marked, or the cut is void. May be repeated."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        try:
            moment = self._cuts(request.share).finish(request.cut)
        except CutVoidError as error:
            return ps_pb2.FinishCutResponse(void_because=error.message)
        return ps_pb2.FinishCutResponse(
            global_step=moment.global_step,
            marks=marks_to_wire(moment.marks),
        )

    def ReadCut(self, request: ps_pb2.ReadCutRequest, _: Visitor) -> ps_pb2.ReadCutResponse:
        """Read a piece of the values of a cut that was taken for the caller. Each is read once, in
        order.
        """
        who = codec.sender_of(request)
        self._lease.check_job(who)
        image = self._cuts(request.share).kept(request.cut, who)
        values = [elements_to_wire(each) for each in image.read(request.piece)]
        return ps_pb2.ReadCutResponse(values=values)

    def EndCut(self, request: ps_pb2.EndCutRequest, _: Visitor) -> ps_pb2.EndCutResponse:
        """Let pushes go on, and keep nothing of a cut. Idempotent."""
        self._lease.check_chief(codec.incarnation_from_wire(request.chief))
        self._cuts(request.share).end(request.cut)
        return ps_pb2.EndCutResponse()
