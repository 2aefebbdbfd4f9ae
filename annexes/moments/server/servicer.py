"""The calls about cuts, and about checkpoints that are of one moment or have only changes."""

from collections.abc import Sequence

from ....core.arrays.dtypes import Array
from ....core.checkpoint.folder import Folder
from ....core.checkpoint.saved_part import SavedPart
from ....core.errors import CutVoidError
from ....core.task import Incarnation
from ....core.wire import codec
from ....core.wire.bounds import MAX_LEASE_S, check_number
from ....core.wire.cut_marks import CutMark, elements_to_wire, marks_to_wire
from ....net.auth.guard import Visitor
from ....proto.v1 import ps_pb2
from ....server.ps.moments import ServedPs
from ....server.ps.store import Store
from .cuts import ShareCuts
from .saving import SaveOrder, save_moment


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
