"""Where a pull lands: runs of entries that changed, and cutting memory along them."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.client.ps.pull_plans import cut_spans, runs_of


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30))
def test_runs_cover_all_bytes_once_and_alternate(entries: list[tuple[bool, int]]) -> None:
    changed = np.array([flag for flag, _ in entries], np.bool_)
    sizes = np.array([size for _, size in entries], np.int64)
    runs = list(runs_of(changed, sizes))
    marks = np.repeat(changed, sizes).tolist()
    assert [moved for moved, start, stop in runs for _ in range(start, stop)] == marks
    assert [start for _, start, _ in runs][1:] == [stop for _, _, stop in runs][:-1]
    flags = [moved for moved, _, _ in runs]
    assert all(left != right for left, right in itertools.pairwise(flags))


def test_nothing_has_no_runs() -> None:
    assert list(runs_of(np.array([], np.bool_), np.array([], np.int64))) == []


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=8), data=st.data())
def test_spans_are_cut_as_if_they_were_one_memory(sizes: list[int], data: st.DataObject) -> None:
    whole = bytearray(range(sum(sizes)))
    ends = np.cumsum([0, *sizes]).tolist()
    spans = [memoryview(whole)[ends[i] : ends[i + 1]] for i in range(len(sizes))]
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    pieces = cut_spans(spans, start, stop)
    assert b"".join(pieces) == whole[start:stop]
    assert all(len(piece) for piece in pieces), "no empty ones"
    for piece in pieces:  # memory, not copies
        piece[:] = bytes(len(piece))
    assert whole == bytearray(0 if start <= i < stop else i for i in range(len(whole)))


@settings(deadline=None)
@given(entries=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), min_size=1), data=st.data())
def test_cut_along_its_runs_a_memory_is_taken_apart_without_a_rest(
    entries: list[tuple[bool, int]], data: st.DataObject
) -> None:
    """What a pull does: changed runs into one memory, the others out of one cut alike."""
    changed = np.array([flag for flag, _ in entries], np.bool_)
    sizes = np.array([size for _, size in entries], np.int64)
    total = int(sizes.sum())
    cuts = sorted(data.draw(st.lists(st.integers(0, total), max_size=4)))
    edges = [0, *cuts, total]

    def spans(memory: bytearray) -> list[memoryview]:
        view = memoryview(memory)
        return [view[a:b] for a, b in itertools.pairwise(edges)]

    into, previous = bytearray(total), bytearray(b"\1" * total)
    for moved, start, stop in runs_of(changed, sizes):
        own, old = cut_spans(spans(into), start, stop), cut_spans(spans(previous), start, stop)
        assert [len(piece) for piece in own] == [len(piece) for piece in old]
        for target, source in zip(own, old, strict=True):
            target[:] = b"\2" * len(target) if moved else source
    assert into == bytes(np.repeat(np.where(changed, 2, 1), sizes).astype(np.uint8))
