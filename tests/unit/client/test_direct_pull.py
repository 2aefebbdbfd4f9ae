"""Reading values out of a ps's memory: what may be read when, what is left out, what gives up."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.client.ps import direct_pull
from ropewalk.client.ps.direct_pull import Copy, DirectPull, MemoryReading
from ropewalk.core.arrays.dtypes import Array, DType
from ropewalk.core.arrays.gather_buffer import GatherBuffer, copy_into
from ropewalk.core.rules.definitions import ShardKey
from ropewalk.core.wire.steps import (
    HEADER_BYTES,
    LayoutEntry,
    MemoryLocation,
    MemoryRegion,
    Operation,
    PullTarget,
    StepRequest,
)
from ropewalk.core.wire.steps import WireLayout as Layout
from ropewalk.net.shared_memory import SharedSegment, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())

LINE = 64
F32, F16, U8 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint8)


class Memory:
    """A ps's memory: blocks of shards ``v0, v1, …``, as its arena lays them out.

    Args:
        blocks: Per block, the bytes of its shards.
        dtype: The dtype of all of them.
        slabs: In so many segments.
    """

    def __init__(
        self, blocks: Sequence[Sequence[int]], dtype: DType = F32, *, slabs: int = 1
    ) -> None:
        total = sum(2 * LINE + sum(sizes) for sizes in blocks)
        self.segments = [SharedSegment.create(total) for _ in range(slabs)]
        self.regions: dict[ShardKey, MemoryRegion] = {}
        self.sequences: list[Array] = []
        self.block_of: dict[str, int] = {}
        used, number = [HEADER_BYTES] * slabs, 0
        for block, sizes in enumerate(blocks):
            slab = block % slabs
            segment, start = self.segments[slab], used[slab]
            self.sequences.append(segment.memory[start : start + 8].view(np.int64))
            offset = start + LINE
            for size in sizes:
                location = MemoryLocation(slab, offset, start)
                self.regions[f"v{number}", 0] = MemoryRegion(location, size, dtype)
                self.block_of[f"v{number}"] = block
                offset, number = offset + size, number + 1
            used[slab] = -(-offset // LINE) * LINE

    def values(self, name: str) -> Array:
        """A shard's bytes."""
        region = self.regions[name, 0]
        segment = self.segments[region.memory.slab]
        return segment.memory[region.memory.offset : region.memory.offset + region.num_bytes]

    def write(self, name: str, value: int) -> None:
        """As the ps writes: the block's sequence moves by two."""
        sequence = self.sequences[self.block_of[name]]
        sequence[0] += 1
        self.values(name)[:] = value
        sequence[0] += 1

    def into(self, names: Sequence[str], *, cuts: Sequence[int] = ()) -> list[memoryview]:
        """Where a pull of these goes; ``cuts``: after so many shards a new span begins."""
        ends = [*cuts, len(names)]
        starts = [0, *cuts]
        return [
            memoryview(bytearray(sum(self.regions[n, 0].num_bytes for n in names[start:end])))
            for start, end in zip(starts, ends, strict=True)
        ]

    def blocks(self, pull: DirectPull) -> list[int]:
        """Whose block each copy reads."""
        numbers = {self.regions[name, 0].block: block for name, block in self.block_of.items()}
        return [numbers[copy.block] for copy in pull._copies or ()]


def pulling(*names: str, number: int = 1) -> Layout:
    return Layout(number, tuple(LayoutEntry(name, 0, Operation.PULL) for name in names))


def pushing(*names: str, number: int = 2, dtype: DType | None = None) -> Layout:
    return Layout(
        number, tuple(LayoutEntry(name, 0, Operation.APPLY, dtype=dtype) for name in names)
    )


def of_bytes(count: int) -> list[GatherBuffer]:
    return [GatherBuffer([np.zeros(count, np.uint8)], U8, count)]


def dense(memory: Memory, *names: str) -> StepRequest:
    """A push of whole shards."""
    total = sum(memory.regions[name, 0].num_bytes for name in names)
    return StepRequest(1, pushing(*names), values=of_bytes(total))


def pull_of(memory: Memory, *names: str) -> DirectPull:
    total = sum(memory.regions[name, 0].num_bytes for name in names)
    slabs = dict(enumerate(memory.segments))
    return DirectPull(pulling(*names), total, memory.regions, slabs)


