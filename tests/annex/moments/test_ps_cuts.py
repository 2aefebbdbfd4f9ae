"""Cuts of some stores: whose pushes wait, and what is kept while others go on."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.calls import Calls
from helpers.rules import Adam
from helpers.tables import gradients, table
from helpers.waiting import scaled
from ropewalk.annexes.moments.server.cuts import ShareCuts
from ropewalk.annexes.moments.server.image import Rooms
from ropewalk.annexes.moments.server.servicer import save_moment
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.errors import CutVoidError, FencedError
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.cut_marks import CutMark
from ropewalk.core.wire.steps import Operation
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.server.ps.saving import save_shards
from ropewalk.server.ps.store import Store

F32 = np.dtype(np.float32)
SETTINGS = Settings(cut_hold_s=min(60, scaled(20)), max_message_bytes=1024 * 1024)
WORKERS = [Incarnation(TaskId("worker", index), index + 1) for index in range(3)]
SMALL = VariableDefinition("small", (3,), F32, Initializer("zeros"))
LARGE = VariableDefinition("large", (700_000, 2), F32, Initializer("zeros"))  # two pieces


class Workers:
    """Sessions of some workers with some stores of this process."""

    def __init__(self, stores: int = 1, **changes: Any) -> None:
        settings = SETTINGS.model_copy(update=changes)
        self.stores = [Store(TaskId("ps", index), settings) for index in range(stores)]
        self.sessions = [
            ParameterSession(
                [LocalPs(each.task, who, settings, each) for each in self.stores], who, settings
            )
            for who in WORKERS
        ]
        for session in self.sessions:
            session.connect()
        self.pool = ThreadPoolExecutor(4)

    def define(self, *definitions: VariableDefinition, rule: Any = None) -> None:
        for index, session in enumerate(self.sessions):
            session.define(definitions, {}, create=not index)
            if rule is not None:
                session.bind([each.name for each in definitions], rule)

    def add(self, worker: int, name: str, amount: float = 1) -> None:
        shape = self.sessions[worker].variables.definition(name).shape
        value = np.full(shape, amount, np.float32)
        self.sessions[worker].step(Step([Write(Operation.ASSIGN_ADD, {name: value})]))

    def adding(self, worker: int, name: str) -> Future[None]:
        return self.pool.submit(self.add, worker, name)

    def begin(
        self, number: int = 1, workers: int = 2, hold_s: float = scaled(20), *, slots: bool = True
    ) -> None:
        for store in self.stores:
            store.part(ShareCuts).begin(number, {*WORKERS[:workers]}, hold_s, with_slots=slots)

    def value(self, name: str) -> Array:
        return np.array(self.sessions[2].step(Step(reads=[name])).values[name])

    def saved(self, folder: Path, number: int = 1) -> dict[str, Array]:
        image = self.stores[0].part(ShareCuts).kept(number, None)
        save_moment(self.stores[0], str(folder), image=image)
        return dict(load_file(folder / "ps-0.safetensors"))


@pytest.fixture
def workers() -> Iterator[Callable[..., Workers]]:
    made: list[Workers] = []

    def make(*definitions: VariableDefinition, rule: Any = None, **changes: Any) -> Workers:
        made.append(Workers(**changes))
        made[-1].define(*definitions, rule=rule)
        return made[-1]

    yield make
    for each in made:
        each.pool.shutdown()


def waits(push: Future[None]) -> bool:
    threading.Event().wait(0.1)
    return not push.done()


# -- whose pushes wait ---------------------------------------------------------------------------


def test_a_push_after_the_mark_waits_for_the_marks_of_all(workers: Callable[..., Workers]) -> None:
    job = workers(SMALL)
    job.add(0, "small")
    job.begin()
    assert job.sessions[0].mark_cut(1)
    late = job.adding(0, "small")
    assert waits(late)
    job.add(1, "small", 10)  # it has not marked
    assert job.value("small")[0] == 11  # a pull waits for nobody
    assert job.sessions[1].mark_cut(1)
    late.result(scaled(10))
    moment = job.stores[0].part(ShareCuts).finish(1)
    assert moment.marks == {WORKERS[0]: CutMark(1, 1), WORKERS[1]: CutMark(1, 1)}
    assert job.value("small")[0] == 12
    assert job.stores[0].part(ShareCuts).gate is None


def test_a_session_whose_push_waits_is_not_free(workers: Callable[..., Workers]) -> None:
    job = workers(SMALL)
    job.begin()
    late = job.adding(2, "small")
    assert waits(late)
    assert not job.sessions[2].is_free(0.01)
    assert job.sessions[1].is_free(scaled(1))
    job.stores[0].part(ShareCuts).end(1)
    late.result(scaled(10))
    assert job.sessions[2].is_free(scaled(1))


def test_a_worker_that_the_cut_is_not_of_waits_from_the_beginning(
    workers: Callable[..., Workers],
) -> None:
    job = workers(SMALL)
    job.begin()
    other = job.adding(2, "small")
    assert waits(other)
    for session in job.sessions[:2]:
        session.mark_cut(1)
    other.result(scaled(10))
    with pytest.raises(FencedError, match=r"is over"):
        job.stores[0].part(ShareCuts).mark(1, WORKERS[2], CutMark(0, 0))


def test_pushes_go_on_when_a_mark_does_not_come_in_time(workers: Callable[..., Workers]) -> None:
    job = workers(SMALL)
    job.begin(hold_s=0.3)
    job.sessions[0].mark_cut(1)
    job.add(0, "small")
    with pytest.raises(CutVoidError, match="no mark of worker:1 in time"):
        job.stores[0].part(ShareCuts).finish(1)
    assert not job.sessions[1].mark_cut(1)  # it comes too late, and is told so
    job.begin(2)
    for session in job.sessions[:2]:
        session.mark_cut(2)
    assert job.stores[0].part(ShareCuts).finish(2).number == 2


@pytest.mark.parametrize("marking", [0, 2], ids=["of no workers", "after the last mark"])
def test_no_push_goes_on_while_the_values_are_taken(
    workers: Callable[..., Workers],
    marking: int,
    tmp_path: Path,
    calls: Calls,
) -> None:
    job = workers(SMALL)
    cuts, pushes = job.stores[0].part(ShareCuts), list[Future[None]]()

    def push(*_: Any, **__: Any) -> None:
        pushes.append(job.adding(0, "small"))
        assert waits(pushes[0])

    calls.before(cuts, "_take_image", push)
    job.begin(workers=marking)
    for session in job.sessions[:marking]:
        assert session.mark_cut(1)
    cuts.finish(1)
    pushes[0].result(scaled(10))
    assert job.saved(tmp_path)["small"].tolist() == [0, 0, 0]
    assert job.value("small").tolist() == [1, 1, 1]


def test_a_mark_that_was_on_its_way_for_long_makes_the_cut_void(
    workers: Callable[..., Workers],
) -> None:
    job = workers(SMALL)
    job.begin()
    job.add(0, "small")
    job.stores[0].part(ShareCuts).mark(1, WORKERS[0], CutMark(0, 0))
    with pytest.raises(CutVoidError, match=r"marked push 0, and push 1 is here"):
        job.stores[0].part(ShareCuts).finish(1)


def test_a_later_cut_ends_an_earlier_one_and_an_old_order_is_refused(
    workers: Callable[..., Workers],
) -> None:
    job = workers(SMALL)
    job.begin(1)
    job.sessions[0].mark_cut(1)
    late = job.adding(0, "small")
    job.begin(2, workers=1)
    late.result(scaled(10))
    with pytest.raises(FencedError, match="cut 1 was begun after cut 2"):
        job.begin(1)
    with pytest.raises(CutVoidError, match="cut 1 is not under way"):
        job.stores[0].part(ShareCuts).finish(1)


def test_the_chief_may_give_a_cut_up(workers: Callable[..., Workers]) -> None:
    job = workers(SMALL)
    job.begin(1)
    late = job.adding(2, "small")
    job.stores[0].part(ShareCuts).end(1)
    late.result(scaled(10))
    assert job.stores[0].part(ShareCuts).gate is None


def test_counts_on_all_ps_are_equal_in_every_cut(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    """Three workers count on two ps as fast as they can, one of them on one ps now and then."""
    counts = [VariableDefinition(f"count{ps}", (3,), F32, Initializer("zeros")) for ps in range(2)]
    job = workers(*counts, stores=2)
    ends = threading.Event()

    def count(worker: int) -> None:
        one = np.eye(3, dtype=np.float32)[worker]
        while not ends.is_set():
            both = {each.name: one for each in counts}
            job.sessions[worker].step(Step([Write(Operation.ASSIGN_ADD, both)]))

    counting = [job.pool.submit(count, worker) for worker in range(3)]
    for number in range(1, 9):
        job.begin(number, workers=3)
        for session in job.sessions:
            assert session.mark_cut(number)
        marks = job.stores[0].part(ShareCuts).finish(number).marks
        job.stores[1].part(ShareCuts).finish(number)
        found = []
        for store in job.stores:
            image = store.part(ShareCuts).kept(number, None)
            save_moment(store, str(tmp_path), image=image)
            found += list(load_file(tmp_path / f"ps-{store.share}.safetensors").values())
        expected = [mark.pushes for _, mark in sorted(marks.items(), key=str)]
        assert [values.tolist() for values in found] == [expected] * 2
    ends.set()
    for each in counting:
        each.result(scaled(10))


# -- what is kept --------------------------------------------------------------------------------


def _taken(job: Workers, *, slots: bool = True) -> None:
    job.begin(workers=0, slots=slots)
    job.stores[0].part(ShareCuts).finish(1)


def test_values_and_slots_are_those_of_the_cut_whatever_comes_after(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    job = workers(SMALL, LARGE, rule=Adam(learning_rate=0.5))
    random = np.random.default_rng(0)  # every element is another one
    shapes = {name: job.sessions[0].variables.definition(name).shape for name in ("small", "large")}
    push = [Write(Operation.APPLY, {name: random.standard_normal(shape, np.float32)
                        for name, shape in shapes.items()})]  # fmt: skip
    job.sessions[0].step(Step(push, increment=1))
    store = job.stores[0]
    save_shards(store, str(tmp_path / "before"))
    before = load_file(tmp_path / "before" / "ps-0.safetensors")
    _taken(job)
    job.sessions[0].step(Step(push, increment=1))
    assert store.global_step == 2
    after = job.saved(tmp_path / "cut")
    assert after.keys() == before.keys()
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    assert store.part(ShareCuts).kept(1, None).moment.global_step == 1


def test_of_rows_only_the_pieces_that_change_are_kept(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    job = workers(LARGE)
    _taken(job)
    [large] = job.stores[0].part(ShareCuts).kept(1, None).blocks
    assert len(large.pieces) == 2
    assert [piece.room for piece in large.pieces] == [None, None]  # nothing is pushed whole
    rows = IndexedSlices(np.ones((2, 2), np.float32), np.array([1, 3]))
    job.sessions[0].step(Step([Write(Operation.ASSIGN_ADD, {"large": rows})]))
    assert [piece.kept is not None for piece in large.pieces] == [True, False]
    saved = job.saved(tmp_path)
    assert all((values == 0).all() for values in saved.values())
    assert [piece.kept for piece in large.pieces] == [None, None]  # the memory is given back
    job.add(0, "large")
    assert [piece.kept for piece in large.pieces] == [None, None]  # it was read
    assert job.value("large")[1].tolist() == [2, 2]


def test_memory_for_what_is_pushed_whole_is_there_before_pushes_wait(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    job = workers(SMALL, LARGE, rule=Adam(learning_rate=0.5))
    whole = [Write(Operation.APPLY, {"large": np.ones(LARGE.shape, np.float32)})]
    job.sessions[0].step(Step(whole, increment=1))
    _taken(job)
    [small, large] = job.stores[0].part(ShareCuts).kept(1, None).blocks
    assert [piece.room for piece in small.pieces] == [None]
    rooms = [piece.room for piece in large.pieces]
    assert [room.size for room in rooms if room is not None] == [
        piece.num_bytes for piece in large.pieces
    ]
    job.sessions[0].step(Step(whole, increment=1))
    for piece, room in zip(large.pieces, rooms, strict=True):
        assert piece.kept is not None
        assert len(piece.kept) == 3  # the values and both slots
        assert all(np.shares_memory(copy, room) for copy in piece.kept)
    job.saved(tmp_path)
    assert all(piece.kept is None for piece in large.pieces)  # it is given back
    assert all(piece.room is None for piece in large.pieces)


def test_memory_for_a_cut_that_comes_to_nothing_is_given_back(
    workers: Callable[..., Workers], calls: Calls
) -> None:
    made: list[weakref.ref[Array]] = []

    def note(rooms: Rooms, *_: Any, **__: Any) -> None:
        made.extend(weakref.ref(room) for each in rooms.values() for room in each)

    calls.after("ropewalk.annexes.moments.server.cuts", "make_rooms", note)
    job = workers(LARGE)
    job.add(0, "large")
    job.begin()
    assert [ref() is not None for ref in made] == [True, True]
    job.stores[0].part(ShareCuts).end(1)
    assert [ref() for ref in made] == [None, None]


def test_memory_for_a_cut_is_made_once_though_its_order_is_repeated_meanwhile(
    workers: Callable[..., Workers], calls: Calls
) -> None:
    making, again = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> None:
        (again if making.is_set() else making).set()
        again.wait(0.2)  # as long as the other order would take to come here

    calls.before("ropewalk.annexes.moments.server.cuts", "make_rooms", slow)
    job = workers(LARGE)
    job.add(0, "large")
    first = job.pool.submit(job.begin)
    assert making.wait(scaled(10))
    job.begin()
    first.result(scaled(10))
    assert not again.is_set()
    for session in job.sessions[:2]:
        assert session.mark_cut(1)
    job.stores[0].part(ShareCuts).finish(1)


def test_slots_that_are_bound_while_a_cut_waits_are_in_it(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    job = workers(LARGE)
    job.add(0, "large")
    job.begin()  # with memory for the values alone
    job.sessions[0].bind(["large"], Adam(learning_rate=0.5))
    for session in job.sessions[:2]:
        assert session.mark_cut(1)
    job.stores[0].part(ShareCuts).finish(1)
    job.sessions[0].step(
        Step([Write(Operation.APPLY, {"large": np.ones(LARGE.shape, np.float32)})])
    )
    saved = job.saved(tmp_path)
    assert {name.rpartition(":")[2] for name in saved if name.count(":") > 1} == {
        "momentum",
        "velocity",
    }
    for name, values in saved.items():
        assert (values == (0 if name.endswith(("momentum", "velocity")) else 1)).all()


def test_a_growing_table_is_that_of_the_cut(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    job = workers(table(max_rows=100))
    keys, values = np.arange(5), np.ones((5, 4), np.float32)
    job.sessions[0].step(Step(gradients(t=(keys, values))))
    save_shards(job.stores[0], str(tmp_path / "before"))
    before = load_file(tmp_path / "before" / "ps-0.safetensors")
    _taken(job)
    job.sessions[0].step(Step(gradients(t=(np.arange(50), np.ones((50, 4), np.float32)))))
    after = job.saved(tmp_path / "cut")
    assert after.keys() == before.keys()
    for name, kept in before.items():
        np.testing.assert_array_equal(after[name], kept)


def test_what_does_not_fit_is_not_kept_and_training_goes_on(
    workers: Callable[..., Workers], tmp_path: Path
) -> None:
    job = workers(LARGE, max_ps_bytes=LARGE.num_bytes + 1000)
    job.add(0, "large", 0)
    _taken(job)
    [large] = job.stores[0].part(ShareCuts).kept(1, None).blocks
    assert [piece.room for piece in large.pieces] == [None, None]
    job.add(0, "large")
    with pytest.raises(CutVoidError, match=r"1000 are left of max_ps_bytes"):
        job.saved(tmp_path)
    assert job.value("large")[0, 0] == 1


def test_a_piece_that_changes_while_it_is_copied_is_that_of_the_cut(
    workers: Callable[..., Workers], tmp_path: Path, calls: Calls
) -> None:
    job = workers(LARGE)
    _taken(job)
    pushes = iter([1.0])

    def push(_: float) -> None:  # between two ranges of a piece
        for amount in pushes:
            job.add(0, "large", amount)

    calls.before(time, "sleep", push)
    saved = job.saved(tmp_path)
    assert all((values == 0).all() for values in saved.values())
    assert job.value("large")[0, 0] == 1


def test_a_reader_gets_all_values_of_the_cut_once(workers: Callable[..., Workers]) -> None:
    wide = VariableDefinition("wide", (2, 200_000), F32, Initializer("ones"))  # a row is too long
    job = workers(SMALL, LARGE, wide)
    _taken(job, slots=False)
    for name in ("small", "large", "wide"):
        job.add(0, name)
    image = job.stores[0].part(ShareCuts).kept(1, None)
    found = {each.name: np.full(each.shape, -1, np.float32) for each in (SMALL, LARGE, wide)}
    number = 0
    while parts := image.read(number):
        assert sum(part.values.nbytes for part in parts) <= SETTINGS.max_message_bytes // 2
        for part in parts:
            flat = found[part.variable].reshape(-1)
            flat[part.start : part.start + part.values.size] = part.values
        number += 1
    assert (found["small"] == 0).all()
    assert (found["large"] == 0).all()
    assert (found["wide"] == 1).all()
    with pytest.raises(CutVoidError, match="read once"):
        image.read(0)


def test_nothing_is_kept_of_a_cut_that_is_over(workers: Callable[..., Workers]) -> None:
    job = workers(SMALL)
    _taken(job)
    job.stores[0].part(ShareCuts).end(1)
    assert job.stores[0].part(ShareCuts).image is None
    with pytest.raises(CutVoidError, match="not here"):
        job.stores[0].part(ShareCuts).kept(1, None)