def begin(
    memory: Memory,
    pull: DirectPull,
    into: Sequence[memoryview] | None = None,
    *,
    in_place: bool = False,
) -> MemoryReading:
    names = [entry.variable for entry in pull.layout.entries]
    where = memory.into(names) if into is None else into
    return pull.begin(PullTarget(where, where if in_place else None))


def ready(memory: Memory, pull: DirectPull, request: StepRequest) -> dict[int, int] | None:
    """Per block that is pulled, what ``ready`` says."""
    begin(memory, pull)
    needs = pull.ready(request)
    return None if needs is None else dict(zip(memory.blocks(pull), needs, strict=True))


# -- where copies come from and go -------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (["v0", "v1", "v2", "v3"], [24, 16]),
        (["v1", "v0"], [12, 8]),
        (["v0", "v2"], [8, 4]),
        (["v0", "v3", "v1"], [8, 16, 12]),
        (["v1", "v2", "v0"], [16, 8]),
    ],
    ids=["all", "the-other-way-round", "one-between", "another-block-between", "two-of-three"],
)
def test_neighbours_are_one_copy_and_nothing_else(names: list[str], sizes: list[int]) -> None:
    memory = Memory([[8, 12, 4], [16]])
    pull = pull_of(memory, *names)
    begin(memory, pull)
    assert [copy.source.size for copy in pull._copies or ()] == sizes


def test_neighbours_for_different_spans_are_not_one_copy() -> None:
    memory = Memory([[8, 12, 4]])
    names = ["v0", "v1", "v2"]
    for value, name in enumerate(names, 1):
        memory.write(name, value)
    pull = pull_of(memory, *names)
    into = memory.into(names, cuts=[1])
    assert begin(memory, pull, into).go_on()
    assert [bytes(span) for span in into] == [b"\1" * 8, b"\2" * 12 + b"\3" * 4]
    assert [(copy.span, copy.start, copy.stop) for copy in pull._copies or ()] == [
        (0, 0, 8),
        (1, 0, 16),
    ]


# -- what may be read when ---------------------------------------------------------------------


def test_blocks_of_different_segments_are_different_blocks() -> None:
    """Their offsets are the same."""
    memory = Memory([[8], [8]], slabs=2)
    pull = pull_of(memory, "v0", "v1")
    assert ready(memory, pull, dense(memory, "v0", "v1")) == {0: 8, 1: 16}


ROWS = (np.arange(2, dtype=np.int64),)
NO_ROWS = (np.empty(0, np.int64),)


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(
            lambda push, size: StepRequest(1, push, push_rows=ROWS, values=of_bytes(size - 16)),
            id="rows",
        ),
        pytest.param(
            lambda push, size: StepRequest(1, push, push_rows=NO_ROWS, values=of_bytes(size)),
            id="no-rows-in-this-part",
        ),
        pytest.param(
            lambda push, size: StepRequest(1, push, pull_rows=ROWS, values=of_bytes(size - 16)),
            id="rows-pulled",
        ),
        pytest.param(lambda push, size: StepRequest(1, None, values=of_bytes(size)), id="no-push"),
        pytest.param(
            lambda push, size: StepRequest(1, push, values=of_bytes(size - 4)), id="another-size"
        ),
        pytest.param(
            lambda push, size: StepRequest(
                1, pushing("v0", "v1", dtype=F16), values=of_bytes(size // 2)
            ),
            id="another-dtype",
        ),
        pytest.param(
            lambda push, size: StepRequest(1, pushing("v0", "elsewhere"), values=of_bytes(size)),
            id="a-variable-elsewhere",
        ),
    ],
)
def test_nothing_is_ready_before_the_answer_where_bytes_do_not_tell(
    request_of: Callable[[Layout, int], StepRequest],
) -> None:
    memory = Memory([[80], [120], [40]])
    pull = pull_of(memory, "v0", "v1", "v2")
    request = request_of(pushing("v0", "v1"), 200)
    assert ready(memory, pull, request) is None


def test_the_dtype_may_be_said_where_it_is_the_same() -> None:
    memory = Memory([[8], [12]])
    pull = pull_of(memory, "v0", "v1")
    request = StepRequest(1, pushing("v0", "v1", dtype=F32), values=of_bytes(20))
    assert ready(memory, pull, request) == {0: 8, 1: 20}


def test_parts_without_values_leave_it_to_the_answer() -> None:
    """All bytes may be applied before the ps comes to a part that has none."""
    memory = Memory([[8, 0], [12]])
    pull = pull_of(memory, "v0", "v2")
    push = dense(
        memory, "v0", "v2", "v1"
    )  # block 0 is not complete before its last part, of no bytes
    assert ready(memory, pull, push) is None
    rows = StepRequest(1, pushing("v0", "v2", "v1"), push_rows=NO_ROWS, values=of_bytes(20))
    assert ready(memory, pull, rows) is None


def test_another_push_is_worked_out_anew() -> None:
    memory = Memory([[8], [12]])
    pull = pull_of(memory, "v0", "v1")
    first, second = dense(memory, "v0", "v1"), dense(memory, "v1", "v0")
    for _ in range(3):
        assert ready(memory, pull, first) == {0: 8, 1: 20}
        assert ready(memory, pull, second) == {1: 12, 0: 20}
        sparse = StepRequest(1, first.push, push_rows=ROWS, values=of_bytes(100))
        assert ready(memory, pull, sparse) is None


@dataclass(frozen=True)
class Case:
    """Blocks, and which shards are pushed and pulled, in order."""

    blocks: list[list[int]]
    push: list[str]
    pull: list[str]


@st.composite
def cases(draw: st.DrawFn, least: int = 1) -> Case:
    sizes = st.integers(least, 5).map(lambda n: 4 * n)
    blocks = draw(st.lists(st.lists(sizes, min_size=1, max_size=4), min_size=1, max_size=5))
    names = [f"v{i}" for i in range(sum(map(len, blocks)))]
    some = st.lists(st.sampled_from(names), unique=True, min_size=1)
    return Case(blocks, draw(some), draw(some))


@given(cases())
def test_ready_is_the_end_of_the_last_byte_that_belongs_to_the_block(case: Case) -> None:
    memory = Memory(case.blocks)
    pull = pull_of(memory, *case.pull)
    begin(memory, pull)
    naive = []
    for block in memory.blocks(pull):
        end = last = 0
        for name in case.push:
            end += memory.regions[name, 0].num_bytes
            if memory.block_of[name] == block:
                last = end
        naive.append(last)
    assert pull.ready(dense(memory, *case.push)) == tuple(naive)


def moments(memory: Memory, push: Sequence[str]) -> Iterator[tuple[int, set[int]]]:
    """What the ps has said it applied, and the blocks it applied, from moment to moment.

    A block is applied when its last part was taken; then the ps says how much it took.
    """
    said, applied = 0, set[int]()
    yield said, applied
    taken = 0
    for index, name in enumerate(push):
        taken += memory.regions[name, 0].num_bytes
        block = memory.block_of[name]
        if block not in {memory.block_of[later] for later in push[index + 1 :]}:
            applied = applied | {block}
            yield said, applied
            said = taken
            yield said, applied


@given(cases(least=0))
def test_nothing_is_read_before_its_push_is_in_it(case: Case) -> None:
    """Also with shards of no bytes."""
    memory = Memory(case.blocks)
    pull = pull_of(memory, *case.pull)
    begin(memory, pull)
    needs = pull.ready(dense(memory, *case.push))
    if needs is None:
        assert any(memory.regions[name, 0].num_bytes == 0 for name in case.push)
        return
    pushed = {memory.block_of[name] for name in case.push}
    for said, applied in moments(memory, case.push):
        for block, need in zip(memory.blocks(pull), needs, strict=True):
            if need <= said:
                assert block in applied or block not in pushed


@given(cases(least=0), st.data())
def test_what_is_read_is_what_is_there_whatever_the_order(case: Case, data: st.DataObject) -> None:
    memory = Memory(case.blocks)
    for number, name in enumerate(case.pull, 1):
        memory.write(name, number)
    cuts = data.draw(st.lists(st.integers(0, len(case.pull)), max_size=3).map(sorted))
    into = memory.into(case.pull, cuts=cuts)
    reading = begin(memory, pull_of(memory, *case.pull), into)
    assert reading.go_on()
    wanted = b"".join(memory.values(name).tobytes() for name in case.pull)
    assert b"".join(bytes(span) for span in into) == wanted
    assert reading.finish() == len(wanted)


# -- reading on --------------------------------------------------------------------------------


def test_reading_stops_where_nothing_is_applied_and_goes_on_from_there() -> None:
    memory = Memory([[8], [12], [4]])
    names = ["v0", "v1", "v2"]
    pull = pull_of(memory, *names)
    into = memory.into(names)
    reading = begin(memory, pull, into)
    assert pull.ready(dense(memory, *names)) == (8, 20, 24)
    asked: list[int] = []

    def may_read(index: int) -> bool:
        asked.append(index)
        return index < 1

    memory.write("v0", 1)
    assert not reading.go_on(may_read)
    assert asked == [0, 1]
    assert bytes(into[0]) == b"\1" * 8 + bytes(16)
    memory.write("v0", 9)  # somebody else's push, after ours was read
    memory.write("v1", 2)
    memory.write("v2", 3)
    assert reading.go_on()
    assert reading.finish() == 24
    assert bytes(into[0]) == b"\1" * 8 + b"\2" * 12 + b"\3" * 4


def test_nothing_is_copied_before_it_is_said_to_be_applied() -> None:
    memory = Memory([[8], [12]])
    names = ["v0", "v1"]
    pull = pull_of(memory, *names)
    into = memory.into(names)
    reading = begin(memory, pull, into)

    def may_read(index: int) -> bool:
        memory.write(names[index], index + 1)
        return True

    assert reading.go_on(may_read)
    assert bytes(into[0]) == b"\1" * 8 + b"\2" * 12


def test_blocks_that_did_not_change_are_left_out_and_the_bytes_said() -> None:
    memory = Memory([[8], [12], [4]])
    names = ["v0", "v1", "v2"]
    pull = pull_of(memory, *names)
    into = memory.into(names)
    reading = begin(memory, pull, into)
    assert reading.go_on()
    assert reading.finish() == 24
    memory.write("v1", 5)
    into[0][0] = 77  # would be overwritten by a copy
    reading = begin(memory, pull, into, in_place=True)
    assert reading.go_on()
    assert reading.finish() == 12
    assert bytes(into[0]) == b"\x4d" + bytes(7) + b"\5" * 12 + bytes(4)
    reading = begin(memory, pull, into, in_place=True)
    assert reading.go_on()
    assert reading.finish() == 0


def test_elsewhere_everything_is_copied() -> None:
    memory = Memory([[8], [12]])
    pull = pull_of(memory, "v0", "v1")
    for _ in range(3):
        reading = begin(memory, pull)
        assert reading.go_on()
        assert reading.finish() == 20


def test_a_reading_that_was_not_finished_leaves_nothing_to_rely_on() -> None:
    memory = Memory([[8], [12]])
    names = ["v0", "v1"]
    pull = pull_of(memory, *names)
    into = memory.into(names)
    reading = begin(memory, pull, into)
    assert reading.go_on()
    reading.finish()
    # A step that failed: some of it was read.
    begin(memory, pull, into, in_place=True).go_on(lambda index: index < 1)
    reading = begin(memory, pull, into, in_place=True)
    assert reading.go_on()
    assert reading.finish() == 20


def test_a_block_that_is_always_being_written_gives_up_and_can_be_tried_again() -> None:
    memory = Memory([[8], [12], [4]])
    names = ["v0", "v1", "v2"]
    pull = pull_of(memory, *names)
    into = memory.into(names)
    memory.write("v0", 1)
    memory.sequences[1][0] += 1
    reading = begin(memory, pull, into)
    assert not reading.go_on(timeout_s=0.01)
    assert not reading.go_on(timeout_s=0.01)
    assert bytes(into[0])[:8] == b"\1" * 8
    memory.values("v1")[:] = 2
    memory.sequences[1][0] += 1
    assert reading.go_on()
    assert reading.finish() == 24
    assert bytes(into[0]) == b"\1" * 8 + b"\2" * 12 + bytes(4)


def test_what_changes_while_it_is_copied_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory([[8]])
    pull = pull_of(memory, "v0")
    into = memory.into(["v0"])
    copies = 0

    def changing(target: Array, source: Array) -> None:
        nonlocal copies
        copies += 1
        copy_into(target[:4], source[:4])
        if copies < 3:
            memory.write("v0", copies)
        copy_into(target[4:], source[4:])

    monkeypatch.setattr(direct_pull, "copy_into", changing)
    reading = begin(memory, pull, into)
    assert reading.go_on()
    assert copies == 3
    assert bytes(into[0]) == b"\2" * 8


def test_a_ps_that_ends_while_it_writes_is_not_waited_for() -> None:
    """Killed inside a kernel, it leaves the sequence odd for ever."""
    sequence = np.ones(1, np.int64)
    asked: list[bool] = []

    def is_open() -> bool:
        asked.append(True)
        return len(asked) < 3

    copies = [Copy(sequence, 8, lambda: pytest.fail("values are being written"))]
    assert not MemoryReading(copies).go_on(is_open=is_open, timeout_s=5.0)
    assert len(asked) == 3
